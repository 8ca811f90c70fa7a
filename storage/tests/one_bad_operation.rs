//! Operations that fail in the middle of others, at every moment of a small run, in the kernel or in
//! the engine: neither queue nor workers are poisoned, nothing leaks, and every byte is right after.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use common::{PATIENCE, contents, exercise, mix, read, rounds, soon};
use tensortier_storage::arena::Arena;
use tensortier_storage::clock::Clock;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Errno, Error};
use tensortier_storage::id::Class;
use tensortier_storage::io::decorate::{Fault, Faulty};
use tensortier_storage::io::{Completion, EngineChoice, EngineKind, IoEngine, Operation};
use tensortier_storage::io::{Threads, Uring};
use tensortier_storage::path::conformance as path_calls;
use tensortier_storage::path::{FilePathStore, Outstanding, Path, PathStore};
use tensortier_storage::store::Store;
use tensortier_storage::units::BytesPerSecond;

const MIB: u64 = 1 << 20;
const ERRORS: [i32; 4] = [libc::EIO, libc::ENODEV, libc::EAGAIN, libc::EINTR];

/// Counts calls or operations and says which of them fail.
#[derive(Debug, Default)]
struct Plan {
    count: AtomicU64,
    first: AtomicU64,
    fails: AtomicU64,
    /// Of those, every so many; 0 is as 1.
    period: AtomicU64,
    errno: AtomicI32,
}

impl Plan {
    /// From now on, number `first` and so many after it fail.
    fn set(&self, first: u64, fails: u64, errno: i32) {
        self.count.store(0, Ordering::SeqCst);
        self.first.store(first, Ordering::SeqCst);
        self.fails.store(fails, Ordering::SeqCst);
        self.errno.store(errno, Ordering::SeqCst);
    }

    fn next(&self) -> Result<(), Errno> {
        let (number, first) =
            (self.count.fetch_add(1, Ordering::SeqCst), self.first.load(Ordering::SeqCst));
        let period = self.period.load(Ordering::SeqCst).max(1);
        let is_bad = number >= first
            && number - first < self.fails.load(Ordering::SeqCst)
            && (number - first).is_multiple_of(period);
        if is_bad { Err(Errno(self.errno.load(Ordering::SeqCst))) } else { Ok(()) }
    }
}

/// Where something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Kernel,
    Engine,
}

fn path_over(dir: &std::path::Path, engine: Arc<dyn IoEngine>) -> Arc<FilePathStore> {
    // Capped, so that no trial runs and the first operation is the test's own.
    let cap = BytesPerSecond(100e9);
    let options = Path::new(dir).read_cap(cap).write_cap(cap);
    let (choice, clock) = (EngineChoice::Threads, Clock::system());
    Arc::new(FilePathStore::open_decorated(&options, choice, clock, |_| engine).unwrap())
}

/// Returns an engine in which what `plan` says goes wrong, or `None` where there is no such engine.
fn engine(kind: EngineKind, level: Level, plan: &Arc<Plan>) -> Option<Arc<dyn IoEngine>> {
    let of_kernel = (level == Level::Kernel).then(|| Arc::clone(plan));
    let hook = Arc::new(move |wanted| match &of_kernel {
        Some(plan) => plan.next().map(|()| wanted),
        None => Ok(wanted),
    });
    let inner: Arc<dyn IoEngine> = if kind == EngineKind::Uring {
        match Uring::start_hooked(hook) {
            Ok(ring) => Arc::new(ring),
            Err(error) => {
                eprintln!("skipped with io_uring: {error}");
                return None;
            }
        }
    } else {
        Arc::new(Threads::start_hooked(4, hook).unwrap())
    };
    if level == Level::Kernel {
        return Some(inner);
    }
    let plan = Arc::clone(plan);
    let decide = move |_, _: &Operation| plan.next().map_or_else(Fault::Fail, |()| Fault::Pass);
    Some(Arc::new(Faulty::new(inner, decide)))
}

