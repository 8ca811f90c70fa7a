//! Chunks cut over all paths: every byte comes back whatever the paths do, the shares are kept, and
//! what goes wrong on one path concerns its part alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{PATIENCE, builder, cases, eventually, memory, read, soon, within_patience};
use proptest::prelude::*;
use tensortier_storage::arena::GRANULE;
use tensortier_storage::codec::Compression;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::Error;
use tensortier_storage::id::PathId;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::path::{Path, PathStore};
use tensortier_storage::store::{Placement, Store, StoreBuilder};

const MIB: u64 = 1 << 20;

fn striped(mib: u64, paths: &[Arc<MemoryPath>]) -> StoreBuilder {
    builder(mib * MIB / GRANULE, paths).chunk_bytes(6 * MIB).placement(Placement::Stripe)
}

fn contents(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i >> 5) * 31 + i + seed * 7) as u8).collect()
}

fn put(store: &Store, key: &str, seed: u64, len: usize) {
    store.put(key, DType::F32, &[len as u64 / 4], &contents(seed, len / 4 * 4)).unwrap();
}

fn assert_holds(store: &Store, key: &str, seed: u64) {
    let all = read(store, key).unwrap();
    assert!(all == contents(seed, all.len()), "{key} is not what was put");
}

fn ends_empty(store: &Store, paths: &[Arc<MemoryPath>]) {
    for key in store.list("") {
        store.delete(&key).unwrap();
    }
    eventually("memory is free", || store.stats().host.in_use == 0);
    for path in paths {
        eventually("space is free", || path.counters().used_bytes == 0);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Put { key: u8, seed: u64, len: usize },
    Get { key: u8 },
    Change { key: u8, value: u8 },
    Evict { key: u8 },
    Delete { key: u8 },
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u8..4;
    prop_oneof![
        3 => (key.clone(), 0u64..250, 1usize..14 << 20)
            .prop_map(|(key, seed, len)| Op::Put { key, seed, len: len / 4 * 4 }),
        2 => key.clone().prop_map(|key| Op::Get { key }),
        3 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Op::Change { key, value }),
        2 => key.clone().prop_map(|key| Op::Evict { key }),
        1 => key.prop_map(|key| Op::Delete { key }),
        1 => Just(Op::Flush),
    ]
}

fn apply(store: &Store, model: &mut BTreeMap<u8, Vec<u8>>, op: Op) {
    let name = |key: u8| format!("t{key}");
    match op {
        Op::Put { key, seed, len } => {
            put(store, &name(key), seed, len);
            model.insert(key, contents(seed, len));
        }
        Op::Get { key } => {
            if let Some(expect) = model.get(&key) {
                assert!(read(store, &name(key)).unwrap() == *expect);
            }
        }
        Op::Change { key, value } => {
            if let Some(expect) = model.get_mut(&key).filter(|expect| !expect.is_empty()) {
                let object = store.object(&name(key)).unwrap();
                soon(store.lease_write(&object, object.chunks() - 1)).unwrap()[0] = value;
                let at = (expect.len() - 1) / (6 << 20) * (6 << 20);
                expect[at] = value;
            }
        }
        Op::Evict { key } => assert_eq!(store.evict(&name(key)).is_ok(), model.contains_key(&key)),
        Op::Delete { key } => {
            assert_eq!(store.delete(&name(key)).is_ok(), model.remove(&key).is_some());
        }
        Op::Flush => store.flush().unwrap(),
    }
}

proptest! {
    #![proptest_config(cases(12))]
    #[test]
    fn every_byte_comes_back(
        ops in prop::collection::vec(op(), 1..30),
        fails in prop::collection::vec((0u64..9, 0u64..9, 0usize..3), 3),
        packed in any::<bool>(),
    ) {
        let mischief = |i: usize, (write, read, reorder): (u64, u64, usize)| Mischief {
            fail_write_every: if write < 3 { 0 } else { write },
            // A chunk that is read three times must be read well once. With three paths that fail
            // now and then, each could spoil one of the three.
            fail_read_every: if read < 5 || i == 2 { 0 } else { read },
            reorder,
            ..Mischief::default()
        };
        let paths: Vec<_> = fails
            .into_iter()
            .enumerate()
            .map(|(i, fail)| memory(&format!("path {i}"), mischief(i, fail)))
            .collect();
        let compression = if packed { Compression::Lz4 } else { Compression::Off };
        let store = striped(20, &paths).compression(compression).open().unwrap();
        let mut model = BTreeMap::new();
        ops.into_iter().for_each(|op| apply(&store, &mut model, op));
        for (key, expect) in &model {
            let got = read(&store, &format!("t{key}")).unwrap();
            prop_assert!(got == *expect);
        }
        ends_empty(&store, &paths);
        store.close(PATIENCE).unwrap();
    }
}

