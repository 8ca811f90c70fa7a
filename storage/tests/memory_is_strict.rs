//! The budget is never exceeded; who cannot have memory is told at once by whom it is held, who can
//! have it soon waits.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::time::Duration;

use common::{builder, eventually, memory, one_chunk, put, read, soon, within_patience};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::id::Tier;
use tensortier_storage::path::PathStore as _;
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::Store;

fn slow(millis: u64) -> Mischief {
    Mischief { delay: Duration::from_millis(millis), ..Mischief::default() }
}

fn in_use(store: &Store) -> u64 {
    store.stats().host.in_use / GRANULE
}

#[test]
fn exhaustion_is_immediate_and_names_the_holders() {
    let store = builder(4, &[memory("path", Mischief::default())]).open().unwrap();
    let a = put(&store, "held/a", 2, 1);
    let b = one_chunk(&store, "held/b", 2);
    let view = soon(store.lease_read(&a, 0)).unwrap().into_bytes();
    let mut lease = soon(store.lease_write(&b, 0)).unwrap();
    lease[0] = 1;
    let wanted = one_chunk(&store, "wanted", 1);
    let Err(Error::BudgetExhausted { tier, budget, needed, free, largest_run, mut holders }) =
        soon(store.lease_read(&wanted, 0)).map(drop)
    else {
        panic!("the budget is held")
    };
    assert_eq!((tier, budget.0, needed.0), (Tier::Host, 4 * GRANULE, GRANULE));
    assert_eq!([free.0, largest_run.0], [0, 0]);
    holders.sort();
    assert!(holders[0].contains("held/a") && holders[1].contains("held/b"), "{holders:?}");
    let put = store.put("more", DType::U8, &[1], &[1]).unwrap_err();
    assert_eq!(put.kind(), ErrorKind::Budget);
    assert_eq!(store.object("more").unwrap_err().kind(), ErrorKind::NotFound);
    drop(view);
    assert_eq!(soon(store.lease_read(&wanted, 0)).unwrap().len(), GRANULE as usize);
    drop(lease);
}

#[test]
fn a_put_that_fits_writes_nothing_and_one_that_does_not_little_more_than_it_lacks() {
    let written = |sizes: &[u64]| {
        let path = memory("path", Mischief::default());
        let store = builder(32, std::slice::from_ref(&path)).chunk_bytes(GRANULE).open().unwrap();
        for (i, granules) in sizes.iter().enumerate() {
            let bytes = vec![7; (granules * GRANULE) as usize];
            store.put(&i.to_string(), DType::U8, &[granules * GRANULE], &bytes).unwrap();
        }
        store.barrier().unwrap();
        path.counters().written_bytes / GRANULE
    };
    assert_eq!(written(&[20, 12]), 0);
    let more = written(&[40]);
    assert!((8..=16).contains(&more), "{more}");
}

