//! The mapped memory behind an arena: reserved once, committed piece by piece, unmapped at the end. What
//! lies last may be given back before.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

use super::lock::Unlocked;
use crate::error::{Errno, Error, Result};
use crate::units::Bytes;

/// A private anonymous mapping, aligned to huge pages. Bytes beyond what was committed are
/// inaccessible.
#[derive(Debug)]
pub(super) struct Region {
    mapped: NonNull<c_void>,
    mapped_bytes: usize,
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: the region is plain memory; who may touch which bytes is decided by the frames.
unsafe impl Send for Region {}
// SAFETY: as above; `commit` and `decommit` are called under the arena's lock and touch only bytes that
// no frame covers.
unsafe impl Sync for Region {}

impl Region {
    /// The region begins at a multiple of it.
    pub(super) const HUGE_PAGE_BYTES: u64 = 2 << 20;

    /// How much is committed at a time.
    pub(super) const PIECE_BYTES: u64 = 64 << 20;

    /// Reserves `bytes` of address space without committing memory.
    pub(super) fn reserve(bytes: u64) -> Result<Self> {
        let refuse = |source: Errno| Error::System {
            attempted: format!("reserve address space for a host budget of {}", Bytes(bytes)),
            source,
            remedy: String::from("lower the budget or raise the address-space limit (ulimit -v)"),
        };
        let mapped_bytes = bytes
            .checked_add(Self::HUGE_PAGE_BYTES)
            .and_then(|b| usize::try_from(b).ok())
            .ok_or_else(|| refuse(Errno(libc::ENOMEM)))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing else.
        let mapped =
            unsafe { mm::mmap_anonymous(null_mut(), mapped_bytes, ProtFlags::empty(), flags) }
                .map_err(|e| refuse(e.into()))?;
        let skip = mapped.cast::<u8>().align_offset(Self::HUGE_PAGE_BYTES as usize);
        let base = mapped.cast::<u8>().wrapping_add(skip);
        match (NonNull::new(mapped), NonNull::new(base)) {
            (Some(mapped), Some(base)) => Ok(Region { mapped, mapped_bytes, base, bytes }),
            _ => Err(refuse(Errno(libc::ENOMEM))),
        }
    }

    /// Returns the region's length.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address of byte `offset`; reading or writing there is the caller's business.
    pub(super) fn address(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.bytes);
        self.base.as_ptr().wrapping_add(offset as usize)
    }

    /// Makes `bytes` from `offset` usable: writable, on huge pages where the system has them,
    /// kept out of forks and core dumps, populated, and locked as far as the limits allow.
    /// Returns what is not locked, and why.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no memory; the piece then stays uncommitted.
    pub(super) fn commit(&self, offset: u64, bytes: u64) -> Result<Option<Unlocked>> {
        let at = self.address(offset).cast::<c_void>();
        let len = bytes as usize;
        let refuse = |source: rustix::io::Errno| Error::System {
            attempted: format!("commit {} of host memory", Bytes(bytes)),
            source: source.into(),
            remedy: String::from("lower the host budget or free memory"),
        };
        // SAFETY: the range lies in our mapping and no frame covers it before this call returns.
        unsafe { mm::mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(refuse)?;
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // Advice only: a kernel built without one of them serves as well.
            // SAFETY: as above; none of these three discards bytes.
            let _ = unsafe { mm::madvise(at, len, advice) };
        }
        // SAFETY: as above; populating only faults pages in.
        match unsafe { mm::madvise(at, len, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know it; pages then come on first touch.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(refuse(error)),
        }
        Ok(self.lock(offset, bytes))
    }

    /// Gives `bytes` from `offset` back to the system: what was there is lost, and no byte can be
    /// touched until it is committed again. To be called under the arena's lock, and only while no frame
    /// covers the range, as with [`Region::commit`].
    ///
    /// # Errors
    /// [`Error::System`] when the system refuses; the bytes can then still be touched.
    pub(super) fn decommit(&self, offset: u64, bytes: u64) -> Result<()> {
        let at = self.address(offset).cast::<c_void>();
        let len = bytes as usize;
        let refuse = |source: rustix::io::Errno| Error::System {
            attempted: format!("give back {} of host memory", Bytes(bytes)),
            source: source.into(),
            remedy: String::from("lower the host budget, or keep fewer objects"),
        };
        // SAFETY: the range lies in our mapping; unlocking changes no bytes.
        unsafe { mm::munlock(at, len) }.map_err(refuse)?;
        // SAFETY: by the caller's word no frame covers the range, so nobody reads what this discards.
        unsafe { mm::madvise(at, len, Advice::LinuxDontNeed) }.map_err(refuse)?;
        // SAFETY: as above.
        unsafe { mm::mprotect(at, len, MprotectFlags::empty()) }.map_err(refuse)
    }

    /// Locks committed memory, or as much of its start as the limit leaves.
    fn lock(&self, offset: u64, bytes: u64) -> Option<Unlocked> {
        let at = self.address(offset).cast::<c_void>();
        // SAFETY: the range lies in our mapping; locking changes no bytes.
        let refused = unsafe { mm::mlock(at, bytes as usize) }.err()?;
        let mut unlocked = Unlocked::after(bytes, refused.into());
        let room = unlocked.room();
        // SAFETY: as above, a part of the same range.
        if room > 0 && unsafe { mm::mlock(at, room as usize) }.is_ok() {
            unlocked.locked = room;
        }
        Some(unlocked)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: frames hold the arena that owns this region, so none is left; the mapping is ours.
        let unmapped = unsafe { mm::munmap(self.mapped.as_ptr(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
