//! Opening a store: its settings, checked together before anything is made.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::arena::{Arena, GRANULE};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::codec::Compression;
use crate::device::PageLockTable;
use crate::error::{Error, Result};
use crate::evict::{EvictionPolicy, FurthestUse};
use crate::io::EngineChoice;
use crate::mover;
use crate::path::{FilePathStore, Path, PathStore};
use crate::placement::Placement;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Sharded};
use crate::units::Bytes;

use super::{Inner, Making, Store};

/// The settings of a store and their defaults: 1 GiB of host memory, chunks of 16 MiB, checksums on,
/// no compression, whole chunks, the engine chosen per path, victims by furthest declared use. At
/// least one path must be given, but to a cache.
#[derive(Debug)]
pub struct StoreBuilder {
    host_budget: u64,
    chunk_bytes: u64,
    paths: Vec<Path>,
    stores: Vec<Arc<dyn PathStore>>,
    engine: EngineChoice,
    placement: Placement,
    checksums: bool,
    compression: Compression,
    packing_bytes: u64,
    eviction: Box<dyn EvictionPolicy>,
    wait_for_leases: Duration,
    cache: bool,
    clock: Clock,
}

impl Default for StoreBuilder {
    fn default() -> Self {
        StoreBuilder {
            host_budget: 1 << 30,
            chunk_bytes: 16 << 20,
            paths: Vec::new(),
            stores: Vec::new(),
            engine: EngineChoice::Auto,
            placement: Placement::Whole,
            checksums: true,
            compression: Compression::Off,
            packing_bytes: 0,
            eviction: Box::new(FurthestUse),
            wait_for_leases: Duration::ZERO,
            cache: false,
            clock: Clock::system(),
        }
    }
}

impl StoreBuilder {
    /// Sets the strict budget of host memory, in bytes.
    #[must_use]
    pub fn host_budget(mut self, bytes: u64) -> Self {
        self.host_budget = bytes;
        self
    }

    /// Sets the largest chunk of objects that do not say otherwise, in bytes.
    #[must_use]
    pub fn chunk_bytes(mut self, bytes: u64) -> Self {
        self.chunk_bytes = bytes;
        self
    }

