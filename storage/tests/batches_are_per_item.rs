//! A batch has an outcome for each of its items: one that fails stops no other, and their transfers
//! overlap.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{block_on, builder, memory, pattern, put, read, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{ErrorKind, Result};
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::path::{Outstanding, PathStore};
use tensortier_storage::store::{Put, Store};

fn store(granules: u64) -> Store {
    let mischief =
        Mischief { delay: Duration::from_micros(100), reorder: 2, ..Mischief::default() };
    let paths = [memory("one", mischief), memory("two", mischief)];
    builder(granules, &paths).chunk_bytes(GRANULE).open().unwrap()
}

fn kinds<T>(outcomes: &[Result<T>]) -> Vec<Option<ErrorKind>> {
    outcomes.iter().map(|outcome| outcome.as_ref().err().map(|error| error.kind())).collect()
}

/// Returns tensors of which each third does not fit its shape, and what each is.
fn tensors() -> Vec<Put<Vec<u8>>> {
    let tensor = |i: u64| {
        let len = [0, 1, 4096, 9000, 20_000][i as usize % 5] + i;
        let wrong = u64::from(i % 3 == 2);
        Put::new(format!("t{i}"), DType::U8, &[len + wrong], pattern(len as usize, i))
    };
    (0..20).map(tensor).collect()
}

fn is_bad(i: usize) -> bool {
    i % 3 == 2
}

#[test]
fn puts_and_gets_of_many_have_their_own_outcomes() {
    let store = store(8);
    let tensors = tensors();
    let put = store.put_many(&tensors);
    for (i, outcome) in put.iter().enumerate() {
        assert_eq!(outcome.is_err(), is_bad(i), "{i}");
    }
    let mut buffers: Vec<_> = tensors.iter().map(|put| vec![0; put.bytes.len()]).collect();
    let names = tensors.iter().map(|put| &put.key);
    let got = store.get_into_many(names.zip(&mut buffers));
    for (i, outcome) in got.iter().enumerate() {
        match outcome {
            Ok(()) => assert_eq!(buffers[i], tensors[i].bytes),
            Err(error) => assert!(is_bad(i) && error.kind() == ErrorKind::NotFound, "{i} {error}"),
        }
    }
    // A buffer of another length is refused, those around it are filled.
    let mut buffers = [vec![0; 1], vec![0; 5], vec![0; 4100]];
    let pairs = ["t0", "t3", "t4"].into_iter().zip(&mut buffers);
    let kinds = kinds(&store.get_into_many(pairs));
    assert_eq!(kinds, [Some(ErrorKind::InvalidInput); 3]);
}

#[test]
fn the_asynchronous_twins_give_every_buffer_back() {
    let store = store(8);
    let tensors = tensors();
    let outcomes = block_on(store.put_many_async(tensors.clone()));
    for (i, outcome) in outcomes.into_iter().enumerate() {
        let bytes = match outcome {
            Ok((object, bytes)) => {
                assert_eq!(object.bytes(), bytes.len() as u64);
                bytes
            }
            Err(returned) => {
                assert!(is_bad(i), "{returned}");
                returned.buffer
            }
        };
        assert_eq!(bytes, tensors[i].bytes);
    }
    let good = tensors.iter().enumerate().filter(|(i, _)| !is_bad(*i)).map(|(_, put)| put);
    let good: Vec<_> = good.collect();
    let objects: Vec<_> = good.iter().map(|put| store.object(&put.key).unwrap()).collect();
    assert!(block_on(store.evict_many_async(&objects)).into_iter().all(|evicted| evicted.is_ok()));
    assert_eq!(store.stats().host.in_use, 0);
    let buffers = good.iter().map(|put| vec![0; put.bytes.len()]);
    let got = block_on(store.get_into_many_async(objects.iter().zip(buffers)));
    let got: Vec<_> = got.into_iter().map(|bytes| bytes.unwrap()).collect();
    assert!(got.iter().zip(&good).all(|(got, put)| *got == put.bytes));
    let failed = block_on(store.get_into_many_async([("none", vec![7])])).remove(0).unwrap_err();
    assert_eq!(failed.buffer, [7]);
}

