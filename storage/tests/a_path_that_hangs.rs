//! A path that stops answering: those who wait for it are told, what it was to write goes elsewhere
//! or stays in memory, its memory and space are kept until it answers, and no byte is ever wrong.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{PATIENCE, builder, eventually, memory, put, read, soon, within_patience};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::clock::Clock;
use tensortier_storage::codec::Compression;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::io::decorate::{Fault, Faulty};
use tensortier_storage::io::{EngineChoice, IoEngine};
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::path::{Condition, FilePathStore, Path, PathStore};
use tensortier_storage::store::Store;

fn calm(name: &str) -> Arc<MemoryPath> {
    memory(name, Mischief::default())
}

/// Waits until the path has something to do, and lets its deadline pass.
fn hang(path: &MemoryPath) {
    eventually("the path has something", || {
        let outstanding = path.outstanding();
        outstanding.read_bytes + outstanding.write_bytes > 0
    });
    path.hang();
}

fn assert_hung<T>(result: Result<T, Error>, path: &str) {
    let error = result.map(drop).unwrap_err();
    let named = matches!(&error, Error::PathHung { path: p, .. } if p.to_string_lossy() == path);
    assert!(named && error.kind() == ErrorKind::Io && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("does not answer"), "{error}");
}

fn is_all(store: &Store, key: &str, byte: u8) -> bool {
    read(store, key).unwrap().iter().all(|b| *b == byte)
}

/// Waits until nothing is in memory or, once all objects are deleted, on the paths.
fn ends_empty(store: &Store, paths: &[Arc<MemoryPath>]) {
    for key in store.list("") {
        store.delete(&key).unwrap();
    }
    eventually("memory is free", || store.stats().host.in_use == 0);
    eventually("nothing hangs", || store.stats().quarantined_bytes == 0);
    for path in paths {
        eventually("space is free", || path.counters().used_bytes == 0);
    }
}

#[test]
fn reads_of_it_are_told_at_once_and_their_memory_comes_back_when_it_answers() {
    let path = calm("silent");
    let store = builder(8, &[Arc::clone(&path)]).open().unwrap();
    let (first, second) = (put(&store, "first", 2, 3), put(&store, "second", 2, 4));
    store.evict("first").unwrap();
    store.evict("second").unwrap();
    path.stall();
    let waiting = [store.lease_read(&first, 0), store.lease_read(&first, 0)];
    hang(&path);
    waiting.into_iter().for_each(|ticket| assert_hung(soon(ticket), "silent"));
    // The one that was not asked for before is refused without taking memory.
    assert_hung(soon(store.lease_read(&first, 0)), "silent");
    assert_hung(soon(store.lease_write(&second, 0)), "silent");
    let stats = store.stats();
    assert_eq!((stats.quarantined_bytes, stats.host.in_use), (2 * GRANULE, 2 * GRANULE));
    assert_eq!(stats.paths[0].hung_bytes, 2 * GRANULE);
    assert_eq!(stats.counters.hung, 1);
    path.release();
    eventually("its memory comes back", || store.stats().host.in_use == 0);
    assert!(is_all(&store, "first", 3) && is_all(&store, "second", 4));
    assert_eq!(store.stats().quarantined_bytes, 0);
    ends_empty(&store, &[path]);
}

