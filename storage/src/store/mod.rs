//! The store as its users see it: objects by key, leases on their chunks, hints about the future,
//! and an honest account of what happened.

mod ahead;
mod block_on;
mod builder;
mod copy;
mod devices;
mod explain;
mod lease;
mod measure;
mod moving;
mod name;
mod objects;
mod parts;
mod places;
mod put;
mod range;
mod returned;
mod scheduling;
mod span;

use std::sync::Arc;
use std::time::Duration;

use crate::arena::{Arena, ArenaUse};
use crate::catalog::Catalog;
use crate::device::{DeviceCache, PageLockTable};
use crate::error::{Error, Result};
use crate::metrics::CounterValues;
use crate::mover::{Handle, Msg};
use crate::path::PathCounters;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Sharded};
use crate::ticket::{Completer, Ticket, ticket};

use ahead::Ahead;
use devices::Closing;

pub use crate::catalog::{Key, Waits};
pub use crate::codec::Compression;
pub use crate::device::{DeviceReadLease, DeviceUse, DeviceWriteLease};
pub use crate::placement::Placement;
pub use builder::StoreBuilder;
pub use devices::DeviceTier;
pub use explain::{Explanation, PathExplanation};
pub use lease::{LeaseTicket, ReadLease, WriteLease};
pub use measure::PathRates;
pub use name::{Name, Named};
pub use objects::{ObjectRef, Stat};
pub use parts::Parts;
pub use put::{Put, PutOutcome};
pub use range::{RangeLease, RangeTicket};
pub use returned::{BoxFuture, Returned};
pub use scheduling::Schedule;

/// How long a store that is dropped without [`Store::close`] may take to end.
const DROP_GRACE: Duration = Duration::from_secs(10);

/// A tiered object store. Clones share it; all calls are safe from any thread.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tensortier_storage::{dtype::DType, path::Path, store::Store};
///
/// let dir = std::env::temp_dir();
/// let store = Store::builder().host_budget(8 << 20).path(Path::new(dir)).open()?;
/// store.put("layer.0/weight", DType::F32, &[4, 2], &[7; 32])?;
/// let weight = store.object("layer.0/weight")?;
/// assert_eq!(&*store.lease_read(&weight, 0).wait()?, &[7; 32]);
/// store.lease_write(&weight, 0).wait()?[0] = 1;
/// store.evict("layer.0/weight")?;
/// let parts: Result<Vec<_>, _> = store.get("layer.0/weight")?.collect();
/// assert_eq!(parts?[0][..2], [1, 7]);
/// store.close(std::time::Duration::from_secs(5))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>, Making);

/// How a handle on a store makes new objects.
#[derive(Debug, Clone, Copy)]
struct Making {
    reproducible: bool,
}

#[derive(Debug)]
struct Inner {
    handle: Handle,
    catalog: Sharded<Catalog>,
    next_object: AtomicU64,
    next_schedule: AtomicU64,
    chunk_bytes: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
    closed: AtomicBool,
    notes: Vec<String>,
    devices: Mutex<Vec<Arc<DeviceCache>>>,
    page_locks: PageLockTable,
}

/// What a store has done and holds, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// What moved and what was spared since the store was opened.
    pub counters: CounterValues,
    /// The host arena.
    pub host: ArenaUse,
    /// What of the host budget is set aside for the stored bytes of compressed chunks, if any is.
    pub packing: Option<ArenaUse>,
    /// What of the host arena and of what is set aside belongs to transfers that a path does not
    /// answer, in bytes; it stays taken until they end. Each path's part is in its counters.
    pub quarantined_bytes: u64,
    /// Each path, in the order in which they were given.
    pub paths: Vec<PathCounters>,
    /// Each device that is attached, in the order in which they were.
    pub devices: Vec<DeviceUse>,
}

