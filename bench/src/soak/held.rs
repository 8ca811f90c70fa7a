//! Leases and views that are kept over many operations, and what they must still say.

use bytes::Bytes;
use tensortier_storage::store::{DeviceReadLease, ReadLease};

use super::gpu::Gpu;

/// A lease or a view.
#[derive(Debug)]
enum Kept {
    Lease(ReadLease),
    View(Bytes),
    Device(DeviceReadLease, Gpu),
}

/// What is kept and the bytes it must hold for as long as it lives.
#[derive(Debug)]
pub(super) struct Held {
    kept: Kept,
    expect: Vec<u8>,
    what: String,
}

impl Held {
    /// Keeps a lease; its bytes were found right.
    pub(super) fn lease(lease: ReadLease, what: String) -> Self {
        let expect = lease.to_vec();
        Held { kept: Kept::Lease(lease), expect, what }
    }

    /// Keeps a view; its bytes were found right.
    pub(super) fn view(view: Bytes, what: String) -> Self {
        let expect = view.to_vec();
        Held { kept: Kept::View(view), expect, what }
    }

    /// Keeps a lease on a device whose bytes are `expect`.
    pub(super) fn device(lease: DeviceReadLease, gpu: &Gpu, expect: Vec<u8>, what: String) -> Self {
        Held { kept: Kept::Device(lease, gpu.clone()), expect, what }
    }

    /// # Errors
    /// What differs.
    pub(super) fn check(&self) -> Result<(), String> {
        let from_device;
        let bytes = match &self.kept {
            Kept::Lease(lease) => &lease[..],
            Kept::View(view) => &view[..],
            Kept::Device(lease, gpu) => {
                from_device = gpu.read(lease)?;
                &from_device
            }
        };
        same(bytes, &self.expect).map_err(|differs| format!("held {}: {differs}", self.what))
    }
}

/// Compares bytes with what they must be.
///
/// # Errors
/// What differs first, and how much does.
pub(super) fn same(got: &[u8], expect: &[u8]) -> Result<(), String> {
    if got == expect {
        return Ok(());
    }
    if got.len() != expect.len() {
        return Err(format!("{} bytes instead of {}", got.len(), expect.len()));
    }
    let differ = || got.iter().zip(expect).enumerate().filter(|(_, (a, b))| a != b);
    let Some((at, (got, expect))) = differ().next() else { return Ok(()) };
    let last = differ().next_back().map_or(at, |(at, _)| at);
    let count = differ().count();
    Err(format!("{count} bytes differ, in {at}..={last}: first is {got:#x}, not {expect:#x}"))
}