#[test]
fn what_it_was_to_write_another_path_gets_from_the_same_memory() {
    for compression in [Compression::Off, Compression::Lz4] {
        let paths = [calm("silent"), calm("other")];
        let store = builder(64, &paths).compression(compression).open().unwrap();
        let objects: Vec<_> = (0..16).map(|i| put(&store, &format!("t{i}"), 2, i)).collect();
        paths[0].stall();
        let flushing = store.clone();
        let flush = std::thread::spawn(move || flushing.flush());
        hang(&paths[0]);
        flush.join().unwrap().unwrap();
        assert!(store.stats().counters.replaced > 0);
        assert_eq!(paths[0].counters().written_bytes, 0);
        // The chunks whose writes hang are loaded afresh to be changed.
        for (i, object) in objects.iter().enumerate() {
            assert!(is_all(&store, &format!("t{i}"), i as u8));
            soon(store.lease_write(object, 0)).unwrap().fill(100 + i as u8);
        }
        assert!(store.stats().quarantined_bytes > 0);
        store.flush().unwrap();
        paths[0].release();
        eventually("its memory comes back", || store.stats().quarantined_bytes == 0);
        for i in 0..16 {
            store.evict(&format!("t{i}")).unwrap();
            assert!(is_all(&store, &format!("t{i}"), 100 + i));
        }
        // It gets chunks again and is trusted in the end.
        for round in (0..200).cycle().take(1000) {
            put(&store, &format!("more{}", round % 8), 1, round);
            store.flush().unwrap();
        }
        assert_eq!(paths[0].condition(), Condition::Good);
        ends_empty(&store, &paths);
    }
}

#[test]
fn with_no_other_path_its_chunks_stay_in_memory_and_are_only_read() {
    let path = calm("silent");
    let store = builder(16, &[Arc::clone(&path)]).open().unwrap();
    let object = put(&store, "tensor", 2, 7);
    path.stall();
    let flushing = store.clone();
    let flush = std::thread::spawn(move || flushing.flush());
    hang(&path);
    assert_hung(flush.join().unwrap(), "silent");
    assert!(is_all(&store, "tensor", 7));
    assert_hung(soon(store.lease_write(&object, 0)), "silent");
    assert_hung(store.flush(), "silent");
    assert_hung(store.evict("tensor"), "silent");
    path.release();
    eventually("the write ends late", || store.stats().quarantined_bytes == 0);
    soon(store.lease_write(&object, 0)).unwrap().fill(8);
    store.evict("tensor").unwrap();
    assert!(is_all(&store, "tensor", 8));
    ends_empty(&store, &[path]);
}

#[test]
fn another_path_that_joins_takes_what_the_silent_one_does_not() {
    let (path, other) = (calm("silent"), calm("other"));
    let store = builder(16, &[Arc::clone(&path)]).open().unwrap();
    let object = put(&store, "tensor", 2, 7);
    path.stall();
    let flushing = store.clone();
    let flush = std::thread::spawn(move || flushing.flush());
    hang(&path);
    assert_hung(flush.join().unwrap(), "silent");
    store.add_path_store(Arc::clone(&other) as Arc<dyn PathStore>).unwrap();
    store.flush().unwrap();
    soon(store.lease_write(&object, 0)).unwrap().fill(9);
    store.evict("tensor").unwrap();
    assert!(is_all(&store, "tensor", 9));
    path.release();
    ends_empty(&store, &[path, other]);
}

#[test]
fn memory_that_only_a_silent_path_keeps_is_not_waited_for() {
    let path = calm("silent");
    let builder = builder(4, &[Arc::clone(&path)]).wait_for_leases(PATIENCE * 100);
    let store = builder.open().unwrap();
    let object = put(&store, "large", 4, 1);
    store.evict("large").unwrap();
    path.stall();
    let waiting = store.lease_read(&object, 0);
    hang(&path);
    assert_hung(soon(waiting), "silent");
    let asking = store.clone();
    let refused = within_patience(move || asking.put("more", DType::U8, &[1], &[1]).map(drop));
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    assert!(error.to_string().contains("silent, which does not answer"), "{error}");
    path.release();
    eventually("its memory comes back", || store.stats().host.in_use == 0);
    put(&store, "more", 4, 2);
    assert!(is_all(&store, "more", 2));
}

