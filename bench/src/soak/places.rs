//! The paths of a round: made as its settings say, troubled or healed, looked at for leaks.

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path as FsPath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tensortier_storage::clock::Clock;
use tensortier_storage::error::{Error, Result};
use tensortier_storage::id::PathId;
use tensortier_storage::io::decorate::Faulty;
use tensortier_storage::io::{EngineChoice, EngineKind, IoEngine, Threads, Uring};
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::path::{Condition, FilePathStore, MaxProcesses, Path, PathStore};
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
    /// Until when it does not answer.
    stalled: Arc<Mutex<Option<Instant>>>,
}

/// Longer than any round.
const FOREVER: Duration = Duration::from_secs(3600);

#[derive(Clone)]
enum Inner {
    Memory(Arc<MemoryPath>, Mischief),
    Directory { dir: PathBuf, script: Arc<Script>, faulty: Weak<Faulty> },
}

/// The paths of a store; those that were removed stay, to be looked at.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Vec<Known>>);

#[derive(Debug)]
struct Known {
    id: PathId,
    place: Place,
    active: bool,
}

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

/// Soaks that run beside each other meet at their device.
const TURNS: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

impl Place {
    /// Makes a path; a directory of its own is made below `base`.
    ///
    /// # Errors
    /// As opening a path.
    pub(super) fn open(base: &FsPath, config: &PathConfig) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let PathConfig { kind, seed, share_bps, quota, deadline, turns, wrongs } = config.clone();
        let stalled = Arc::default();
        match kind {
            PathKind::Memory => {
                let every = |per_mille: u64| 1000_u64.checked_div(per_mille).unwrap_or(0);
                let mischief = Mischief {
                    quota_bytes: quota.unwrap_or(0),
                    fail_write_every: every(wrongs.writes_fail),
                    fail_read_every: every(wrongs.reads_fail),
                    flip_read_every: every(wrongs.bits_flip),
                    reorder: wrongs.holds as usize / 100,
                    delay: Duration::from_micros(wrongs.delays / 4),
                };
                let path = Arc::new(MemoryPath::new(&format!("memory {number}"), share_bps));
                let inner = Inner::Memory(Arc::clone(&path), mischief);
                Ok(Place { store: path, inner, quota, stalled })
            }
            PathKind::Directory { threads, hooked } => {
                let dir = base.join(format!("path-{number}"));
                std::fs::create_dir_all(&dir).map_err(|e| system("make a directory", &e))?;
                let script = Arc::new(Script::new(seed, wrongs));
                let cap = BytesPerSecond(100e9);
                // With caps no trial runs: what is faulty is seen from the first operation on.
                let mut options = Path::new(&dir).read_cap(cap).write_cap(cap);
                options.quota = quota.map(Bytes);
                options.deadline = deadline;
                if turns {
                    options.max_processes = MaxProcesses::AtMost(TURNS);
                }
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
                Ok(Place { store: Arc::new(store), inner, quota, stalled })
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

    fn stalled(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it takes what it is told and does not answer, for a while.
    pub(super) fn stall(&self, for_long: Duration) {
        let mut stalled = self.stalled();
        *stalled = Some(Instant::now() + for_long);
        match &self.inner {
            Inner::Memory(path, _) => path.stall(),
            Inner::Directory { script, .. } => script.stall(true),
        }
    }

    /// As [`Place::stall`], until it is released.
    pub(super) fn stall_for_good(&self) {
        self.stall(FOREVER);
    }

    /// It answers again, also what it has.
    pub(super) fn release(&self) {
        self.answer(&mut self.stalled());
    }

    fn answer(&self, stalled: &mut Option<Instant>) {
        *stalled = None;
        match &self.inner {
            Inner::Memory(path, _) => path.release(),
            Inner::Directory { script, faulty, .. } => {
                script.stall(false);
                if let Some(faulty) = faulty.upgrade() {
                    faulty.release();
                }
            }
        }
    }

    /// Lets the deadline of a path in memory pass.
    pub(super) fn expire(&self) {
        if let Inner::Memory(path, _) = &self.inner {
            path.hang();
        }
    }

    /// Gives out the answers that are held back, unless it does not answer for now.
    fn tick(&self) {
        // Under the lock, so that it never undoes what somebody else does meanwhile.
        let mut stalled = self.stalled();
        match *stalled {
            Some(until) if Instant::now() < until => self.expire(),
            _ => self.answer(&mut stalled),
        }
    }

    /// Returns whether it does not answer, as far as it knows.
    pub(super) fn is_hung(&self) -> bool {
        matches!(self.store.condition(), Condition::Hung { .. })
    }

    /// Returns whether something was asked for that is not answered.
    pub(super) fn is_busy(&self) -> bool {
        let outstanding = self.store.outstanding();
        outstanding.read_bytes + outstanding.write_bytes > 0
    }

    /// Returns how many faults were met, where that is counted.
    pub(super) fn faults(&self) -> u64 {
        match &self.inner {
            Inner::Memory(..) => 0,
            Inner::Directory { script, .. } => script.met(),
        }
    }

    /// Returns what a path that was closed left behind. What hung while it was closed may stay, and is
    /// removed here.
    pub(super) fn left_behind(&self, hung: bool) -> Option<String> {
        let Inner::Directory { dir, .. } = &self.inner else { return None };
        // It was made empty and only the path wrote into it.
        let gone = if hung { std::fs::remove_dir_all(dir) } else { std::fs::remove_dir(dir) };
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
    /// Adds a path that the store knows by this id.
    pub(super) fn add(&self, id: PathId, place: Place) {
        self.lock().push(Known { id, place, active: true });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all paths, removed ones too.
    pub(super) fn all(&self) -> Vec<Place> {
        self.lock().iter().map(|known| known.place.clone()).collect()
    }

    /// Returns the paths in service.
    pub(super) fn active(&self) -> Vec<(PathId, Place)> {
        let places = self.lock();
        let active = places.iter().filter(|known| known.active);
        active.map(|known| (known.id, known.place.clone())).collect()
    }

    /// Notes that a path was taken out of service.
    pub(super) fn removed(&self, id: PathId) {
        self.lock()
            .iter_mut()
            .filter(|known| known.id == id)
            .for_each(|known| known.active = false);
    }

    /// Gives out the answers that are held back on any path, and lets those that stalled answer again
    /// when their time is over.
    pub(super) fn tick(&self) {
        self.all().iter().for_each(Place::tick);
    }

    /// Has all paths answer again.
    pub(super) fn release(&self) {
        self.all().iter().for_each(Place::release);
    }
}