#[test]
fn what_a_path_refuses_to_read_stops_nobody_else() {
    let path = memory("path", Mischief::default());
    let store = builder(8, std::slice::from_ref(&path)).chunk_bytes(GRANULE).open().unwrap();
    let tensors: Vec<_> = (0..12u64)
        .map(|i| Put::new(format!("t{i}"), DType::U8, &[10_000], pattern(10_000, i)))
        .collect();
    assert!(store.put_many(&tensors).iter().all(Result::is_ok));
    let keys = || tensors.iter().map(|put| &put.key);
    assert!(store.evict_many(keys()).iter().all(Result::is_ok));
    path.set_mischief(Mischief { fail_read_every: 5, ..Mischief::default() });
    let mut buffers = vec![vec![0; 10_000]; 12];
    let got = store.get_into_many(keys().zip(&mut buffers));
    let failed = kinds(&got).into_iter().flatten().collect::<Vec<_>>();
    assert!(failed.iter().all(|kind| *kind == ErrorKind::Io) && failed.len() < 12, "{failed:?}");
    for (i, _) in got.iter().enumerate().filter(|(_, outcome)| outcome.is_ok()) {
        assert_eq!(buffers[i], tensors[i].bytes, "{i}");
    }
}

#[test]
fn hints_evictions_and_deletions_of_many_have_their_own_outcomes() {
    let store = store(16);
    let objects: Vec<_> = (0..4).map(|i| put(&store, &format!("t{i}"), 2, i)).collect();
    let missing = [None, Some(ErrorKind::NotFound), None];
    let held = soon(store.lease_read(&objects[2], 0)).unwrap();
    assert_eq!(kinds(&store.evict_many(["t0", "none", "t2"])), missing);
    assert_eq!(store.stats().host.in_use, 5 * GRANULE, "one chunk is held");
    assert_eq!(kinds(&store.prefetch_many(["t0", "none", "t2"])), missing);
    assert_eq!(kinds(&store.delete_many(["t0", "none", "t2"])), missing);
    let refs = store.delete_many(&objects);
    let gone = Some(ErrorKind::NotFound);
    assert_eq!(kinds(&refs), [gone, None, gone, None]);
    assert!(store.list("").is_empty());
    drop(held);
}

#[test]
fn a_batch_larger_than_the_budget_goes_through_it() {
    let store = store(4);
    let tensors: Vec<_> = (0..10u64)
        .map(|i| Put::new(format!("t{i}"), DType::U16, &[7000], pattern(14_000, i)))
        .collect();
    assert!(store.put_many(&tensors).iter().all(Result::is_ok));
    // Backwards, so that what was put last is asked for first.
    let mut buffers = vec![vec![0; 14_000]; 10];
    let names = tensors.iter().rev().map(|put| &put.key);
    assert!(store.get_into_many(names.zip(&mut buffers)).iter().all(Result::is_ok));
    assert!(buffers.iter().zip(tensors.iter().rev()).all(|(got, put)| *got == put.bytes));
    let empty: [(&str, Vec<u8>); 0] = [];
    assert!(store.get_into_many(empty).is_empty() && store.put_many::<Vec<u8>>(&[]).is_empty());
    assert_eq!(read(&store, "t3").unwrap(), tensors[3].bytes);
}

#[test]
fn transfers_of_a_batch_are_under_way_together() {
    let slow = Mischief { delay: Duration::from_millis(3), ..Mischief::default() };
    let path = memory("slow", slow);
    let store = builder(16, std::slice::from_ref(&path)).open().unwrap();
    let objects: Vec<_> = (0..8).map(|i| put(&store, &format!("t{i}"), 1, i)).collect();
    // Returns the most that the path had to do at one time while `call` ran.
    let most = |call: &dyn Fn(), of: fn(Outstanding) -> u64| {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut most = 0;
                while !ended.load(Ordering::SeqCst) {
                    most = most.max(of(path.outstanding()));
                    std::thread::yield_now();
                }
                most
            });
            call();
            ended.store(true, Ordering::SeqCst);
            watching.join().unwrap()
        })
    };
    let evict = || assert!(store.evict_many(&objects).iter().all(Result::is_ok));
    assert!(most(&evict, |outstanding| outstanding.write_bytes) >= 4 * GRANULE);
    let read = || {
        let mut buffers = vec![vec![0; 4096]; 8];
        let got = store.get_into_many(objects.iter().zip(&mut buffers));
        assert!(got.iter().all(Result::is_ok));
        assert!(buffers.iter().enumerate().all(|(i, buffer)| buffer[9] == i as u8));
    };
    assert!(most(&read, |outstanding| outstanding.read_bytes) >= 4 * GRANULE);
    assert_eq!(store.stats().counters.loads, 8);
}