#[test]
fn deleting_what_hangs_gives_memory_and_space_back_when_it_ends() {
    let paths = [calm("silent")];
    let store = builder(8, &paths).open().unwrap();
    let object = put(&store, "read", 2, 1);
    store.evict("read").unwrap();
    put(&store, "written", 2, 2);
    paths[0].stall();
    let waiting = store.lease_read(&object, 0);
    let flushing = store.clone();
    let flush = std::thread::spawn(move || flushing.flush());
    eventually("both are out", || {
        let outstanding = paths[0].outstanding();
        outstanding.read_bytes > 0 && outstanding.write_bytes > 0
    });
    store.delete("written").unwrap();
    paths[0].hang();
    assert_hung(soon(waiting), "silent");
    let _ = flush.join().unwrap();
    store.delete("read").unwrap();
    store.barrier().unwrap();
    assert_eq!(paths[0].counters().used_bytes, 4 * GRANULE, "the path may still use it");
    assert_eq!(store.stats().host.in_use, 4 * GRANULE);
    paths[0].release();
    ends_empty(&store, &paths);
}

#[test]
fn closing_returns_within_its_grace_and_names_the_path() {
    let paths = [calm("silent"), calm("other")];
    let store = builder(16, &paths).open().unwrap();
    let object = put(&store, "tensor", 2, 7);
    store.evict("tensor").unwrap();
    let both = [put(&store, "one", 2, 1), put(&store, "two", 2, 2)];
    paths.iter().for_each(|path| path.stall());
    let waiting = store.lease_read(&object, 0);
    let flushing = store.clone();
    let flush = std::thread::spawn(move || flushing.flush());
    paths.iter().for_each(|path| hang(path));
    assert!(soon(waiting).is_err() && flush.join().unwrap().is_err());
    let closing = store.clone();
    let closed = within_patience(move || closing.close(Duration::from_millis(20)));
    let error = closed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("silent"), "{error}");
    drop((object, both, store));
    paths.iter().for_each(|path| path.release());
    // What hung ends without anybody to hear of it.
    for path in &paths {
        eventually("it ends", || path.counters().hung_operations == 0);
    }
}

#[test]
fn a_read_that_fails_now_and_then_is_tried_again() {
    let path = calm("flaky");
    let store = builder(64, &[Arc::clone(&path)]).open().unwrap();
    for i in 0..16 {
        put(&store, &format!("t{i}"), 2, i);
        store.evict(&format!("t{i}")).unwrap();
    }
    path.set_mischief(Mischief { fail_read_every: 2, ..Mischief::default() });
    assert!((0..16).all(|i| is_all(&store, &format!("t{i}"), i)));
    assert_eq!(store.stats().counters.retried, 15);
    assert_eq!(store.stats().counters.loads, 16);
}

/// A path in a directory of which single operations hang: the first that is asked for after `arm`
/// was set to 1 stays out until the inner engine is released, after 2 until the outer one is.
struct Files {
    path: Arc<FilePathStore>,
    inner: Arc<Faulty>,
    outer: Arc<Faulty>,
    arm: Arc<AtomicU64>,
    clock: Clock,
    _dir: tempfile::TempDir,
}

impl Files {
    fn open() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (clock, arm) = (Clock::manual(), Arc::new(AtomicU64::new(0)));
        let mut kept = Vec::new();
        let wrap = |mut engine: Arc<dyn IoEngine>| {
            for armed in 1..=2 {
                let arm = Arc::clone(&arm);
                let decide = move |_, _: &_| {
                    let hit = arm.compare_exchange(armed, 0, Ordering::SeqCst, Ordering::SeqCst);
                    if hit.is_ok() { Fault::Hang } else { Fault::Pass }
                };
                let faulty = Arc::new(Faulty::new(engine, decide));
                kept.push(Arc::clone(&faulty));
                engine = faulty;
            }
            engine
        };
        let options = Path::new(dir.path()).deadline(Duration::from_secs(5));
        let auto = EngineChoice::Auto;
        let path = FilePathStore::open_decorated(&options, auto, clock.clone(), wrap).unwrap();
        let (outer, inner) = (kept.pop().unwrap(), kept.pop().unwrap());
        Files { path: Arc::new(path), inner, outer, arm, clock, _dir: dir }
    }

    /// Has the next operation hang, until the engine is released.
    fn arm(&self, engine: &Faulty) {
        let which = if std::ptr::eq(engine, &*self.inner) { 1 } else { 2 };
        self.arm.store(which, Ordering::SeqCst);
    }
}