impl Store {
    /// Returns a builder with the defaults of [`StoreBuilder`].
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    /// Returns a handle on the same store whose new objects, created or put, are reproducible or not:
    /// the chunks of a reproducible object are dropped when their memory is needed, and are never
    /// written to a path. A store of [`StoreBuilder::cache`] makes such objects by itself.
    ///
    /// To read or lease a dropped chunk fails with [`Error::Dropped`]; to put the object again brings
    /// it back. [`Store::contains`] and [`Store::stat`] tell beforehand. What is evicted, and what a
    /// declared schedule lets go, is dropped too; [`Store::flush`] passes it over.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tensortier_storage::{dtype::DType, error::ErrorKind, path::Path, store::Store};
    /// # let dir = std::env::temp_dir();
    /// # let store = Store::builder().host_budget(8 << 20).path(Path::new(dir)).open()?;
    /// let cache = store.caching(true);
    /// cache.put("page.0", DType::U8, &[4096], &[1; 4096])?;
    /// assert!(store.contains("page.0"));
    /// store.evict("page.0")?; // or something else needed its memory
    /// assert!(!store.contains("page.0"));
    /// let missed = store.get_into("page.0", &mut [0; 4096]).unwrap_err();
    /// assert_eq!(missed.kind(), ErrorKind::NotFound);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn caching(&self, reproducible: bool) -> Store {
        Store(Arc::clone(&self.0), Making { reproducible })
    }

    /// Returns what the store has done and holds. Exact when nothing is under way, or right after
    /// [`Store::barrier`] for what was asked for before it.
    pub fn stats(&self) -> Stats {
        let shared = &self.0.handle.shared;
        Stats {
            counters: self.0.handle.counters(),
            host: shared.arena.usage(),
            packing: shared.packing.as_ref().map(Arena::usage),
            quarantined_bytes: shared.quarantined_bytes.load(Ordering::SeqCst),
            paths: shared.paths.all().iter().map(|path| path.store.counters()).collect(),
            devices: self.devices(),
        }
    }

    /// Sends the mover a message that it answers.
    fn ask<T>(&self, message: impl FnOnce(Completer<T>) -> Msg) -> Ticket<T> {
        let (reply, answer) = ticket();
        self.0.handle.send(message(reply));
        answer
    }

    /// Ends the store and the tiers of its devices: what waits gets [`Error::Closed`], what is under
    /// way is waited for up to `grace`, and all that the store made on its paths is removed. Leases
    /// stay readable. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Timeout`] when a path or a device did not answer in time, naming what stays behind, or
    /// at once when it is called while the store wakes a future: the store then ends by itself.
    pub fn close(&self, grace: Duration) -> Result<()> {
        self.0.close(grace)
    }

    fn devices(&self) -> Vec<DeviceUse> {
        let devices = self.0.devices.lock();
        devices.iter().filter(|device| !device.is_over()).map(|device| device.usage()).collect()
    }

    fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst)
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }
}

impl Inner {
    fn close(&self, grace: Duration) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let devices = self.close_devices(grace);
        let (reply, done) = ticket();
        self.handle.send(Msg::Close { grace, reply });
        if self.on_own_thread() {
            let what = String::from("closing the store from a wake-up on its own thread");
            return Err(Error::Timeout { what, after: Duration::ZERO });
        }
        let failed = done.wait()?;
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        drop(self.catalog.write().drain());
        let late: Vec<_> = devices.into_iter().filter_map(Closing::wait).collect();
        if failed.is_empty() && late.is_empty() {
            return Ok(());
        }
        let texts = failed.iter().map(|(_, error)| error.to_string());
        let texts: Vec<_> = texts.chain(late).collect();
        Err(Error::Timeout {
            what: format!("closing the store: {}", texts.join("; ")),
            after: grace,
        })
    }
}

impl Inner {
    /// Begins to end the devices' tiers.
    fn close_devices(&self, grace: Duration) -> Vec<Closing> {
        let devices = std::mem::take(&mut *self.devices.lock());
        devices.iter().map(|device| Closing::begin(device, grace)).collect()
    }

    /// Returns whether the caller is the mover, as when it wakes a future that owns the store; it
    /// cannot wait for itself, and ends once the wake-up returns.
    fn on_own_thread(&self) -> bool {
        let own = self.thread.lock().as_ref().map(|thread| thread.thread().id());
        own == Some(thread::current().id())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let own = self.on_own_thread();
        if let Err(error) = self.close(DROP_GRACE)
            && !own
        {
            tracing::error!(%error, "a dropped store did not end cleanly");
        }
    }
}
