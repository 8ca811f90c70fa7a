//! Paths of a running store: one is added and takes its share, one is emptied and closed while
//! everything stays readable, and a tensor file is adopted.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail like the test itself")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::id::PathId;
use tensortier_storage::io::EngineChoice;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::path::{Path, PathStore};
use tensortier_storage::source::{Access, TensorFile, TensorFileWriter, TensorSpec};
use tensortier_storage::store::Store;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7) as u8).collect()
}

fn store_over(paths: &[&Arc<MemoryPath>], frames: u64) -> Store {
    let builder = Store::builder().host_budget(frames * GRANULE).chunk_bytes(GRANULE);
    let with = |builder: tensortier_storage::store::StoreBuilder, path: &&Arc<MemoryPath>| {
        builder.path_store(Arc::clone(path) as Arc<dyn PathStore>)
    };
    paths.iter().fold(builder, with).open().unwrap()
}

fn fill(store: &Store, keys: std::ops::Range<usize>) {
    for key in keys {
        let data = bytes(key, 3 * 4096 + key);
        store.put(&format!("{key}"), DType::U8, &[data.len() as u64], &data).unwrap();
    }
}

fn check(store: &Store, keys: std::ops::Range<usize>) {
    for key in keys {
        let mut data = vec![0; 3 * 4096 + key];
        store.get_into(&format!("{key}"), &mut data).unwrap();
        assert_eq!(data, bytes(key, 3 * 4096 + key));
    }
}

#[test]
fn an_added_path_takes_its_share_and_a_removed_one_is_emptied() {
    let (first, second) =
        (Arc::new(MemoryPath::new("first", 1e9)), Arc::new(MemoryPath::new("second", 1e9)));
    let store = store_over(&[&first], 16);
    fill(&store, 0..20);
    store.flush().unwrap();
    let id = store.add_path_store(Arc::clone(&second) as Arc<dyn PathStore>).unwrap();
    assert_eq!(id, PathId(1));
    fill(&store, 20..60);
    store.flush().unwrap();
    let (a, b) = (first.counters(), second.counters());
    assert!(b.written_bytes > 50 * GRANULE && a.written_bytes > b.written_bytes, "{a:?} {b:?}");

    store.remove_path(PathId(0), Duration::from_secs(5)).unwrap();
    assert_eq!(first.counters().used_bytes, 0);
    check(&store, 0..60);
    fill(&store, 60..70);
    check(&store, 0..70);
    assert!(store.explain().paths[0].share == 0.0 && store.explain().paths[1].share == 1.0);
    let last = store.remove_path(PathId(1), Duration::from_secs(5)).unwrap_err();
    assert!(last.to_string().contains("last path"), "{last}");
    let gone = store.remove_path(PathId(0), Duration::from_secs(5)).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::InvalidInput);
}

#[test]
fn what_is_being_put_is_moved_off_a_removed_path_too() {
    let (first, second) =
        (Arc::new(MemoryPath::new("first", 1e9)), Arc::new(MemoryPath::new("second", 1e9)));
    let slow = Mischief { delay: Duration::from_millis(2), ..Mischief::default() };
    first.set_mischief(slow);
    second.set_mischief(slow);
    let store = store_over(&[&first, &second], 4);
    let data = bytes(3, 60 * 4096 + 5);
    std::thread::scope(|scope| {
        // Its first chunks leave memory for a path before its last are there and it has its key.
        scope.spawn(|| store.put("large", DType::U8, &[data.len() as u64], &data).unwrap());
        while first.counters().used_bytes == 0 {
            std::thread::yield_now();
        }
        store.remove_path(PathId(0), Duration::from_secs(20)).unwrap();
        assert_eq!(first.counters().used_bytes, 0);
    });
    let mut got = vec![0; data.len()];
    store.get_into("large", &mut got).unwrap();
    assert!(got == data);
}

#[test]
fn a_path_that_does_not_fit_elsewhere_stays_readable() {
    let (large, small) =
        (Arc::new(MemoryPath::new("large", 1e9)), Arc::new(MemoryPath::new("small", 1.0)));
    small.set_mischief(Mischief { quota_bytes: 4 * GRANULE, ..Mischief::default() });
    let store = store_over(&[&large, &small], 12);
    fill(&store, 0..30);
    let error = store.remove_path(PathId(0), Duration::from_secs(5)).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    check(&store, 0..30);
}

#[test]
fn a_directory_joins_once() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::builder().host_budget(1 << 20).path(Path::new(a.path())).open().unwrap();
    store.add_path(&Path::new(b.path()), EngineChoice::Auto).unwrap();
    let twice = store.add_path(&Path::new(b.path()), EngineChoice::Auto).unwrap_err();
    assert!(twice.to_string().contains("already"), "{twice}");
    let missing = store.add_path(&Path::new(b.path().join("none")), EngineChoice::Auto);
    assert!(matches!(missing, Err(Error::PathUnusable { .. })));
    fill(&store, 0..40);
    store.remove_path(PathId(0), Duration::from_secs(5)).unwrap();
    assert_eq!(std::fs::read_dir(a.path()).unwrap().count(), 0);
    check(&store, 0..40);
    store.close(Duration::from_secs(5)).unwrap();
    assert_eq!(std::fs::read_dir(b.path()).unwrap().count(), 0);
}

#[test]
fn the_tensors_of_a_file_are_objects_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("model.safetensors");
    let sizes = [0usize, 5, 4096, 30_001, 100_000];
    let spec = |(i, n): (usize, &usize)| TensorSpec {
        name: format!("t{i}"),
        dtype: DType::U8,
        shape: vec![*n as u64],
    };
    let specs: Vec<_> = sizes.iter().enumerate().map(spec).collect();
    let mut writer = TensorFileWriter::create(&name, &specs, &BTreeMap::new()).unwrap();
    for (i, n) in sizes.iter().enumerate() {
        writer.write(&bytes(i, *n)).unwrap();
    }
    writer.finish().unwrap();
    let before = std::fs::read(&name).unwrap();
    for access in [Access::Direct, Access::Map] {
        let own = Arc::new(MemoryPath::new("own", 1e9));
        let store = store_over(&[&own], 10);
        store.create("taken/t1", DType::U8, &[1]).unwrap();
        let file = || TensorFile::open(&name, access).unwrap();
        let taken = store.adopt(file(), "taken/").unwrap_err();
        assert!(matches!(taken, Error::AlreadyExists { .. }), "{taken}");
        let objects = store.adopt(file(), "").unwrap();
        for (i, n) in sizes.iter().enumerate() {
            let mut data = vec![1; *n];
            store.get_into(&format!("t{i}"), &mut data).unwrap();
            assert_eq!(data, bytes(i, *n), "tensor {i}");
        }
        assert_eq!(own.counters().written_bytes, 0, "reading writes nothing");
        // A change goes to the store's own path, never to the file.
        store.lease_write(&objects[3], 2).wait().unwrap()[7] = 99;
        store.evict("t3").unwrap();
        let mut data = vec![0; 30_001];
        store.get_into("t3", &mut data).unwrap();
        let mut expect = bytes(3, 30_001);
        expect[2 * 4096 + 7] = 99;
        assert_eq!(data, expect);
        assert_eq!(own.counters().writes, 1);
        store.delete("t3").unwrap();
        store.close(Duration::from_secs(5)).unwrap();
        assert_eq!(std::fs::read(&name).unwrap(), before);
    }
}