#[test]
fn each_chunk_is_on_all_paths_by_their_shares() {
    let speeds = [1e8, 1.7e8, 5e8];
    let path = |(i, bps): (usize, f64)| Arc::new(MemoryPath::new(&format!("path {i}"), bps));
    let paths: Vec<_> = speeds.into_iter().enumerate().map(path).collect();
    let store = striped(24, &paths).open().unwrap();
    for i in 0..40 {
        put(&store, &format!("t{i}"), i, 6 << 20);
    }
    store.flush().unwrap();
    let total = 40.0 * 6.0 * MIB as f64;
    for (path, bps) in paths.iter().zip(speeds) {
        let (written, due) = (path.counters().written_bytes as f64, bps / 7.7e8 * total);
        assert!((written - due).abs() <= 6.0 * MIB as f64, "{written} written, {due} due");
    }
    (0..40).for_each(|i| assert_holds(&store, &format!("t{i}"), i));
    assert!(store.explain().to_string().contains("striped chunks"));
    ends_empty(&store, &paths);
}

#[test]
fn a_path_that_is_full_leaves_its_parts_to_the_others() {
    let full = Mischief { quota_bytes: 3 * MIB, ..Mischief::default() };
    let paths = [memory("full", full), memory("wide", Mischief::default())];
    let store = striped(24, &paths).open().unwrap();
    for i in 0..10 {
        put(&store, &format!("t{i}"), i, 6 << 20);
        store.flush().unwrap();
    }
    assert!(paths[0].counters().used_bytes <= 3 * MIB);
    (0..10).for_each(|i| assert_holds(&store, &format!("t{i}"), i));
    ends_empty(&store, &paths);
}

#[test]
fn a_wrong_bit_names_the_path_it_is_on() {
    for compression in [Compression::Off, Compression::Lz4] {
        let paths = [memory("good", Mischief::default()), memory("bad", Mischief::default())];
        let store = striped(24, &paths).compression(compression).open().unwrap();
        put(&store, "t", 1, 6 << 20);
        store.evict("t").unwrap();
        paths[1].corrupt_all();
        let error = read(&store, "t").unwrap_err();
        let on_bad = match &error {
            Error::Corrupt { path, .. } | Error::Undecodable { path, .. } => path.ends_with("bad"),
            _ => false,
        };
        assert!(on_bad, "{error}");
        store.delete("t").unwrap();
    }
}

#[test]
fn a_path_that_hangs_takes_its_part_with_it_and_gives_it_back() {
    let paths = [memory("silent", Mischief::default()), memory("other", Mischief::default())];
    let store = striped(36, &paths).open().unwrap();
    put(&store, "written", 1, 6 << 20);
    store.evict("written").unwrap();
    put(&store, "dirty", 2, 6 << 20);
    paths[0].stall();
    // A read of both paths, and a write to both.
    let reading = store.lease_read(&store.object("written").unwrap(), 0);
    let flushing = store.clone();
    let flush = std::thread::spawn(move || flushing.flush());
    eventually("both are out", || {
        let outstanding = paths[0].outstanding();
        outstanding.read_bytes > 0 && outstanding.write_bytes > 0
    });
    paths[0].hang();
    assert!(matches!(soon(reading).unwrap_err(), Error::PathHung { .. }));
    flush.join().unwrap().unwrap();
    assert_holds(&store, "dirty", 2);
    assert!(matches!(read(&store, "written").unwrap_err(), Error::PathHung { .. }));
    assert_eq!(store.stats().quarantined_bytes, 12 * MIB);
    paths[0].release();
    eventually("its memory comes back", || store.stats().quarantined_bytes == 0);
    assert_holds(&store, "written", 1);
    store.evict("dirty").unwrap();
    assert_holds(&store, "dirty", 2);
    ends_empty(&store, &paths);
}

#[test]
fn paths_join_and_leave_under_striped_chunks() {
    let paths = [memory("first", Mischief::default()), memory("second", Mischief::default())];
    let store = striped(24, &paths[..1]).open().unwrap();
    (0..6).for_each(|i| put(&store, &format!("t{i}"), i, 5 << 20));
    store.flush().unwrap();
    store.add_path_store(Arc::clone(&paths[1]) as Arc<dyn PathStore>).unwrap();
    (6..12).for_each(|i| put(&store, &format!("t{i}"), i, 5 << 20));
    store.flush().unwrap();
    assert!(paths.iter().all(|path| path.counters().used_bytes > 10 * MIB));
    store.remove_path(PathId(0), PATIENCE).unwrap();
    assert_eq!(paths[0].counters().used_bytes, 0);
    (0..12).for_each(|i| assert_holds(&store, &format!("t{i}"), i));
    ends_empty(&store, &paths);
}

#[test]
fn on_directories() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir_in("/var/tmp").unwrap()).collect();
    let builder = dirs.iter().fold(Store::builder(), |b, dir| b.path(Path::new(dir.path())));
    let builder = builder.host_budget(24 * MIB).chunk_bytes(8 * MIB);
    let store = builder.placement(Placement::Stripe).open().unwrap();
    for i in 0..12 {
        put(&store, &format!("t{i}"), i, (7 << 20) + 4 * i as usize);
    }
    store.flush().unwrap();
    let used: Vec<_> = store.stats().paths.iter().map(|path| path.used_bytes).collect();
    assert!(used.iter().all(|bytes| *bytes > 0), "{used:?}");
    (0..12).for_each(|i| assert_holds(&store, &format!("t{i}"), i));
    within_patience(move || store.close(Duration::from_secs(10))).unwrap();
    assert!(dirs.iter().all(|dir| std::fs::read_dir(dir.path()).unwrap().count() == 0));
}
