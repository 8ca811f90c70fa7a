//! Ten thousand operations, and fifty stores one after the other: descriptors, threads, anonymous and
//! locked memory are what they were. Each in a process of its own, where nobody else counts.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::path::Path as FsPath;

use common::apart::{Place, apart};
use common::{PATIENCE, eventually, mix, put, read, rounds, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::codec::Compression;
use tensortier_storage::io::EngineChoice;
use tensortier_storage::path::Path;
use tensortier_storage::store::Store;
use tensortier_storage::units::BytesPerSecond;

/// What a process has: descriptors, threads, KiB locked, KiB of anonymous memory.
#[derive(Debug, Clone, Copy)]
struct Census {
    files: usize,
    threads: usize,
    locked_kib: u64,
    anonymous_kib: u64,
}

impl Census {
    fn now() -> Self {
        let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
        };
        Census {
            files: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            locked_kib: kib("VmLck:"),
            anonymous_kib: kib("RssAnon:"),
        }
    }

    /// Nothing is more than it was; of memory, what an allocator keeps does not count.
    fn is_no_more_than(self, before: Census) -> bool {
        self.files <= before.files
            && self.threads <= before.threads
            && self.locked_kib <= before.locked_kib
            && self.anonymous_kib <= before.anonymous_kib + 3 * 1024
    }
}

fn open(dir: &FsPath, engine: EngineChoice, compression: Compression) -> Store {
    let builder = Store::builder().host_budget(32 * GRANULE).engine(engine);
    let builder = builder.compression(compression).packing_bytes(4 * GRANULE);
    // Capped, so that no trial takes its time.
    let cap = BytesPerSecond(100e9);
    builder.path(Path::new(dir).read_cap(cap).write_cap(cap)).open().unwrap()
}

/// One operation on one of 24 objects of one to three granules, which one follows from its number.
fn operation(store: &Store, number: u64) {
    let random = mix(number);
    let key = format!("t{}", random % 24);
    match random >> 32 & 7 {
        0 | 1 => drop(put(store, &key, 1 + (random >> 8) % 3, random as u8)),
        2 | 3 => drop(read(store, &key)),
        4 => {
            let Ok(object) = store.object(&key) else { return };
            soon(store.lease_write(&object, 0)).unwrap()[0] = 1;
            drop(store.lease_read(&object, 0));
        }
        5 => drop(store.evict(&key)),
        6 => drop(store.prefetch(&key)),
        _ => drop(store.delete(&key)),
    }
    assert!(store.stats().host.in_use <= 32 * GRANULE, "the budget is strict");
}

fn empty(store: &Store) {
    (0..24).for_each(|i| drop(store.delete(&format!("t{i}"))));
    eventually("all memory is free", || store.stats().host.in_use == 0);
    eventually("all space is free", || store.stats().paths[0].used_bytes == 0);
}

#[test]
fn by_ten_thousand_operations() {
    apart("by_ten_thousand_operations", Place::Shell("true"), |dir| {
        for (engine, compression) in
            [(EngineChoice::Auto, Compression::Off), (EngineChoice::Threads, Compression::Lz4)]
        {
            let store = open(dir, engine, compression);
            (0..2_000).for_each(|number| operation(&store, number));
            empty(&store);
            let (before, space) = (Census::now(), store.stats().paths[0].space_bytes);
            (0..10_000 * rounds(1)).for_each(|number| operation(&store, number));
            empty(&store);
            let after = Census::now();
            assert!(after.is_no_more_than(before), "{before:?}, then {after:?}");
            assert_eq!(store.stats().paths[0].space_bytes, space);
            store.close(PATIENCE).unwrap();
        }
    });
}

#[test]
fn by_fifty_stores() {
    apart("by_fifty_stores", Place::Shell("true"), |dir| {
        for engine in [EngineChoice::Auto, EngineChoice::Threads] {
            let cycle = |number: u64| {
                let store = open(dir, engine, Compression::Off);
                (0..20).for_each(|i| operation(&store, number * 20 + i));
                // Some are closed, some only dropped.
                if number.is_multiple_of(2) {
                    store.close(PATIENCE).unwrap();
                }
            };
            (0..5).for_each(cycle);
            let before = Census::now();
            (0..50 * rounds(1)).for_each(cycle);
            eventually("nothing is left", || Census::now().is_no_more_than(before));
            assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
        }
    });
}
