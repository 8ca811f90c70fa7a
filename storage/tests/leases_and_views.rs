//! Leases and views keep their bytes whatever happens to the object, the key and the store; tickets
//! can be waited for, awaited, dropped.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, block_on, builder, eventually, memory, one_chunk, pattern, put, read, soon,
};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::Store;

fn store(granules: u64, delay: Duration) -> Store {
    let mischief = Mischief { delay, ..Mischief::default() };
    builder(granules, &[memory("path", mischief)]).open().unwrap()
}

#[test]
fn views_outlive_delete_replace_rename_and_close() {
    let store = store(16, Duration::ZERO);
    let object = put(&store, "a", 1, 1);
    let lease = soon(store.lease_read(&object, 0)).unwrap();
    let view = store.get("a").unwrap().next().unwrap().unwrap();
    put(&store, "a", 1, 2);
    assert_eq!(read(&store, "a").unwrap()[0], 2);
    store.rename("a", "b").unwrap();
    store.delete("b").unwrap();
    store.barrier().unwrap();
    // Nobody gets a new lease of what was replaced.
    let error = soon(store.lease_read(&object, 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    eventually("only what is viewed is in memory", || store.stats().host.in_use == GRANULE);
    (0..32).for_each(|i| drop(put(&store, &format!("t{i}"), 2, 9)));
    assert!(lease.iter().chain(&view).all(|byte| *byte == 1));
    store.close(PATIENCE).unwrap();
    let part = view.slice(100..200);
    drop((store, view));
    assert!(lease.iter().chain(&part).all(|byte| *byte == 1));
    std::thread::spawn(move || drop((lease, part))).join().unwrap();
}

#[test]
fn a_write_lease_is_exclusive_and_readers_share() {
    let store = store(8, Duration::ZERO);
    let object = put(&store, "a", 1, 1);
    let first = soon(store.lease_read(&object, 0)).unwrap();
    let second = soon(store.lease_read(&object, 0)).unwrap();
    let writer = store.lease_write(&object, 0);
    // In the order of asking: a reader after the writer waits behind it.
    let late = store.lease_read(&object, 0);
    drop(first);
    assert!(!writer.is_ready() && !late.is_ready());
    drop(second);
    let mut writer = soon(writer).unwrap();
    writer.fill(2);
    let late = late.wait_timeout(Duration::from_millis(5)).unwrap_err();
    drop(writer);
    assert!(soon(late).unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn a_dropped_ticket_lets_those_behind_it_go_on() {
    let store = store(8, Duration::ZERO);
    let object = put(&store, "a", 1, 1);
    let reader = soon(store.lease_read(&object, 0)).unwrap();
    let writer = store.lease_write(&object, 0);
    let behind = store.lease_read(&object, 0);
    assert!(!behind.is_ready());
    drop(writer);
    assert_eq!(soon(behind).unwrap()[0], 1);
    drop(reader);
    drop(store.lease_write(&object, 0));
    drop(soon(store.lease_write(&object, 0)).unwrap());
}

#[test]
fn tickets_dropped_in_flight_harm_nobody() {
    let store = store(4, Duration::from_micros(300));
    let objects: Vec<_> = (0..12).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    for round in 0..200 {
        let object = &objects[round * 5 % 12];
        drop(store.lease_read(object, 0));
        drop(store.lease_write(object, 0));
        let kept = store.lease_read(&objects[round % 12], 0);
        assert_eq!(usize::from(soon(kept).unwrap()[0]), round % 12);
    }
}

#[test]
fn a_write_lease_that_changes_nothing_makes_nothing_dirty() {
    let store = store(8, Duration::ZERO);
    let fresh = one_chunk(&store, "fresh", 1);
    let stored = put(&store, "stored", 1, 3);
    store.flush().unwrap();
    let before = store.stats().counters;
    assert_eq!(soon(store.lease_write(&fresh, 0)).unwrap()[0], 0);
    assert_eq!(soon(store.lease_write(&stored, 0)).unwrap()[0], 3);
    store.evict("fresh").unwrap();
    store.evict("stored").unwrap();
    let did = store.stats().counters.since(&before);
    assert_eq!((did.write_backs, did.written, did.evictions), (0, 0, 2));
    assert_eq!(read(&store, "fresh").unwrap()[0], 0);
    soon(store.lease_write(&fresh, 0)).unwrap()[0] = 1;
    store.evict("fresh").unwrap();
    assert_eq!(store.stats().counters.since(&before).written, 1);
}

#[test]
fn what_a_writer_says_it_changed_is_what_is_written() {
    let store = store(8, Duration::ZERO);
    let object = put(&store, "a", 1, 1);
    store.flush().unwrap();
    let before = store.stats().counters;
    let borrowed = || {
        let mut lease = soon(store.lease_write(&object, 0)).unwrap();
        assert_eq!(lease.iter_mut().len(), GRANULE as usize);
        lease
    };
    borrowed().unchanged();
    borrowed().changed(7..7).unwrap();
    store.evict(&object).unwrap();
    assert_eq!(store.stats().counters.since(&before).written, 0);
    let mut lease = borrowed();
    lease[7] = 9;
    lease.changed(7..8).unwrap();
    store.evict(&object).unwrap();
    assert_eq!(store.stats().counters.since(&before).written, 1);
    assert_eq!(read(&store, "a").unwrap()[6..9], [1, 9, 1]);
    // A range that is not there says nothing: all of it counts as changed.
    let error = borrowed().changed(4096..4097).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    store.evict(&object).unwrap();
    assert_eq!(store.stats().counters.since(&before).written, 2);
}

#[test]
fn views_are_named_among_the_holders_whatever_became_of_their_object() {
    let store = store(8, Duration::ZERO);
    let view = |key: &str| store.get(key).unwrap().next().unwrap().unwrap();
    (0..4u8).for_each(|i| drop(put(&store, &format!("view {i}"), 2, i)));
    let views: Vec<_> = (0..4).map(|i| view(&format!("view {i}"))).collect();
    store.rename("view 1", "renamed").unwrap();
    store.delete("view 2").unwrap();
    // To replace one is to want memory beside it.
    let error = store.put("view 3", DType::U8, &[1], &[1]).unwrap_err();
    let Error::BudgetExhausted { mut holders, .. } = error else { panic!("{error}") };
    holders.sort();
    let named =
        ["renamed (8.00 KiB)", "view 0 (8.00 KiB)", "view 2 (8.00 KiB)", "view 3 (8.00 KiB)"];
    assert_eq!(holders, named);
    let slice = views[2].slice(5000..5001);
    drop(views);
    put(&store, "more", 4, 7);
    assert_eq!((slice[0], store.stats().host.in_use), (2, 8 * GRANULE));
}

#[test]
fn many_holders_are_named_in_a_few_words() {
    let builder = builder(20, &[memory("path", Mischief::default())]);
    let store = builder.chunk_bytes(GRANULE).open().unwrap();
    let large = store.create("large", DType::U8, &[8 * GRANULE]).unwrap();
    let range = store.lease_range_read(&large, 0..8 * GRANULE).wait().unwrap();
    let small: Vec<_> = (0..12).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    let leases: Vec<_> = small.iter().map(|object| soon(store.lease_read(object, 0))).collect();
    let error = soon(store.lease_read(&one_chunk(&store, "one", 1), 0)).unwrap_err();
    let Error::BudgetExhausted { holders, .. } = error else { panic!("{error}") };
    assert_eq!((holders.len(), &*holders[0]), (9, "large (32.0 KiB in 8 chunks)"));
    assert_eq!(holders[8], "5 others (20.0 KiB)");
    drop((range, leases));
}

#[test]
fn one_of_many_tickets_is_waited_for_alone() {
    let store = store(4, Duration::from_millis(1));
    let objects: Vec<_> = (0..4).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    store.evict_many(&objects).into_iter().for_each(|evicted| evicted.unwrap());
    let mut tickets: Vec<_> = objects.iter().map(|object| store.lease_read(object, 0)).collect();
    assert_eq!(soon(tickets.remove(2)).unwrap()[0], 2);
    eventually("all are there", || tickets.iter().all(|ticket| ticket.is_ready()));
    let left: Vec<_> = tickets.into_iter().map(|ticket| soon(ticket).unwrap()[0]).collect();
    assert_eq!(left, [0, 1, 3]);
}

#[test]
fn tickets_are_futures() {
    let store = store(4, Duration::from_millis(1));
    let objects: Vec<_> = (0..12).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    let sum = block_on(async {
        let mut sum = 0;
        for object in &objects {
            store.lease_write(object, 0).await.unwrap()[1] = 5;
            let lease = store.lease_read(object, 0).await.unwrap();
            sum += usize::from(lease[0]) + usize::from(lease[1]);
        }
        sum
    });
    assert_eq!(sum, (0..12).sum::<usize>() + 12 * 5);
    let error = block_on(store.lease_read(&objects[0], 7)).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}

#[test]
fn a_limited_wait_returns_the_ticket_and_any_limit_is_legal() {
    let store = store(4, Duration::from_millis(20));
    let object = put(&store, "a", 1, 1);
    store.evict("a").unwrap();
    let ticket = store.lease_read(&object, 0);
    let ticket = ticket.wait_timeout(Duration::ZERO).unwrap_err();
    let lease = ticket.wait_timeout(Duration::MAX).unwrap().unwrap();
    assert_eq!(lease[0], 1);
    assert!(!lease.waits().hit && lease.waits().arrival > Duration::ZERO);
    store.close(Duration::MAX).unwrap();
}

#[test]
fn a_lease_of_a_deleted_scheduled_chunk_ends_quietly() {
    let store = store(4, Duration::ZERO);
    let objects: Vec<_> = (0..8).map(|i| one_chunk(&store, &format!("t{i}"), 1)).collect();
    let schedule = store.schedule();
    for _ in 0..2 {
        schedule.declare(&objects, &objects, 3 * GRANULE).unwrap();
        for (i, object) in objects.iter().enumerate() {
            let Ok(mut lease) = soon(store.lease_write(object, 0)) else { continue };
            let _ = store.delete(&format!("t{i}")).map(|()| lease[0] = 1);
            store.barrier().unwrap();
        }
        store.barrier().unwrap();
    }
    assert_eq!(store.stats().host.in_use, 0);
}

#[test]
fn a_ranged_lease_loads_and_holds_only_what_it_touches() {
    let mischief = Mischief { delay: Duration::from_millis(1), ..Mischief::default() };
    let builder = builder(8, &[memory("path", mischief)]).chunk_bytes(GRANULE);
    let store = builder.open().unwrap();
    let bytes = pattern(7 * 4096, 1);
    let object = store.put("a", DType::U8, &[bytes.len() as u64], &bytes).unwrap();
    store.evict("a").unwrap();
    let before = store.stats().counters;
    let ticket = store.lease_range_read("a", 5_000..13_000);
    let ticket = ticket.wait_timeout(Duration::ZERO).unwrap_err();
    assert!(!ticket.is_ready());
    let lease = block_on(ticket).unwrap();
    let lengths: Vec<_> = lease.slices().map(<[u8]>::len).collect();
    assert_eq!(lengths, [3_192, 4_096, 712]);
    assert_eq!(lease.slices().flatten().copied().collect::<Vec<_>>(), bytes[5_000..13_000]);
    assert_eq!(store.stats().counters.since(&before).loads, 3);
    assert!(lease.as_slice().is_none());
    let one = store.lease_range_read(&object, 4_100..8_000).wait().unwrap();
    assert_eq!(one.as_slice(), Some(&bytes[4_100..8_000]));
    drop(one);
    // A writer of what it holds waits, one of what lies beside does not; its views keep it on.
    let writer = store.lease_write(&object, 2);
    drop(soon(store.lease_write(&object, 4)).unwrap());
    let views = lease.into_views();
    assert!(!writer.is_ready());
    store.close(PATIENCE).unwrap();
    assert_eq!(views.concat(), bytes[5_000..13_000]);
    let error = store.lease_range_read(&object, 0..1).wait_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn a_ranged_lease_that_fails_or_is_dropped_keeps_nothing() {
    let store = builder(4, &[memory("path", Mischief::default())]).chunk_bytes(GRANULE).open();
    let store = store.unwrap();
    let object = store.create("a", DType::U8, &[16 * GRANULE]).unwrap();
    for _ in 0..20 {
        let error = store.lease_range_read(&object, 0..5 * GRANULE).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Budget);
        drop(store.lease_range_read(&object, 8 * GRANULE..12 * GRANULE));
    }
    let all = store.lease_range_read(&object, 12 * GRANULE..16 * GRANULE);
    assert_eq!(all.wait_timeout(PATIENCE).unwrap().unwrap().len() as u64, 4 * GRANULE);
}