#[test]
fn a_patient_store_waits_for_other_threads_leases_and_not_for_ever() {
    let patience = Duration::from_millis(300);
    let paths = [memory("path", Mischief::default())];
    let store = builder(2, &paths).wait_for_leases(patience).open().unwrap();
    let (object, other) = (one_chunk(&store, "held", 2), one_chunk(&store, "other", 1));
    let held = soon(store.lease_write(&object, 0)).unwrap();
    let error = soon(store.lease_read(&other, 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
    let waiting = store.lease_read(&other, 0);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!waiting.is_ready());
    drop(held);
    assert_eq!(waiting.wait().unwrap().len(), 4096);
}

#[test]
fn what_can_never_fit_is_told_at_once() {
    let store = builder(4, &[memory("path", Mischief::default())]).open().unwrap();
    let error = soon(store.lease_read(&one_chunk(&store, "large", 5), 0)).unwrap_err();
    assert!(matches!(error, Error::BudgetTooSmall { .. }), "{error}");
    let bytes = vec![1; 5 * GRANULE as usize];
    let error = store.put("put", DType::U8, &[5 * GRANULE], &bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
}

#[test]
fn a_demand_waits_for_io_that_frees_enough() {
    for checksums in [false, true] {
        let store = builder(4, &[memory("slow", slow(30))]).checksums(checksums).open().unwrap();
        let held = put(&store, "held", 1, 9);
        let held = soon(store.lease_read(&held, 0)).unwrap();
        for round in 0..4u8 {
            put(&store, &format!("t{round}"), 3, round);
        }
        drop(held);
        (0..4).for_each(|i| assert_eq!(read(&store, &format!("t{i}")).unwrap()[0], i));
    }
}

#[test]
fn a_demand_waits_for_a_flush_that_began_first() {
    // The flush takes all dirty chunks; while they are written none of them may leave.
    let store = builder(6, &[memory("slow", slow(3))]).open().unwrap();
    for round in 0..20u8 {
        (0..6).for_each(|i| drop(put(&store, &format!("t{i}"), 1, round)));
        let flushing = store.clone();
        let flush = std::thread::spawn(move || flushing.flush());
        let object = one_chunk(&store, &format!("late {round}"), 2);
        assert_eq!(soon(store.lease_read(&object, 0)).unwrap()[0], 0);
        flush.join().unwrap().unwrap();
    }
}

#[test]
fn free_memory_in_pieces_is_made_one() {
    let store = builder(16, &[memory("path", Mischief::default())]).open().unwrap();
    (0..16).for_each(|i| drop(put(&store, &format!("t{i}"), 1, i)));
    store.flush().unwrap();
    (0..16).step_by(2).for_each(|i| store.delete(&format!("t{i}")).unwrap());
    put(&store, "eight", 8, 99);
    let stats = store.stats();
    assert_eq!((stats.counters.loads, stats.host.in_use), (0, 16 * GRANULE));
    store.delete("eight").unwrap();
    (1..16).step_by(2).for_each(|i| {
        assert_eq!(read(&store, &format!("t{i}")).unwrap()[4095], i);
    });
    assert_eq!(store.stats().counters.loads, 0, "all stayed in memory");
    assert!(stats.counters.moves > 0);
}

#[test]
fn holes_smaller_than_any_frame_are_made_one() {
    let store = builder(12, &[memory("path", Mischief::default())]).open().unwrap();
    for i in 0..4 {
        put(&store, &format!("two {i}"), 2, i);
        put(&store, &format!("one {i}"), 1, 9);
    }
    (0..4).for_each(|i| store.delete(&format!("one {i}")).unwrap());
    put(&store, "four", 4, 99);
    assert!((0..4).all(|i| read(&store, &format!("two {i}")).unwrap().iter().all(|b| *b == i)));
    let counters = store.stats().counters;
    assert_eq!((counters.loads, counters.write_backs), (0, 0), "all stayed in memory");
}

#[test]
fn prefetching_everything_does_not_stand_in_the_way_of_a_demand() {
    let store = builder(8, &[memory("path", slow(1))]).open().unwrap();
    let objects: Vec<_> = (0..40).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    (0..40).for_each(|i| store.evict(&format!("t{i}")).unwrap());
    objects.iter().for_each(|object| store.prefetch(object).unwrap());
    for (i, object) in objects.iter().enumerate().rev() {
        assert_eq!(usize::from(soon(store.lease_read(object, 0)).unwrap()[7]), i);
    }
    // What was foretold has happened: nothing is loaded for it again.
    store.barrier().unwrap();
    let loads = store.stats().counters.loads;
    std::thread::sleep(Duration::from_millis(20));
    store.barrier().unwrap();
    assert_eq!(store.stats().counters.loads, loads);
    // Each was loaded at most once ahead and once on demand.
    assert!(loads <= 80, "{loads}");
}

#[test]
fn dropped_tickets_give_everything_back() {
    let store = builder(4, &[memory("path", slow(5))]).open().unwrap();
    let objects: Vec<_> = (0..16).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    (0..16).for_each(|i| store.evict(&format!("t{i}")).unwrap());
    let loads = store.stats().counters.loads;
    for object in &objects {
        drop(store.lease_read(object, 0));
        drop(store.lease_write(object, 0));
    }
    // What was not yet begun is not begun for nobody.
    (0..16).for_each(|i| store.evict(&format!("t{i}")).unwrap());
    eventually("loads under way end", || {
        (0..16).for_each(|i| store.evict(&format!("t{i}")).unwrap());
        in_use(&store) == 0
    });
    assert!(store.stats().counters.loads - loads <= 16);
    assert_eq!(store.stats().counters.write_backs, 16, "nobody wrote");
    let all: Vec<_> =
        objects[..4].iter().map(|object| soon(store.lease_write(object, 0))).collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn a_deleted_object_that_waited_for_memory_is_gone() {
    let store = builder(2, &[memory("path", slow(10))]).open().unwrap();
    put(&store, "wanted", 2, 1);
    store.evict("wanted").unwrap();
    let wanted = store.object("wanted").unwrap();
    for _ in 0..3 {
        put(&store, "dirty", 2, 2);
        let ticket = store.lease_read(&wanted, 0);
        let _ = store.delete("wanted");
        let answer = soon(ticket).map(drop).map_err(|error| error.kind());
        assert_eq!(answer, Err(ErrorKind::NotFound));
    }
    assert_eq!(read(&store, "dirty").unwrap()[0], 2);
}

#[test]
fn views_of_more_than_the_budget_are_refused_and_not_waited_for() {
    let builder = builder(4, &[memory("path", Mischief::default())]);
    let store = builder.chunk_bytes(GRANULE).open().unwrap();
    let bytes: Vec<u8> = (0..16 * GRANULE).map(|i| (i / GRANULE) as u8).collect();
    store.put("long", DType::U8, &[bytes.len() as u64], &bytes).unwrap();
    let asking = store.clone();
    let parts = within_patience(move || asking.get("long").unwrap().collect::<Vec<_>>());
    assert!(parts[..3].iter().all(Result::is_ok));
    let failed = parts.iter().find_map(|part| part.as_ref().err()).unwrap();
    assert_eq!(failed.kind(), ErrorKind::Budget);
    drop(parts);
    assert_eq!(read(&store, "long").unwrap(), bytes);
}

#[test]
fn memory_is_taken_for_what_is_asked_and_not_for_rounder_sizes() {
    let builder = builder(8192, &[memory("path", Mischief::default())]);
    let store = builder.chunk_bytes(GRANULE * 256).open().unwrap();
    let mut asked = 0;
    // 20.4 MiB, and what no power of two is near.
    for (i, bytes) in (0..).zip([21_390_951_u64, 4_097, 1_048_577, 3_000_001]) {
        store.put(&format!("t{i}"), DType::U8, &[bytes], &vec![i; bytes as usize]).unwrap();
        asked += bytes;
        let waste = store.stats().host.in_use - asked;
        assert!(waste < u64::from(i + 1) * GRANULE, "{waste} bytes more than asked for");
    }
    (0..4).for_each(|i| store.delete(&format!("t{i}")).unwrap());
    eventually("all is given back", || in_use(&store) == 0);
}