    /// Adds a directory as a path.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.paths.push(path);
        self
    }

    /// Adds a path of the caller's own making; such paths come after the directories.
    #[must_use]
    pub fn path_store(mut self, store: Arc<dyn PathStore>) -> Self {
        self.stores.push(store);
        self
    }

    /// Sets what moves bytes between memory and files.
    #[must_use]
    pub fn engine(mut self, engine: EngineChoice) -> Self {
        self.engine = engine;
        self
    }

    /// Sets how chunks are spread over the paths.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Sets whether a checksum of every block is kept and compared on every read.
    #[must_use]
    pub fn checksums(mut self, on: bool) -> Self {
        self.checksums = on;
        self
    }

    /// Sets what is compressed on its way to a path. A chunk stays raw where that does not pay or no
    /// memory is free for its stored bytes at that moment: a store that uses its whole budget needs
    /// [`StoreBuilder::packing_bytes`]. Costs each of the store's one or two workers some 0.6 MiB
    /// outside of the budget.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets how much of the host budget is set aside, in bytes, for the stored bytes of chunks that
    /// are compressed and being written; 0 by default, and without effect if nothing is compressed.
    /// One chunk per path and one more are plenty.
    #[must_use]
    pub fn packing_bytes(mut self, bytes: u64) -> Self {
        self.packing_bytes = bytes;
        self
    }

    /// Sets which chunk leaves first.
    #[must_use]
    pub fn eviction(mut self, policy: impl EvictionPolicy + 'static) -> Self {
        self.eviction = Box::new(policy);
        self
    }

    /// Sets how long a demand for memory waits when nothing but leases holds it, before it fails with
    /// [`Error::BudgetExhausted`]. By default it fails at once: the caller who waits may be the one
    /// who holds them. Threads that each hold a few leases want some time here.
    #[must_use]
    pub fn wait_for_leases(mut self, limit: Duration) -> Self {
        self.wait_for_leases = limit;
        self
    }

    /// Sets whether new objects are reproducible: dropped when their memory is needed, and never
    /// written. Such a store needs no paths. [`Store::caching`] says more, and mixes both kinds.
    #[must_use]
    pub fn cache(mut self, on: bool) -> Self {
        self.cache = on;
        self
    }

    /// Sets the clock that the store takes its times from, and the paths in directories with it.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the store: probes every path and makes a directory of its own in each.
    ///
    /// # Errors
    /// [`Error::Config`] when the settings do not fit together, [`Error::PathUnusable`] naming the
    /// path, [`Error::System`]. Nothing is left behind then.
    pub fn open(self) -> Result<Store> {
        self.check()?;
        let set_aside = self.set_aside_bytes();
        let arena = Arena::new(self.host_budget - set_aside)?;
        let packing = if set_aside > 0 { Some(Arena::new(set_aside)?) } else { None };
        let clock = self.clock;
        let mut paths: Vec<Arc<dyn PathStore>> = Vec::new();
        let devices: Vec<Option<u64>> = self.paths.iter().map(Path::device).collect();
        for (index, path) in self.paths.iter().enumerate() {
            let (before, after) = (&devices[..index], &devices[index + 1..]);
            let others = before.iter().chain(after).copied().flatten();
            let path = FilePathStore::open_beside(path, self.engine, clock.clone(), others);
            // A path opened before one that fails removes its directory when it is dropped here.
            paths.push(Arc::new(path?));
        }
        paths.extend(self.stores);
        let (notes, catalog) = (notes(&paths), Catalog::new(arena.clone()));
        let (handle, thread) = mover::start(mover::Settings {
            arena,
            paths,
            placement: self.placement,
            checksums: self.checksums,
            compression: self.compression,
            packing,
            policy: self.eviction,
            patience: self.wait_for_leases,
            clock,
        })?;
        let inner = Inner {
            handle,
            catalog: Sharded::new(catalog),
            next_object: AtomicU64::new(0),
            next_schedule: AtomicU64::new(0),
            chunk_bytes: self.chunk_bytes.max(1),
            thread: Mutex::new(Some(thread)),
            closed: AtomicBool::new(false),
            notes,
            devices: Mutex::default(),
            page_locks: PageLockTable::default(),
        };
        Ok(Store(Arc::new(inner), Making { reproducible: self.cache }))
    }

    /// Returns how much of the budget is set aside for stored bytes, in bytes, whole granules.
    fn set_aside_bytes(&self) -> u64 {
        let compresses = self.compression != Compression::Off;
        if compresses { self.packing_bytes / GRANULE * GRANULE } else { 0 }
    }

    fn check(&self) -> Result<()> {
        let refuse = |what: String, why: &str| Err(Error::Config { what, why: why.to_owned() });
        if self.paths.is_empty() && self.stores.is_empty() && !self.cache {
            return refuse(String::from("a store without paths"), "give at least one directory");
        }
        if self.paths.len() + self.stores.len() > usize::from(u16::MAX) {
            return refuse(String::from("paths"), "at most 65535");
        }
        if self.chunk_bytes == 0 {
            return refuse(String::from("chunks of 0 B"), "use at least 4 KiB");
        }
        if self.host_budget < GRANULE {
            let what = format!("host budget of {}", Bytes(self.host_budget));
            return refuse(what, "at least 4 KiB are needed");
        }
        if self.set_aside_bytes() > self.host_budget - GRANULE {
            let what = format!("packing memory of {}", Bytes(self.packing_bytes));
            return refuse(what, "it is part of the host budget and must leave some of it");
        }
        let canonical = |path: &Path| path.dir.canonicalize().unwrap_or_else(|_| path.dir.clone());
        let mut dirs: Vec<PathBuf> = self.paths.iter().map(canonical).collect();
        dirs.sort_unstable();
        match dirs.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => refuse(
                format!("path {}", pair[0].display()),
                "is given twice; one directory is one path",
            ),
            None => Ok(()),
        }
    }
}

/// Returns what a user should know about the paths taken together.
fn notes(paths: &[Arc<dyn PathStore>]) -> Vec<String> {
    let mut notes = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let (this, earlier) = (path.capabilities(), &paths[..index]);
        if let Some(same) = earlier.iter().find(|path| path.capabilities().device == this.device) {
            notes.push(format!(
                "{} and {} are on one device: they share its bandwidth",
                same.capabilities().dir.display(),
                this.dir.display()
            ));
        }
        if this.file_system == "tmpfs" || this.file_system == "ramfs" {
            notes.push(format!(
                "{} is on {}: what is kept there takes memory beside the host budget",
                this.dir.display(),
                this.file_system
            ));
        }
    }
    notes
}