/// Runs `test` over each engine and each place where something can go wrong.
fn everywhere(test: impl Fn(&Arc<FilePathStore>, &Plan, Level)) {
    for kind in [EngineKind::Threads, EngineKind::Uring] {
        for level in [Level::Kernel, Level::Engine] {
            let (dir, plan) = (tempfile::tempdir_in("/var/tmp").unwrap(), Arc::default());
            let Some(engine) = engine(kind, level, &plan) else { continue };
            let path = path_over(dir.path(), engine);
            test(&path, &plan, level);
            path.close(PATIENCE).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}

const BYTES: u64 = MIB + 70_000;

fn expected(i: u64) -> Vec<u8> {
    let mut bytes = contents(i, BYTES);
    bytes[5] = 99;
    bytes
}

/// Puts, evicts, reads, changes and flushes three objects of two transfers each. Returns what went
/// wrong on the way.
fn small_run(store: &Store) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut take = |result: Result<(), Error>| errors.extend(result.err());
    let key = |i: u64| format!("t{i}");
    for i in 0..3 {
        take(store.put(&key(i), DType::U8, &[BYTES], &contents(i, BYTES)).map(drop));
    }
    (0..3).for_each(|i| take(store.evict(&key(i))));
    for i in 0..3 {
        take(read(store, &key(i)).map(|all| assert!(all == contents(i, BYTES), "wrong bytes")));
    }
    for i in 0..3 {
        let object = store.object(&key(i)).unwrap();
        take(soon(store.lease_write(&object, 0)).map(|mut lease| lease[5] = 99));
    }
    take(store.flush());
    errors
}

/// Everything is as the run was to leave it, also on the path; then nothing is left.
fn all_is_right(store: &Store, path: &FilePathStore) {
    for i in 0..3 {
        let object = store.object(&format!("t{i}")).unwrap();
        soon(store.lease_write(&object, 0)).unwrap()[5] = 99;
    }
    (0..3).for_each(|i| store.evict(&format!("t{i}")).unwrap());
    for i in 0..3 {
        assert!(read(store, &format!("t{i}")).unwrap() == expected(i), "t{i}");
        store.delete(&format!("t{i}")).unwrap();
    }
    store.barrier().unwrap();
    assert_eq!(store.stats().host.in_use, 0);
    assert_eq!(path.counters().used_bytes, 0);
    assert_eq!(path.outstanding(), Outstanding::default());
}

fn store_over(path: &Arc<FilePathStore>) -> Store {
    let builder = Store::builder().host_budget(8 * MIB).chunk_bytes(2 * MIB);
    builder.path_store(Arc::clone(path) as Arc<dyn PathStore>).open().unwrap()
}

#[test]
fn one_that_fails_once_is_made_good_at_every_moment() {
    everywhere(|path, plan, level| {
        let store = store_over(path);
        plan.set(u64::MAX, 0, 0);
        assert!(small_run(&store).is_empty());
        let operations = plan.count.load(Ordering::SeqCst);
        assert!(operations >= 12, "{operations}");
        all_is_right(&store, path);
        // By default each moment sees half of the errors.
        let step = if rounds(1) > 1 { 1 } else { 2 };
        for (i, errno) in (0..).zip(ERRORS) {
            for k in (i % step..operations).step_by(step as usize) {
                let before = store.stats().counters;
                plan.set(k, 1, errno);
                let errors = small_run(&store);
                assert!(errors.is_empty(), "{errno} at {k}: {errors:?}");
                plan.set(u64::MAX, 0, 0);
                all_is_right(&store, path);
                let since = store.stats().counters.since(&before);
                let passes = level == Level::Kernel && [libc::EAGAIN, libc::EINTR].contains(&errno);
                let tried_again = since.retried + since.replaced;
                assert_eq!(tried_again > 0, !passes, "{errno} at {k}: {since:?}");
            }
        }
        drop(store);
    });
}

#[test]
fn from_any_moment_on_all_may_fail_until_they_do_not() {
    everywhere(|path, plan, level| {
        let store = store_over(path);
        let step = if rounds(1) > 1 { 1 } else { 3 };
        for errno in ERRORS {
            // The kernel is asked again for about a second before these two count as failures.
            if level == Level::Kernel && [libc::EAGAIN, libc::EINTR].contains(&errno) {
                continue;
            }
            for k in (0..15).step_by(step) {
                plan.set(k, u64::MAX, errno);
                let errors = small_run(&store);
                plan.set(u64::MAX, 0, 0);
                assert!(!errors.is_empty(), "{errno} from {k} on");
                for error in errors {
                    let says = error.to_string().contains(&Errno(errno).to_string());
                    let typed = matches!(error, Error::Read { .. } | Error::NoSpace { .. });
                    assert!(typed && says, "{errno} from {k} on: {error}");
                }
                store.flush().unwrap();
                all_is_right(&store, path);
            }
        }
        drop(store);
    });
}

#[test]
fn every_so_many_may_fail_for_as_long_as_they_like() {
    everywhere(|path, plan, level| {
        let store = store_over(path);
        for (i, errno) in (0..).zip(ERRORS) {
            let passes = level == Level::Kernel && [libc::EAGAIN, libc::EINTR].contains(&errno);
            for k in 2..12 {
                // By default each period sees half of the errors.
                if rounds(1) == 1 && (k + i) % 2 == 1 {
                    continue;
                }
                plan.period.store(k, Ordering::SeqCst);
                plan.set(0, u64::MAX, errno);
                for error in small_run(&store) {
                    let typed = matches!(error, Error::Read { .. } | Error::NoSpace { .. });
                    assert!(typed && !passes, "every {k}th {errno}: {error}");
                }
                plan.set(u64::MAX, 0, 0);
                store.flush().unwrap();
                all_is_right(&store, path);
            }
        }
        drop(store);
    });
}

#[test]
fn a_request_of_which_one_part_fails_fails_whole_and_alone() {
    const PARTS: u64 = 6;
    everywhere(|path, plan, level| {
        let arena = Arena::new(32 * MIB).unwrap();
        let (extent, beside) = (path.reserve(PARTS * MIB).unwrap(), path.reserve(2 * MIB).unwrap());
        let frame = |seed| path_calls::pattern(&arena, PARTS * MIB, seed);
        plan.set(u64::MAX, 0, 0);
        path_calls::write(&**path, &extent, frame(1)).unwrap();
        for k in 0..PARTS {
            plan.set(k, 1, libc::EIO);
            // Another request comes behind and must not be drawn into it.
            let (tell, told) = mpsc::channel();
            let failed = path_calls::write(&**path, &extent, frame(2));
            assert_eq!(failed, Err(Errno(libc::EIO)));
            let other = path_calls::pattern(&arena, 2 * MIB, k).share();
            let done = Box::new(move |result| tell.send(result).unwrap());
            path.write(&beside, other.whole(), Class::WriteBack, done);
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Ok(()));
            drop(other);
            assert_eq!(arena.usage().in_use, 0, "memory comes back");

            path_calls::write(&**path, &extent, frame(k)).unwrap();
            plan.set(k, 1, libc::EIO);
            let whole = PARTS * MIB;
            let failed = path_calls::read(&**path, &arena, &extent, 0, whole).unwrap_err();
            assert_eq!(failed.errno, Errno(libc::EIO));
            if level == Level::Engine {
                assert_eq!(failed.offset, extent.offset() + k * MIB);
            }
            assert_eq!(arena.usage().in_use, 0, "memory comes back");
            let back = path_calls::read(&**path, &arena, &extent, 0, whole).unwrap();
            assert!(*back == *frame(k));
            let back = path_calls::read(&**path, &arena, &beside, 0, 2 * MIB).unwrap();
            assert!(*back == *path_calls::pattern(&arena, 2 * MIB, k));
        }
        assert_eq!(path.outstanding(), Outstanding::default());
        path.free(extent);
        path.free(beside);
        assert_eq!(path.counters().used_bytes, 0);
    });
}

