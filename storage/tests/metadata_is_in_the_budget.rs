//! What the metadata of many objects takes, frames give up: the memory of the process stays within the
//! budget, and no byte is lost. In a process of its own, where nobody else counts.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::path::Path as FsPath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::apart::{Place, apart};
use common::{eventually, mix, put, read, rounds, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::Error;
use tensortier_storage::path::Path;
use tensortier_storage::store::Store;

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 96 * MIB;
const GRANULES: u64 = MIB / GRANULE;

/// Objects whose keys of 65,000 bytes take as much memory as 400,000 small ones would.
const KEYS: u64 = 1280;

/// Returns the anonymous memory of this process in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Makes objects without bytes.
fn fill_with_metadata(store: &Store, from: u64, to: u64) {
    for i in from..to {
        store.create(&format!("{i:065000}"), DType::U8, &[0]).unwrap();
    }
}

/// Fills the memory, then makes metadata of 79 MiB, of which 16 are free of charge, while leases hold
/// the end of the memory or not.
fn make_room(dir: &FsPath, leased: bool) {
    let before = anonymous();
    let store = Store::builder().host_budget(BUDGET).path(Path::new(dir)).open().unwrap();
    for i in 0..BUDGET / MIB {
        put(&store, &format!("o{i}"), GRANULES, i as u8);
    }
    assert_eq!(store.stats().host.committed, BUDGET);
    let lease = |i| soon(store.lease_read(&store.object(&format!("o{i}")).unwrap(), 0)).unwrap();
    let leases: Vec<_> = (if leased { 80..96 } else { 0..0 }).map(lease).collect();
    let fits = || anonymous().saturating_sub(before) <= BUDGET + 32 * MIB;
    for from in (0..KEYS).step_by(80) {
        fill_with_metadata(&store, from, from + 80);
        if !leased {
            eventually("the process takes no more than it may", fits);
        }
    }
    assert!(leases.iter().zip(80..).all(|(lease, byte)| lease.iter().all(|b| *b == byte)));
    drop(leases);
    eventually("the process takes no more than it may", fits);
    let within = || {
        let host = store.stats().host;
        host.committed <= 34 * MIB && host.in_use + host.charged <= BUDGET + 2 * MIB
    };
    eventually("metadata has the end of the memory", within);
    assert!(store.stats().host.charged >= 63 * MIB);
    for i in 0..BUDGET / MIB {
        assert!(read(&store, &format!("o{i}")).unwrap() == [i as u8; MIB as usize], "{i}");
    }
    // A chunk of most of what is left finds a run.
    put(&store, "long", 24 * GRANULES, 7);
    assert!(read(&store, "long").unwrap().iter().all(|byte| *byte == 7));
    let keys = store.list("0");
    keys.iter().for_each(|key| store.delete(key).unwrap());
    assert_eq!(keys.len() as u64, KEYS);
    let whole = put(&store, "whole", BUDGET / GRANULE - GRANULES, 9);
    assert!(soon(store.lease_read(&whole, 0)).unwrap().iter().all(|byte| *byte == 9));
}

#[test]
fn and_frames_make_room_for_it() {
    apart("and_frames_make_room_for_it", Place::Shell("true"), |dir| make_room(dir, false));
}

#[test]
fn also_where_leases_are_in_the_way() {
    apart("also_where_leases_are_in_the_way", Place::Shell("true"), |dir| make_room(dir, true));
}

/// Three threads put, read and change objects of 4 KiB to 3 MiB, each its own, which do not all fit.
fn use_objects(store: &Store, thread: u64) {
    let mut expected = [None; 40];
    for number in 0..400 * rounds(1) {
        let random = mix(thread << 32 | number);
        let index = random as usize % expected.len();
        let (key, byte) = (format!("t{thread}.{index}"), (random >> 8) as u8);
        match random >> 32 & 3 {
            0 => {
                let granules = 1 + (random >> 16) % [1, 32, 3 * GRANULES][index % 3];
                drop(put(store, &key, granules, byte));
                expected[index] = Some(byte);
            }
            1 if expected[index].is_some() => {
                let object = store.object(&key).unwrap();
                soon(store.lease_write(&object, 0)).unwrap().fill(byte);
                expected[index] = Some(byte);
            }
            _ => {
                if let Some(byte) = expected[index] {
                    assert!(read(store, &key).unwrap().iter().all(|b| *b == byte), "{key}");
                }
            }
        }
    }
}

#[test]
fn while_objects_are_used_and_it_comes_and_goes() {
    apart("while_objects_are_used_and_it_comes_and_goes", Place::Shell("true"), |dir| {
        let store = Store::builder().host_budget(BUDGET / 2).path(Path::new(dir)).open().unwrap();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn({
                        let store = &store;
                        move || use_objects(store, thread)
                    })
                })
                .collect();
            let metadata = scope.spawn(|| {
                let mut passes = 0;
                while !ended.load(Ordering::Relaxed) || passes == 0 {
                    for from in (0..560).step_by(40) {
                        fill_with_metadata(&store, from, from + 40);
                        thread::sleep(Duration::from_millis(5));
                    }
                    eventually("metadata has the end of the memory", || {
                        store.stats().host.committed <= 30 * MIB
                    });
                    store.list("0").iter().for_each(|key| store.delete(key).unwrap());
                    passes += 1;
                }
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            ended.store(true, Ordering::Relaxed);
            metadata.join().unwrap();
        });
        let host = store.stats().host;
        assert!(host.committed <= BUDGET / 2 && host.in_use <= BUDGET / 2, "{host:?}");
    });
}

#[test]
fn until_no_frame_is_left() {
    apart("until_no_frame_is_left", Place::Shell("true"), |dir| {
        let store = Store::builder().host_budget(MIB).path(Path::new(dir)).open().unwrap();
        put(&store, "o", GRANULES / 2, 3);
        let key = |i: u64| format!("{i:065000}");
        let refused = (0..).find_map(|i| store.create(&key(i), DType::U8, &[0]).err()).unwrap();
        assert!(matches!(refused, Error::BudgetExhausted { .. }), "{refused}");
        assert!(refused.to_string().contains("the metadata of"), "{refused}");
        for key in store.list("0") {
            store.delete(&key).unwrap();
        }
        assert!(read(&store, "o").unwrap() == [3; MIB as usize / 2]);
    });
}
