//! Leases and views keep their bytes whatever happens to the object, the key and the store; tickets
//! can be waited for, awaited, dropped.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use common::{PATIENCE, builder, eventually, memory, one_chunk, put, read, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::Store;

fn store(granules: u64, delay: Duration) -> Store {
    let mischief = Mischief { delay, ..Mischief::default() };
    builder(granules, &[memory("path", mischief)]).open().unwrap()
}

/// The smallest executor: polls, and sleeps until woken.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(PATIENCE),
        }
    }
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
fn empty_and_odd_lengths_are_legal() {
    let store =
        builder(8, &[memory("path", Mischief::default())]).chunk_bytes(5000).open().unwrap();
    for len in [0usize, 1, 511, 513, 4095, 4096, 4097, 4999, 5000, 5001, 28_824] {
        let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        store.put("odd", DType::U8, &[len as u64], &bytes).unwrap();
        store.evict("odd").unwrap();
        assert_eq!(read(&store, "odd").unwrap(), bytes);
        store.get_range_into("odd", len as u64..len as u64, &mut []).unwrap();
        let parts = store.get("odd").unwrap();
        assert_eq!(parts.len(), len.div_ceil(5000));
        assert_eq!(parts.map(|part| part.unwrap().len()).sum::<usize>(), len);
    }
    let empty = store.create("empty", DType::F32, &[3, 0, 5]).unwrap();
    store.prefetch(&empty).unwrap();
    assert_eq!((empty.bytes(), empty.chunks()), (0, 0));
    assert_eq!(soon(store.lease_read(&empty, 0)).unwrap_err().kind(), ErrorKind::InvalidInput);
    store.flush().unwrap();
    store.delete("empty").unwrap();
}

#[test]
fn a_lease_of_a_deleted_scheduled_chunk_ends_quietly() {
    let store = store(4, Duration::ZERO);
    let objects: Vec<_> = (0..8).map(|i| one_chunk(&store, &format!("t{i}"), 1)).collect();
    for _ in 0..2 {
        store.declare(&objects, &objects, 3 * GRANULE).unwrap();
        for (i, object) in objects.iter().enumerate() {
            let Ok(mut lease) = soon(store.lease_write(object, 0)) else { continue };
            let _ = store.delete(&format!("t{i}")).map(|()| lease[0] = 1);
            store.barrier().unwrap();
        }
        store.barrier().unwrap();
    }
    assert_eq!(store.stats().host.in_use, 0);
}