type Answer = Box<dyn FnOnce() + Send>;

/// An engine whose completions are held back and given out some at a time, last first or in an order
/// that follows from a seed.
struct Disorder {
    inner: Arc<dyn IoEngine>,
    held: Arc<Mutex<Vec<Answer>>>,
    _alive: Arc<()>,
}

impl std::fmt::Debug for Disorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disorder").finish_non_exhaustive()
    }
}

impl Disorder {
    fn new(inner: Arc<dyn IoEngine>, seed: Option<u64>) -> Self {
        let (held, alive) = (Arc::<Mutex<Vec<Answer>>>::default(), Arc::new(()));
        let (shelf, lives): (_, Weak<()>) = (Arc::clone(&held), Arc::downgrade(&alive));
        std::thread::spawn(move || {
            for round in 0.. {
                let ends = lives.strong_count() == 0;
                let mut answers = std::mem::take(&mut *shelf.lock().unwrap());
                match seed {
                    None => answers.reverse(),
                    Some(seed) => (1..answers.len()).rev().for_each(|i| {
                        let other = mix(seed ^ round ^ (i as u64) << 32) % (i as u64 + 1);
                        answers.swap(i, other as usize);
                    }),
                }
                answers.into_iter().for_each(|answer| answer());
                if ends {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Disorder { inner, held, _alive: alive }
    }
}

impl IoEngine for Disorder {
    fn submit(&self, operation: Operation) {
        let (held, done) = (Arc::clone(&self.held), operation.done);
        let done = Box::new(move |completion: Completion| {
            held.lock().unwrap().push(Box::new(move || done(completion)));
        });
        self.inner.submit(Operation { done, ..operation });
    }

    fn kind(&self) -> EngineKind {
        self.inner.kind()
    }
}

#[test]
fn completions_in_any_order_reach_their_owners() {
    let seeds = (0..rounds(2)).map(Some);
    for seed in seeds.chain([None]) {
        for kind in [EngineKind::Threads, EngineKind::Uring] {
            let (dir, plan) = (tempfile::tempdir_in("/var/tmp").unwrap(), Arc::default());
            let Some(inner) = engine(kind, Level::Kernel, &plan) else { continue };
            let path = path_over(dir.path(), Arc::new(Disorder::new(inner, seed)));
            each_gets_its_own(&path);
            let store = store_over(&path);
            exercise(&store);
            store.close(PATIENCE).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}

/// Many reads at once, each of an extent of its own bytes.
fn each_gets_its_own(path: &Arc<FilePathStore>) {
    const COUNT: u64 = 24;
    let arena = Arena::new(COUNT * MIB / 2 + MIB).unwrap();
    let pattern = |seed| path_calls::pattern(&arena, MIB / 2, seed);
    let extents: Vec<_> = (0..COUNT).map(|_| path.reserve(MIB / 2).unwrap()).collect();
    let (tell, told) = mpsc::channel();
    for (seed, extent) in (0..).zip(&extents) {
        let tell = tell.clone();
        let done = Box::new(move |result| tell.send((seed, result)).unwrap());
        path.write(extent, pattern(seed).share().whole(), Class::WriteBack, done);
    }
    drop(tell);
    assert!(told.iter().filter(|(_, result)| result.is_ok()).count() == COUNT as usize);
    let (tell, told) = mpsc::channel();
    let mut guards = Vec::new();
    for (seed, extent) in (0..).zip(&extents) {
        let (guard, into) = arena.try_alloc(MIB / 2).unwrap().unwrap().fill_from_outside();
        guards.push(Some(guard));
        let tell = tell.clone();
        let done = Box::new(move |result| tell.send((seed, result)).unwrap());
        path.read(extent, 0, into, Class::Demand, done);
    }
    drop(tell);
    for (seed, result) in told {
        result.unwrap();
        let back = guards[seed as usize].take().unwrap().try_finish().unwrap();
        assert!(*back == *pattern(seed), "{seed} got another's bytes");
    }
    assert!(guards.iter().all(Option::is_none), "every read is answered");
    extents.into_iter().for_each(|extent| path.free(extent));
}
