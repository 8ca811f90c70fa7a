//! The paths of a round: made as its settings say, troubled or healed, looked at for leaks.

use std::fmt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tensortier_storage::clock::Clock;
use tensortier_storage::error::{Error, Result};
use tensortier_storage::id::PathId;
use tensortier_storage::io::decorate::Faulty;
use tensortier_storage::io::{EngineChoice, EngineKind, IoEngine, Threads, Uring};
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::path::{FilePathStore, Path, PathStore};
use tensortier_storage::units::{Bytes, BytesPerSecond};

use super::config::{PathConfig, PathKind};
use super::faults::Script;

/// What tells apart the directories of one process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// One path.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) store: Arc<dyn PathStore>,
    inner: Inner,
    quota: Option<u64>,
}

#[derive(Clone)]
enum Inner {
    Memory(Arc<MemoryPath>, Mischief),
    Directory { dir: PathBuf, script: Arc<Script>, faulty: Weak<Faulty> },
}

/// The paths of a store, by their ids; those that were removed stay, to be looked at.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Vec<(Place, bool)>>);

impl fmt::Debug for Place {
    /// Writes its name alone: a path in memory would write all its bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.store.capabilities().dir.display())
    }
}

fn system(attempted: &str, error: &std::io::Error) -> Error {
    let (attempted, remedy) = (attempted.to_owned(), String::from("look at the directory"));
    Error::System { attempted, source: error.into(), remedy }
}

impl Place {
    /// Makes a path; a directory of its own is made below `base`.
    ///
    /// # Errors
    /// As opening a path.
    pub(super) fn open(base: &FsPath, config: &PathConfig) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let PathConfig { kind, seed, share_bps, quota, wrongs } = config.clone();
        match kind {
            PathKind::Memory => {
                let every = |per_mille: u64| 1000_u64.checked_div(per_mille).unwrap_or(0);
                let mischief = Mischief {
                    quota_bytes: quota.unwrap_or(0),
                    fail_write_every: every(wrongs.writes_fail),
                    fail_read_every: every(wrongs.reads_fail),
                    flip_read_every: every(wrongs.bits_flip),
                    reorder: wrongs.holds as usize / 100,
                    delay: std::time::Duration::from_micros(wrongs.delays / 4),
                };
                let path = Arc::new(MemoryPath::new(&format!("memory {number}"), share_bps));
                let inner = Inner::Memory(Arc::clone(&path), mischief);
                Ok(Place { store: path, inner, quota })
            }
            PathKind::Directory { threads, hooked } => {
                let dir = base.join(format!("path-{number}"));
                std::fs::create_dir_all(&dir).map_err(|e| system("make a directory", &e))?;
                let script = Arc::new(Script::new(seed, wrongs));
                let cap = BytesPerSecond(100e9);
                // With caps no trial runs: what is faulty is seen from the first operation on.
                let mut options = Path::new(&dir).read_cap(cap).write_cap(cap);
                options.quota = quota.map(Bytes);
                let mut faulty = Weak::new();
                let deciding = Arc::clone(&script);
                let choice = if threads { EngineChoice::Threads } else { EngineChoice::Auto };
                let decorate = |inner: Arc<dyn IoEngine>| {
                    let inner = if hooked { hook(inner, &script) } else { inner };
                    let decide = move |n, operation: &_| deciding.decide(n, operation);
                    let made = Arc::new(Faulty::new(inner, decide));
                    faulty = Arc::downgrade(&made);
                    made as Arc<dyn IoEngine>
                };
                let clock = Clock::system();
                let store = FilePathStore::open_decorated(&options, choice, clock, decorate)?;
                let inner = Inner::Directory { dir, script, faulty };
                Ok(Place { store: Arc::new(store), inner, quota })
            }
        }
    }

    /// Begins or ends what goes wrong.
    pub(super) fn trouble(&self, on: bool) {
        match &self.inner {
            Inner::Memory(path, mischief) if on => path.set_mischief(*mischief),
            Inner::Memory(path, _) => path.set_mischief(Mischief::default()),
            Inner::Directory { script, .. } => script.arm(on),
        }
    }

    /// Sets what goes wrong on a path in memory.
    pub(super) fn set_mischief(&self, mischief: Mischief) {
        if let Inner::Memory(path, _) = &self.inner {
            path.set_mischief(mischief);
        }
    }

    /// Sets how much room there is, where that can be changed: `None` is as the settings say.
    pub(super) fn set_room(&self, bytes: Option<u64>) {
        if let Inner::Memory(path, mischief) = &self.inner {
            let quota_bytes = bytes.or(self.quota).unwrap_or(0);
            path.set_mischief(Mischief { quota_bytes, ..*mischief });
        }
    }

    /// Gives out the answers that are held back.
    fn release(&self) {
        if let Inner::Directory { faulty, .. } = &self.inner
            && let Some(faulty) = faulty.upgrade()
        {
            faulty.release();
        }
    }

    /// Returns how many faults were met, where that is counted.
    pub(super) fn faults(&self) -> u64 {
        match &self.inner {
            Inner::Memory(..) => 0,
            Inner::Directory { script, .. } => script.met(),
        }
    }

    /// Returns what a path that was closed left behind.
    pub(super) fn left_behind(&self) -> Option<String> {
        let Inner::Directory { dir, .. } = &self.inner else { return None };
        // It was made empty and only the path wrote into it.
        let gone = std::fs::remove_dir(dir);
        gone.err().map(|error| format!("{} is not empty: {error}", dir.display()))
    }
}

/// Replaces an engine by one of its kind whose kernel calls go through the script.
fn hook(inner: Arc<dyn IoEngine>, script: &Arc<Script>) -> Arc<dyn IoEngine> {
    let hooked: Result<Arc<dyn IoEngine>> = match inner.kind() {
        EngineKind::Uring => Uring::start_hooked(script.hook()).map(|e| Arc::new(e) as _),
        _ => Threads::start_hooked(4, script.hook()).map(|e| Arc::new(e) as _),
    };
    hooked.unwrap_or(inner)
}

impl Places {
    /// Adds the next path.
    pub(super) fn add(&self, place: Place) {
        self.lock().push((place, true));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Place, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all paths, removed ones too.
    pub(super) fn all(&self) -> Vec<Place> {
        self.lock().iter().map(|(place, _)| place.clone()).collect()
    }

    /// Returns the paths in service.
    pub(super) fn active(&self) -> Vec<(PathId, Place)> {
        let places = self.lock();
        let active = places.iter().enumerate().filter(|(_, (_, active))| *active);
        active.map(|(index, (place, _))| (PathId(index as u16), place.clone())).collect()
    }

    /// Notes that a path was taken out of service.
    pub(super) fn removed(&self, id: PathId) {
        if let Some((_, active)) = self.lock().get_mut(usize::from(id.0)) {
            *active = false;
        }
    }

    /// Gives out the answers that are held back on any path.
    pub(super) fn release(&self) {
        self.all().iter().for_each(Place::release);
    }
}
