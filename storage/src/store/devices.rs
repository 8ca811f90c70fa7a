//! Attaching devices: their memory as a tier above the host, leased like the host's.

use std::sync::Arc;
use std::time::Duration;

use tensortier_gpu::Device;

use crate::device::{DeviceCache, DeviceReadLease, DeviceUse, DeviceWriteLease};
use crate::error::Result;
use crate::ticket::Ticket;

use super::{ObjectRef, Store};

/// A device attached to a store. Clones share it; once the last one is dropped, what waits gets
/// `Closed` and the copies that no lease holds are freed.
#[derive(Debug, Clone)]
pub struct DeviceTier(Arc<Attached>);

#[derive(Debug)]
struct Attached(Arc<DeviceCache>);

impl Drop for Attached {
    fn drop(&mut self) {
        drop(self.0.close(super::DROP_GRACE));
    }
}

/// A device's tier that is ending.
pub(super) struct Closing {
    name: String,
    ended: Ticket<bool>,
}

impl Closing {
    pub(super) fn begin(device: &DeviceCache, grace: Duration) -> Self {
        Closing { name: device.device().name().to_owned(), ended: device.close(grace) }
    }

    /// Waits for as long as was given, and returns what is to be said if that was too little.
    pub(super) fn wait(self) -> Option<String> {
        // No answer: it had ended before it was asked to.
        let late = self.ended.wait().is_ok_and(|ended| !ended);
        late.then(|| format!("device {} still copies", self.name))
    }
}

impl Store {
    /// Attaches a device: `budget_bytes` of its memory hold copies of chunks and leases on them. The
    /// host's memory is page-locked for it as far as it allows, what is committed later before its
    /// first copy, until the tier ends.
    ///
    /// # Errors
    /// [`crate::error::Error::Config`] when the device has not that much memory,
    /// [`crate::error::Error::DeviceUnusable`], `System`, `Closed`.
    pub fn attach_device(&self, device: Arc<dyn Device>, budget_bytes: u64) -> Result<DeviceTier> {
        self.check_open()?;
        let (host, page_locks) = (self.0.handle.clone(), &self.0.page_locks);
        let cache = Arc::new(DeviceCache::start(device, budget_bytes, host, page_locks)?);
        let mut devices = self.0.devices.lock();
        devices.retain(|cache| !cache.is_over());
        devices.push(Arc::clone(&cache));
        drop(devices);
        let tier = DeviceTier(Arc::new(Attached(cache)));
        // A close that did not see it in the list is seen here, and the tier ends with this call.
        self.check_open().map(|()| tier)
    }
}

impl DeviceTier {
    /// Asks for a shared lease on a chunk's newest version in the device's memory. Granted at once if
    /// it is there; otherwise the chunk is leased on the host, copied, and the host's lease ended.
    ///
    /// # Errors
    /// By the ticket: the errors of a lease on the host, [`crate::error::Error::BudgetExhausted`] when
    /// only leases hold the device's memory, [`crate::error::Error::Device`].
    pub fn lease_read(&self, object: &ObjectRef, chunk: u32) -> Ticket<DeviceReadLease> {
        match object.0.chunk(chunk) {
            Ok(chunk) => self.0.0.lease_read(&chunk),
            Err(error) => Ticket::answered(Err(error)),
        }
    }

    /// Asks for an exclusive lease on a chunk in the device's memory. It holds the exclusive lease on
    /// the host, from before its bytes are copied there until they were copied back.
    ///
    /// # Errors
    /// As [`DeviceTier::lease_read`].
    pub fn lease_write(&self, object: &ObjectRef, chunk: u32) -> Ticket<DeviceWriteLease> {
        match object.0.chunk(chunk) {
            Ok(chunk) => self.0.0.lease_write(&chunk),
            Err(error) => Ticket::answered(Err(error)),
        }
    }

    /// Says that the object will be wanted on the device: its chunks are loaded and copied one after
    /// the other as its memory allows, and what another prefetch brought stays for its lease. The host
    /// loads each as for a lease. Returns at once.
    pub fn prefetch(&self, object: &ObjectRef) {
        self.0.0.prefetch(object.0.chunks().collect());
    }

    /// Returns what the device holds and what moved.
    pub fn usage(&self) -> DeviceUse {
        self.0.0.usage()
    }

    /// Returns the device, to queue work on its streams.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.0.0.device()
    }
}