#[test]
fn one_operation_that_never_ends_costs_its_memory_and_not_the_path() {
    let files = Files::open();
    let store: Arc<dyn PathStore> = files.path.clone();
    let store = Store::builder().host_budget(64 * GRANULE).path_store(store).open().unwrap();
    let (stuck, late) = (put(&store, "stuck", 2, 5), put(&store, "late", 2, 6));
    store.evict("stuck").unwrap();
    store.evict("late").unwrap();
    files.arm(&files.inner);
    let first = store.lease_read(&stuck, 0);
    eventually("it hangs", || files.inner.hanging() == 1);
    files.arm(&files.outer);
    let second = store.lease_read(&late, 0);
    eventually("it hangs", || files.outer.hanging() == 1);
    files.clock.advance(Duration::from_secs(5));
    let dir = files.path.capabilities().dir.display().to_string();
    assert_hung(soon(first), &dir);
    assert_hung(soon(second), &dir);
    files.outer.release();
    eventually("one ends", || files.path.condition() == Condition::Probation);
    // The path answers, though not all of it: what could not be read then can be read and changed.
    eventually("it is told", || store.stats().quarantined_bytes == 2 * GRANULE);
    eventually("it can be read", || read(&store, "stuck").is_ok());
    assert!(is_all(&store, "stuck", 5) && is_all(&store, "late", 6));
    let used = files.path.counters().used_bytes;
    soon(store.lease_write(&stuck, 0)).unwrap().fill(50);
    store.flush().unwrap();
    store.evict("stuck").unwrap();
    assert!(is_all(&store, "stuck", 50));
    assert_eq!(files.path.counters().used_bytes, used + 2 * GRANULE, "its old place is kept");
    for i in 0..8 {
        put(&store, &format!("t{i}"), 2, i);
        store.evict(&format!("t{i}")).unwrap();
        assert!(is_all(&store, &format!("t{i}"), i));
    }
    assert_eq!(files.path.condition(), Condition::Good);
    assert_eq!(files.path.counters().hung_operations, 1);
    files.inner.release();
    eventually("all ends", || store.stats().quarantined_bytes == 0);
    assert!(is_all(&store, "stuck", 50));
    ["stuck", "late"].into_iter().for_each(|key| store.delete(key).unwrap());
    (0..8).for_each(|i| store.delete(&format!("t{i}")).unwrap());
    eventually("space is free", || files.path.counters().used_bytes == 0);
    store.close(PATIENCE).unwrap();
}

#[test]
fn a_directory_whose_writes_hang_keeps_all_bytes_and_is_left_when_closed() {
    let files = Files::open();
    let store: Arc<dyn PathStore> = files.path.clone();
    let store = Store::builder().host_budget(64 * GRANULE).path_store(store).open().unwrap();
    put(&store, "tensor", 4, 5);
    files.arm(&files.outer);
    let flushing = store.clone();
    let flush = std::thread::spawn(move || flushing.flush());
    eventually("it hangs", || files.outer.hanging() == 1);
    files.clock.advance(Duration::from_secs(5));
    let dir = files.path.capabilities().dir.display().to_string();
    assert_hung(flush.join().unwrap(), &dir);
    assert!(is_all(&store, "tensor", 5));
    let closing = store.clone();
    let closed = within_patience(move || closing.close(Duration::from_millis(20)));
    let scratch = files.path.capabilities().scratch.clone();
    assert!(closed.unwrap_err().to_string().contains(&scratch.display().to_string()));
    assert!(scratch.exists(), "nothing is unlinked while the kernel may write");
    files.outer.release();
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Stalls, hangs and releases paths until told to stop.
fn trouble(paths: &[Arc<MemoryPath>], stop: &AtomicBool, seed: u64) {
    let mut numbers = Numbers(seed);
    while !stop.load(Ordering::SeqCst) {
        let path = &paths[numbers.below(paths.len() as u64) as usize];
        path.stall();
        std::thread::sleep(Duration::from_micros(numbers.below(2000)));
        path.hang();
        std::thread::sleep(Duration::from_micros(numbers.below(3000)));
        path.release();
        std::thread::sleep(Duration::from_micros(numbers.below(4000)));
    }
}

fn may_happen(error: &Error) -> bool {
    let expected = matches!(error, Error::PathHung { .. } | Error::Read { .. });
    expected || matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Budget)
}

