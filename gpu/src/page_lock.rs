//! Host memory that a device has page-locked: it stays where it is, so that copies reach it without the
//! host's help and at full speed.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::id::DeviceId;

/// Host memory that a device can page-lock.
///
/// # Safety
/// The memory stays mapped, and the same memory, until the value is dropped or borrowed exclusively:
/// a device reads and writes locked memory by where it lay when it was locked.
pub unsafe trait HostMemory: Send + Sync {
    /// Returns where it starts.
    fn start(&self) -> *const u8;

    /// Returns its length.
    fn bytes(&self) -> usize;
}

/// Host memory that is page-locked for a device. Dropping it unlocks the memory, once the copies queued
/// on it are done; the memory is kept until then. It may outlive the handle on its device.
#[must_use = "the memory is unlocked when this is dropped"]
pub struct PageLock {
    pub(crate) device: DeviceId,
    pub(crate) bytes: u64,
    /// What unlocks when it is dropped; copies share it while they are on their way.
    pub(crate) _locked: Arc<dyn Any + Send + Sync>,
}

impl PageLock {
    /// Returns how much is locked, in bytes, whole pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the device for which it is locked.
    pub fn device(&self) -> DeviceId {
        self.device
    }
}

impl fmt::Debug for PageLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageLock({} bytes for device {})", self.bytes, self.device)
    }
}

/// A part of memory that is never given back. It keeps no borrow, so that copies can fill the memory
/// while it is locked.
#[cfg(any(test, feature = "testing"))]
pub(crate) struct Forever {
    address: usize,
    bytes: usize,
}

#[cfg(any(test, feature = "testing"))]
impl Forever {
    /// Returns `memory[range]`.
    pub(crate) fn part(memory: &&'static mut [u8], range: std::ops::Range<usize>) -> Self {
        let part = &memory[range];
        Forever { address: part.as_ptr().addr(), bytes: part.len() }
    }
}

// SAFETY: what was borrowed for `'static` is never unmapped.
#[cfg(any(test, feature = "testing"))]
unsafe impl HostMemory for Forever {
    fn start(&self) -> *const u8 {
        std::ptr::without_provenance(self.address)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
