//! Close answers all who wait, leaves no file, thread or memory behind, and may come at any moment
//! and more than once.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{PATIENCE, builder, eventually, memory, put, soon, within_patience};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::path::{Path, PathStore};
use tensortier_storage::store::{LeaseTicket, ReadLease, Store};

fn slow(millis: u64) -> Mischief {
    Mischief { delay: Duration::from_millis(millis), ..Mischief::default() }
}

fn left(dir: &tempfile::TempDir) -> usize {
    std::fs::read_dir(dir.path()).unwrap().count()
}

fn is_closed<T>(answer: Result<T, Error>) -> bool {
    answer.is_err_and(|error| error.kind() == ErrorKind::Closed)
}

#[test]
fn all_who_wait_are_told() {
    let store = builder(4, &[memory("slow", slow(30))]).open().unwrap();
    let objects: Vec<_> = (0..12).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    let held = soon(store.lease_read(&objects[11], 0)).unwrap();
    let behind = store.lease_write(&objects[11], 0);
    let loads: Vec<_> = objects[..8].iter().map(|object| store.lease_read(object, 0)).collect();
    objects.iter().for_each(|object| store.prefetch(object).unwrap());
    let calls: Vec<_> = (0..4u8)
        .map(|kind| {
            let store = store.clone();
            std::thread::spawn(move || match kind {
                0 => store.flush(),
                1 => store.evict("t3"),
                2 => store.barrier().and_then(|()| store.flush()),
                _ => store.put("new", DType::U8, &[GRANULE], &[1; 4096]).map(drop),
            })
        })
        .collect();
    let closing = store.clone();
    within_patience(move || closing.close(PATIENCE)).unwrap();
    assert!(is_closed(soon(behind)));
    for ticket in loads {
        let answer = soon(ticket);
        assert!(answer.is_ok() || is_closed(answer));
    }
    for call in calls {
        let answer = call.join().unwrap();
        assert!(answer.is_ok() || is_closed(answer));
    }
    assert!(held.iter().all(|byte| *byte == 11));
    drop(held);
    assert!(is_closed(store.flush()) && is_closed(store.barrier()) && is_closed(store.evict("t0")));
    assert!(is_closed(store.delete("t0")) && is_closed(store.rename("t0", "u")));
    assert!(is_closed(soon(store.lease_read(&objects[0], 0))));
    assert!(is_closed(store.create("late", DType::U8, &[1])));
    assert_eq!(store.stats().host.in_use, 0);
}

#[test]
fn leases_asked_for_while_it_closes_are_answered() {
    for round in 0..60u64 {
        let store = builder(3, &[memory("path", Mischief::default())]).open().unwrap();
        let objects: Vec<_> = (0..6).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for i in 0.. {
                        let answer = soon(store.lease_write(&objects[i % 6], 0));
                        let Err(error) = answer.map(|mut lease| lease[1] = 1) else { continue };
                        match error.kind() {
                            ErrorKind::Closed => break,
                            kind => assert_eq!(kind, ErrorKind::Budget),
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_micros(round * 20));
            store.close(PATIENCE).unwrap();
        });
    }
}

#[test]
fn directories_are_removed_by_close_and_by_drop() {
    let dirs = [(); 2].map(|()| tempfile::tempdir_in("/var/tmp").unwrap());
    let open = || {
        let builder = Store::builder().host_budget(8 * GRANULE).chunk_bytes(GRANULE);
        dirs.iter().fold(builder, |b, dir| b.path(Path::new(dir.path()))).open().unwrap()
    };
    let (first, second) = (open(), open());
    // Two stores share a directory and know nothing of each other.
    assert!(dirs.iter().all(|dir| left(dir) == 2));
    for (store, byte) in [(&first, 1), (&second, 2)] {
        (0..8).for_each(|i| drop(put(store, &format!("t{i}"), 4, byte)));
    }
    let view = first.get("t0").unwrap().next().unwrap().unwrap();
    first.close(PATIENCE).unwrap();
    first.close(PATIENCE).unwrap();
    first.clone().close(Duration::ZERO).unwrap();
    assert!(dirs.iter().all(|dir| left(dir) == 1));
    assert!((0..8).all(|i| common::read(&second, &format!("t{i}")).unwrap()[0] == 2));
    let clone = second.clone();
    drop(second);
    assert!(dirs.iter().all(|dir| left(dir) == 1));
    drop(clone);
    assert!(dirs.iter().all(|dir| left(dir) == 0));
    assert!(view.iter().all(|byte| *byte == 1));
}

#[test]
fn one_directory_given_twice_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let twice = Store::builder().path(Path::new(dir.path())).path(Path::new(dir.path()));
    assert_eq!(twice.open().unwrap_err().kind(), ErrorKind::InvalidInput);
    let missing = dir.path().join("missing");
    let half = Store::builder().path(Path::new(dir.path())).path(Path::new(missing));
    assert!(half.open().is_err());
    assert_eq!(left(&dir), 0);
}

#[test]
fn closing_with_io_in_flight_waits_no_longer_than_its_grace() {
    let path = memory("slow", slow(2_000));
    let store = builder(4, &[Arc::clone(&path)]).open().unwrap();
    (0..3).for_each(|i| drop(put(&store, &format!("t{i}"), 1, i)));
    let flushing = store.clone();
    let flush = std::thread::spawn(move || flushing.flush());
    eventually("a write is under way", || path.outstanding().write_bytes > 0);
    let error = within_patience(move || store.close(Duration::from_millis(20))).unwrap_err();
    assert!(error.kind() == ErrorKind::Timeout && error.to_string().contains("slow"), "{error}");
    assert!(is_closed(flush.join().unwrap()));
}

#[test]
fn threads_end_with_the_store() {
    let named = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("tensortier")).count()
    };
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for _ in 0..20 {
        let store =
            Store::builder().host_budget(GRANULE).path(Path::new(dir.path())).open().unwrap();
        put(&store, "tensor", 1, 1);
        store.flush().unwrap();
    }
    // Other tests of this file have stores too, but not twenty.
    eventually("threads end", || named() < 40);
}

/// A future's waker that owns the store, as a task whose executor is gone does.
struct LastOwner(Mutex<Option<(Store, mpsc::Sender<()>)>>);

impl Wake for LastOwner {
    fn wake(self: Arc<Self>) {
        let (store, tell) = self.0.lock().unwrap().take().unwrap();
        drop(store);
        let _ = tell.send(());
    }
}

#[test]
fn the_last_store_may_be_dropped_by_its_own_wake_up() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = Store::builder().host_budget(GRANULE).path(Path::new(dir.path())).open().unwrap();
    let object = put(&store, "tensor", 1, 1);
    store.evict("tensor").unwrap();
    let (tell, told) = mpsc::channel();
    let mut ticket: LeaseTicket<ReadLease> = store.lease_read(&object, 0);
    let waker = Waker::from(Arc::new(LastOwner(Mutex::new(Some((store, tell))))));
    let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
    if polled.is_pending() {
        told.recv_timeout(PATIENCE).expect("the store ends");
        assert_eq!(soon(ticket).unwrap()[0], 1);
    }
    drop(waker);
    eventually("its directory is removed", || left(&dir) == 0);
}