/// Random calls on a store whose paths hang and answer again, against a map. Returns how many
/// transfers hung.
fn storm(paths: &[Arc<MemoryPath>], compression: Compression, seed: u64) -> u64 {
    const KEYS: u64 = 12;
    let store = builder(24, paths).compression(compression).open().unwrap();
    let mut numbers = Numbers(seed);
    let mut model: Vec<Option<u8>> = vec![None; KEYS as usize];
    let mut errors = 0;
    for _ in 0..600 {
        let index = numbers.below(KEYS) as usize;
        let (key, byte) = (format!("t{index}"), numbers.below(250) as u8);
        let bytes = (1 + index as u64 % 3) * GRANULE;
        let done = match (numbers.below(10), model[index]) {
            (0..4, None) | (0, _) => {
                let put = store.put(&key, DType::U8, &[bytes], &vec![byte; bytes as usize]);
                put.map(|_| model[index] = Some(byte))
            }
            (1..4, Some(_)) => {
                let object = store.object(&key).unwrap();
                soon(store.lease_write(&object, 0)).map(|mut lease| {
                    lease.fill(byte);
                    model[index] = Some(byte);
                })
            }
            (4..7, Some(was)) => read(&store, &key).map(|bytes| {
                assert!(bytes.iter().all(|b| *b == was), "{key} has wrong bytes");
            }),
            (7, Some(_)) => store.evict(&key),
            (8, Some(_)) => store.delete(&key).map(|()| model[index] = None),
            (9, _) => store.flush(),
            _ => Ok(()),
        };
        if let Err(error) = done {
            assert!(may_happen(&error), "{error:?}");
            errors += 1;
        }
    }
    assert!(errors < 600);
    check_all_and_end(&store, paths, &model);
    store.stats().counters.hung
}

fn check_all_and_end(store: &Store, paths: &[Arc<MemoryPath>], model: &[Option<u8>]) {
    // Until the troublemaker ends, calls may fail; what is there is right.
    for (index, was) in model.iter().enumerate() {
        let key = format!("t{index}");
        let Some(was) = was else {
            assert!(matches!(read(store, &key), Err(Error::NotFound { .. })));
            continue;
        };
        eventually("it can be read", || match read(store, &key) {
            Ok(bytes) => {
                assert!(bytes.iter().all(|b| b == was), "{key} has wrong bytes");
                true
            }
            Err(error) => !may_happen(&error),
        });
    }
    eventually("it can be flushed", || store.flush().is_ok());
    ends_empty(store, paths);
}

#[test]
fn no_byte_is_wrong_whatever_hangs() {
    let mut hung = 0;
    for seed in 0..6u64 {
        let paths: Vec<_> = (0..1 + seed % 3).map(|index| calm(&format!("path {index}"))).collect();
        let compression = [Compression::Off, Compression::Lz4][(seed / 3) as usize];
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, flag) = (paths.clone(), Arc::clone(&stop));
        let gremlin = std::thread::spawn(move || trouble(&theirs, &flag, seed));
        hung += storm(&paths, compression, seed);
        stop.store(true, Ordering::SeqCst);
        gremlin.join().unwrap();
    }
    assert!(hung > 0, "nothing hung");
}
