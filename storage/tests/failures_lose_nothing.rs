//! Paths that fail, fill up and corrupt cost no byte: what one refuses another gets, what none takes
//! stays in memory, and what cannot be read is an error that names it, never wrong bytes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;

use common::{PATIENCE, builder, memory, put, read, soon, within_patience};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::path::{Path, PathStore};
use tensortier_storage::store::Store;

const FAILING: Mischief = Mischief {
    quota_bytes: 0,
    fail_write_every: 1,
    fail_read_every: 0,
    flip_read_every: 0,
    reorder: 0,
    delay: std::time::Duration::ZERO,
};

fn full(granules: u64) -> Mischief {
    Mischief { quota_bytes: granules * GRANULE, ..Mischief::default() }
}

fn used(path: &Arc<MemoryPath>) -> u64 {
    path.counters().used_bytes
}

#[test]
fn what_one_path_refuses_another_gets() {
    // More seldom than there are chunks on their way at a time: none fails there twice.
    let paths = [
        memory("broken", FAILING),
        memory("flaky", Mischief { fail_write_every: 7, reorder: 2, ..Mischief::default() }),
    ];
    let store = builder(6, &paths).open().unwrap();
    for i in 0..40 {
        put(&store, &format!("t{i}"), 1 + u64::from(i) % 3, i);
    }
    store.flush().unwrap();
    assert!(store.stats().counters.replaced > 0);
    for i in 0..40 {
        assert!(read(&store, &format!("t{i}")).unwrap().iter().all(|byte| *byte == i));
        store.delete(&format!("t{i}")).unwrap();
    }
    store.barrier().unwrap();
    assert_eq!((used(&paths[0]), used(&paths[1]), store.stats().host.in_use), (0, 0, 0));
}

#[test]
fn when_all_paths_are_full_the_bytes_stay_and_the_error_names_the_paths() {
    let paths = [memory("first/path", full(2)), memory("second/path", full(1))];
    let store = builder(8, &paths).open().unwrap();
    for i in 0..8 {
        put(&store, &format!("t{i}"), 1, i);
    }
    let error = store.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let text = error.to_string();
    assert!(text.contains("first/path") && text.contains("second/path"), "{text}");
    // New contents would need what cannot leave: told at once, nothing overwritten.
    let bytes = vec![9; 4 * GRANULE as usize];
    let error = store.put("more", DType::U8, &[4 * GRANULE], &bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    for i in 0..8 {
        assert!(read(&store, &format!("t{i}")).unwrap().iter().all(|byte| *byte == i));
    }
    store.delete("t0").unwrap();
    paths[1].set_mischief(full(9));
    store.flush().unwrap();
    put(&store, "more", 4, 9);
    for i in 1..8 {
        assert!(read(&store, &format!("t{i}")).unwrap().iter().all(|byte| *byte == i));
    }
}

#[test]
fn freed_space_is_used_at_once() {
    let path = memory("small", full(2));
    let store = builder(4, &[path]).open().unwrap();
    for i in 0..4 {
        put(&store, &format!("t{i}"), 1, i);
    }
    assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    for i in 0..4 {
        store.delete(&format!("t{i}")).unwrap();
    }
    put(&store, "new", 2, 5);
    store.evict("new").unwrap();
    assert!(read(&store, "new").unwrap().iter().all(|byte| *byte == 5));
}

#[test]
fn a_dead_path_is_an_error_and_not_an_endless_try() {
    for checksums in [false, true] {
        let path = memory("dead", FAILING);
        let store = builder(3, &[Arc::clone(&path)]).checksums(checksums).open().unwrap();
        (0..3).for_each(|i| drop(put(&store, &format!("t{i}"), 1, i)));
        let asking = store.clone();
        let answer = within_patience(move || asking.put("more", DType::U8, &[1], &[1]).map(|_| ()));
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.evict("t1").unwrap_err().kind(), ErrorKind::NoSpace);
        path.set_mischief(Mischief::default());
        store.flush().unwrap();
        put(&store, "more", 1, 7);
        (0..3).for_each(|i| assert_eq!(read(&store, &format!("t{i}")).unwrap()[9], i));
    }
}

