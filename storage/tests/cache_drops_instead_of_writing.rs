//! Reproducible objects are dropped where others are written: they cost no I/O, what was dropped says
//! so, and objects of the other kind in the same store lose nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::time::Duration;

use common::{block_on, builder, memory, pattern, put, read, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::{Put, Store};

fn store(granules: u64) -> Store {
    builder(granules, &[memory("path", Mischief::default())]).open().unwrap()
}

fn is_dropped<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(error @ Error::Dropped { .. }) if error.kind() == ErrorKind::NotFound)
}

#[test]
fn a_cache_needs_no_path_and_forgets_the_oldest() {
    let cache = Store::builder().host_budget(8 * GRANULE).cache(true).open().unwrap();
    for i in 0..20u8 {
        put(&cache, &format!("t{i}"), 1, i);
    }
    let kept: Vec<_> = (0..20).filter(|i| cache.contains(&format!("t{i}"))).collect();
    assert_eq!(kept, (12..20).collect::<Vec<_>>());
    assert!((12..20u8).all(|i| read(&cache, &format!("t{i}")).unwrap()[4095] == i));
    assert!(is_dropped(read(&cache, "t0")));
    let stat = cache.stat("t0").unwrap();
    assert!(stat.reproducible);
    assert_eq!((stat.dropped_bytes, stat.host_bytes, stat.stored_bytes), (4096, 0, 0));
    put(&cache, "t0", 1, 7);
    assert_eq!(read(&cache, "t0").unwrap(), [7; 4096]);
    let counters = cache.stats().counters;
    assert_eq!((counters.write_backs, counters.written, counters.loads), (0, 0, 0));
    // An object of the other kind has nowhere to go, and is not lost for that.
    let kept = cache.caching(false);
    (0..8).for_each(|i| drop(put(&kept, &format!("kept {i}"), 1, i)));
    assert_eq!(kept.put("more", DType::U8, &[1], &[1]).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!((0..8).all(|i| read(&kept, &format!("kept {i}")).unwrap()[0] == i));
}

#[test]
fn both_kinds_live_in_one_store() {
    let store = store(8);
    let cache = store.caching(true);
    for i in 0..12u8 {
        put(&store, &format!("kept {i}"), 1, i);
        put(&cache, &format!("page {i}"), 1, i);
    }
    for i in 0..12u8 {
        assert_eq!(read(&store, &format!("kept {i}")).unwrap(), [i; 4096]);
        match read(&store, &format!("page {i}")) {
            Ok(bytes) => assert_eq!(bytes, [i; 4096]),
            error => assert!(is_dropped(error)),
        }
    }
    store.flush().unwrap();
    let stats = store.stats();
    assert_eq!(stats.counters.written, 12, "the kept ones alone");
    assert_eq!(stats.paths[0].used_bytes, 12 * GRANULE);
}

#[test]
fn leases_and_views_keep_a_page_and_its_end_may_drop_it() {
    let store = store(4);
    let cache = store.caching(true);
    let page = put(&cache, "page", 2, 5);
    let view = soon(store.lease_read(&page, 0)).unwrap().into_bytes();
    (0..6).for_each(|i| drop(put(&store, &format!("t{i}"), 2, i)));
    store.evict(&page).unwrap();
    assert!(store.contains("page") && view.iter().all(|byte| *byte == 5));
    drop(view);
    let mut lease = soon(store.lease_write(&page, 0)).unwrap();
    lease.fill(6);
    drop(lease);
    store.flush().unwrap();
    assert_eq!(page.stat().stored_bytes, 0);
    store.evict(&page).unwrap();
    assert!(is_dropped(soon(store.lease_read(&page, 0)).map(drop)));
    assert!(is_dropped(soon(store.lease_write(&page, 0)).map(drop)));
    assert!(is_dropped(store.write_range(&page, 0..1, &[1])));
    store.prefetch(&page).unwrap();
    store.rename(&page, "other").unwrap();
    store.delete("other").unwrap();
    assert_eq!(soon(store.lease_read(&page, 0)).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn what_was_never_written_is_zeros_and_not_dropped() {
    let store = store(4);
    let page = store.caching(true).create("page", DType::F32, &[1024]).unwrap();
    assert_eq!(read(&store, "page").unwrap(), [0; 4096]);
    store.evict(&page).unwrap();
    assert!(store.contains(&page));
    assert_eq!(read(&store, "page").unwrap(), [0; 4096]);
    soon(store.lease_write(&page, 0)).unwrap().unchanged();
    store.evict(&page).unwrap();
    assert_eq!(read(&store, "page").unwrap(), [0; 4096]);
}

#[test]
fn a_page_of_many_chunks_is_missed_as_a_whole() {
    let builder = builder(8, &[memory("path", Mischief::default())]).chunk_bytes(GRANULE);
    let store = builder.open().unwrap();
    let cache = store.caching(true);
    let bytes = pattern(5 * 4096 + 3, 1);
    let page = cache.put("page", DType::U8, &[bytes.len() as u64], &bytes).unwrap();
    let last = soon(store.lease_read(&page, 5)).unwrap();
    store.evict(&page).unwrap();
    assert_eq!(page.stat().dropped_bytes, 5 * GRANULE);
    assert!(!store.contains("page"));
    let Err(Error::Dropped { key, chunk }) = read(&store, "page") else { panic!("it is there") };
    assert_eq!((&*key, chunk), ("page", 0));
    assert_eq!(&*last, &bytes[5 * 4096..]);
    // A batch goes on behind what was dropped.
    put(&store, "kept", 1, 9);
    let (mut a, mut b) = (vec![0; bytes.len()], vec![0; 4096]);
    let got = store.get_into_many([("page", &mut a), ("kept", &mut b)]);
    assert!(got[0].is_err() && got[1].is_ok() && b == [9; 4096]);
    let again = Put::new("page", DType::U8, &[bytes.len() as u64], bytes.clone());
    assert!(block_on(cache.put_many_async(vec![again])).iter().all(Result::is_ok));
    assert_eq!(read(&store, "page").unwrap(), bytes);
}

#[test]
fn a_schedule_lets_pages_go_without_writing_them() {
    let store = store(4);
    let cache = store.caching(true);
    let objects: Vec<_> = (0..8).map(|i| put(&cache, &format!("t{i}"), 1, i)).collect();
    let schedule = store.schedule();
    schedule.declare(&objects, &objects, GRANULE).unwrap();
    for (i, object) in objects.iter().enumerate() {
        match soon(store.lease_write(object, 0)) {
            Ok(mut lease) => lease[0] = i as u8,
            error => assert!(is_dropped(error.map(drop))),
        }
    }
    schedule.end();
    store.barrier().unwrap();
    assert_eq!(store.stats().counters.write_backs, 0);
    assert!(objects.iter().any(|object| !store.contains(object)));
}

#[test]
fn readers_of_pages_under_pressure_see_whole_pages_or_none() {
    let slow = Mischief { delay: Duration::from_micros(100), ..Mischief::default() };
    let store = builder(6, &[memory("path", slow)]).open().unwrap();
    let cache = store.caching(true);
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (store, cache) = (&store, &cache);
            scope.spawn(move || {
                for round in 0..200u8 {
                    let key = format!("page {}", round % 5);
                    let mut into = vec![0; 4096];
                    match store.get_into(&key, &mut into) {
                        Ok(()) => assert!(into.iter().all(|byte| *byte == into[0]), "{key}"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
                    }
                    if round % 3 == thread {
                        put(cache, &key, 1, round);
                        put(store, &format!("kept {thread}"), 1, round);
                        let kept = read(store, &format!("kept {thread}")).unwrap();
                        assert_eq!(kept, [round; 4096]);
                    }
                }
            });
        }
    });
}