#[test]
fn a_failed_read_is_an_error_and_a_later_one_succeeds() {
    let path = memory("reads fail", Mischief::default());
    let store = builder(8, &[Arc::clone(&path)]).open().unwrap();
    let object = put(&store, "tensor", 2, 3);
    store.evict("tensor").unwrap();
    path.set_mischief(Mischief { fail_read_every: 1, ..Mischief::default() });
    let waiting: Vec<_> = (0..3).map(|_| store.lease_read(&object, 0)).collect();
    for ticket in waiting {
        let error = soon(ticket).map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::Read { key, chunk: 0, .. } if key == "tensor"),
            "{error:?}"
        );
        assert!(error.is_retryable() && error.to_string().contains("reads fail"), "{error}");
    }
    assert_eq!(store.stats().host.in_use, 0);
    path.set_mischief(Mischief::default());
    assert!(read(&store, "tensor").unwrap().iter().all(|byte| *byte == 3));
}

#[test]
fn a_flipped_bit_is_named_and_never_returned() {
    let path = memory("flips", Mischief::default());
    let store = builder(256, &[Arc::clone(&path)]).open().unwrap();
    for i in 0..4u8 {
        put(&store, &format!("t{i}"), 100, i);
        store.evict(&format!("t{i}")).unwrap();
    }
    path.set_mischief(Mischief { flip_read_every: 2, ..Mischief::default() });
    let answers: Vec<_> = (0..4).map(|i| read(&store, &format!("t{i}"))).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 2);
    for (i, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(bytes) => assert!(bytes.iter().all(|byte| usize::from(*byte) == i)),
            Err(error) => assert!(matches!(error, Error::Corrupt { block: 0, .. }), "{error:?}"),
        }
    }
    path.set_mischief(Mischief::default());
    (0..4).for_each(|i| drop(store.evict(&format!("t{i}"))));
    path.corrupt_all();
    for i in 0..4 {
        // The middle of 400 KiB lies in the first block of 256 KiB.
        let error = read(&store, &format!("t{i}")).unwrap_err();
        let named = matches!(&error, Error::Corrupt { key, block: 0, expected, actual, .. }
            if *key == format!("t{i}") && expected != actual);
        assert!(named && error.kind() == ErrorKind::Corrupt, "{error:?}");
    }
    assert_eq!(store.stats().host.in_use, 0);
    put(&store, "t0", 1, 1);
    assert_eq!(read(&store, "t0").unwrap()[0], 1);
}

#[test]
fn deleting_what_no_path_takes_gives_its_old_space_back() {
    let path = memory("turns bad", Mischief::default());
    let store = builder(8, &[Arc::clone(&path)]).open().unwrap();
    for _ in 0..50 {
        let object = put(&store, "tensor", 2, 1);
        store.flush().unwrap();
        soon(store.lease_write(&object, 0)).unwrap().fill(2);
        path.set_mischief(FAILING);
        let flushing = store.clone();
        let flush = std::thread::spawn(move || flushing.flush());
        store.delete("tensor").unwrap();
        let flushed = flush.join().unwrap().map_err(|error| error.kind());
        assert!(matches!(flushed, Ok(()) | Err(ErrorKind::NoSpace)), "{flushed:?}");
        common::eventually("its space is free", || used(&path) == 0);
        common::eventually("its memory is free", || store.stats().host.in_use == 0);
        path.set_mischief(Mischief::default());
    }
}

#[test]
fn a_full_directory_is_an_error_until_something_is_deleted() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let quota = tensortier_storage::units::Bytes(64 * GRANULE);
    let path = Path::new(dir.path()).quota(quota);
    let store = Store::builder().host_budget(128 * GRANULE).path(path).open().unwrap();
    put(&store, "fits", 40, 1);
    put(&store, "does not", 40, 2);
    assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(read(&store, "does not").unwrap().iter().all(|byte| *byte == 2));
    store.delete("fits").unwrap();
    store.flush().unwrap();
    store.evict("does not").unwrap();
    assert!(read(&store, "does not").unwrap().iter().all(|byte| *byte == 2));
    store.close(PATIENCE).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
