//! With compression on the same bytes come back, from less space where that pays; failing paths lose
//! none, corrupt ones return none, and the memory for it is memory of the budget.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;

use common::{PATIENCE, builder, memory, read, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::path::{Path, PathStore};
use tensortier_storage::store::{Compression, Store, StoreBuilder};

/// Elements of 1 MiB in chunks that are compressed on their way out.
const ELEMENTS: u64 = 256 << 10;

fn lz4(granules: u64, path: &Arc<MemoryPath>) -> StoreBuilder {
    builder(granules, std::slice::from_ref(path)).compression(Compression::Lz4)
}

fn noise(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len as usize).collect()
}

/// Returns 1 MiB of f32 of which one in twenty is not zero.
fn sparse(seed: u64) -> Vec<u8> {
    let mut bytes = noise(4 * ELEMENTS, seed);
    for (i, element) in bytes.chunks_mut(4).enumerate() {
        if i % 20 != 7 {
            element.fill(0);
        }
    }
    bytes
}

/// Returns 1 MiB of f32 under few exponents: only their byte planes compress.
fn narrow(seed: u64) -> Vec<u8> {
    let mut bytes = noise(4 * ELEMENTS, seed);
    bytes.chunks_mut(4).for_each(|element| {
        element[2] &= 1;
        element[3] = 0x3F;
    });
    bytes
}

fn put(store: &Store, key: &str, bytes: &[u8]) {
    store.put(key, DType::F32, &[bytes.len() as u64 / 4], bytes).unwrap();
}

fn put_and_evict(store: &Store, key: &str, bytes: &[u8]) {
    put(store, key, bytes);
    store.evict(key).unwrap();
}

#[test]
fn what_compresses_takes_less_space_and_comes_back() {
    for checksums in [false, true] {
        let path = memory("path", Mischief { reorder: 2, ..Mischief::default() });
        let store = lz4(2048, &path).checksums(checksums).open().unwrap();
        assert!(store.explain().to_string().contains("compression lz4"));
        put_and_evict(&store, "sparse", &sparse(1));
        assert!(path.counters().used_bytes < ELEMENTS, "{:?}", path.counters());
        put_and_evict(&store, "narrow", &narrow(2));
        assert!(path.counters().used_bytes < 4 * ELEMENTS);
        let counters = store.stats().counters;
        assert_eq!((counters.packed, counters.written_bytes), (2, 8 * ELEMENTS));
        assert_eq!(counters.stored_bytes, path.counters().used_bytes);
        assert_eq!(counters.stored_bytes, path.counters().written_bytes);
        assert!(counters.stored_ratio().unwrap() < 0.6);
        assert!(read(&store, "sparse").unwrap() == sparse(1));
        assert!(read(&store, "narrow").unwrap() == narrow(2));
        assert_eq!(path.counters().read_bytes, counters.stored_bytes);
        // Changed, and written again from what was decompressed.
        let object = store.object("narrow").unwrap();
        soon(store.lease_write(&object, 0)).unwrap()[..4].fill(7);
        store.evict("narrow").unwrap();
        assert_eq!(read(&store, "narrow").unwrap()[..5], [7, 7, 7, 7, narrow(2)[4]]);
        store.delete("sparse").unwrap();
        store.delete("narrow").unwrap();
        store.barrier().unwrap();
        assert_eq!((path.counters().used_bytes, store.stats().host.in_use), (0, 0));
    }
}

#[test]
fn what_does_not_compress_is_stored_as_it_is() {
    let path = memory("path", Mischief::default());
    let store = lz4(2048, &path).open().unwrap();
    for (key, len) in [("noise", 4 * ELEMENTS), ("odd", 400_004), ("one granule", GRANULE)] {
        put_and_evict(&store, key, &noise(len, 3));
        assert!(read(&store, key).unwrap() == noise(len, 3), "{key}");
    }
    put_and_evict(&store, "zero granule", &[0; GRANULE as usize]);
    let counters = store.stats().counters;
    assert_eq!((counters.packed, counters.written), (0, 4));
    assert!(counters.stored_ratio().unwrap() >= 1.0);
}

#[test]
fn off_is_the_default() {
    let path = memory("path", Mischief::default());
    let store = builder(512, std::slice::from_ref(&path)).open().unwrap();
    assert!(store.explain().to_string().contains("compression off"));
    put_and_evict(&store, "sparse", &sparse(1));
    assert_eq!(store.stats().counters.packed, 0);
    assert_eq!(path.counters().used_bytes, 4 * ELEMENTS);
}

#[test]
fn without_memory_for_it_a_chunk_is_stored_raw_and_nothing_waits() {
    let path = memory("path", Mischief::default());
    let store = lz4(256, &path).open().unwrap();
    put_and_evict(&store, "fills the budget", &sparse(4));
    assert_eq!((store.stats().counters.packed, path.counters().used_bytes), (0, 4 * ELEMENTS));
    let object = store.object("fills the budget").unwrap();
    assert!(*soon(store.lease_read(&object, 0)).unwrap() == *sparse(4));
}

#[test]
fn memory_set_aside_serves_where_the_rest_is_full() {
    let path = memory("path", Mischief::default());
    let store = lz4(256 + 32, &path).packing_bytes(32 * GRANULE).open().unwrap();
    let explained = store.explain();
    assert_eq!((explained.host_budget, explained.packing_bytes), (288 * GRANULE, 32 * GRANULE));
    assert!(explained.to_string().contains("128 KiB of the budget set aside"), "{explained}");
    for i in 0..6 {
        put(&store, &format!("t{i}"), &sparse(i));
    }
    store.flush().unwrap();
    let counters = store.stats().counters;
    assert_eq!((counters.packed, counters.written), (6, 6));
    (0..6).for_each(|i| assert!(read(&store, &format!("t{i}")).unwrap() == sparse(i), "t{i}"));
    let stats = store.stats();
    assert_eq!((stats.host.budget, stats.packing.unwrap().in_use), (256 * GRANULE, 0));
    let refused = lz4(8, &path).packing_bytes(8 * GRANULE).open().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_compressed_chunk_needs_no_more_memory_to_be_read_than_its_own() {
    let path = memory("path", Mischief::default());
    let store = lz4(512, &path).open().unwrap();
    put_and_evict(&store, "sparse", &sparse(5));
    assert_eq!(store.stats().counters.packed, 1);
    // Another object's lease leaves exactly the chunk's own bytes.
    put(&store, "held", &noise(4 * ELEMENTS, 6));
    let held = soon(store.lease_read(&store.object("held").unwrap(), 0)).unwrap();
    assert!(read(&store, "sparse").unwrap() == sparse(5));
    assert_eq!(store.stats().host.in_use, store.stats().host.budget);
    drop(held);
}

#[test]
fn what_one_path_refuses_another_gets_compressed() {
    let broken = Mischief { fail_write_every: 1, ..Mischief::default() };
    let flaky = Mischief { fail_write_every: 3, reorder: 2, ..Mischief::default() };
    let paths = [memory("broken", broken), memory("flaky", flaky)];
    let builder = builder(1024, &paths).compression(Compression::Lz4);
    let store = builder.packing_bytes(256 * GRANULE).open().unwrap();
    for i in 0..12 {
        put(&store, &format!("t{i}"), &if i % 2 == 0 { sparse(i) } else { narrow(i) });
    }
    store.flush().unwrap();
    let counters = store.stats().counters;
    assert!(counters.replaced > 0 && counters.packed > 0, "{counters:?}");
    for i in 0..12 {
        let expect = if i % 2 == 0 { sparse(i) } else { narrow(i) };
        assert!(read(&store, &format!("t{i}")).unwrap() == expect, "t{i}");
        store.delete(&format!("t{i}")).unwrap();
    }
    store.barrier().unwrap();
    assert_eq!((paths[1].counters().used_bytes, store.stats().host.in_use), (0, 0));
}

#[test]
fn what_no_path_takes_stays_readable_and_its_stored_bytes_are_given_back() {
    let path = memory("dead", Mischief { fail_write_every: 1, ..Mischief::default() });
    let store = lz4(1024, &path).open().unwrap();
    put(&store, "sparse", &sparse(1));
    for _ in 0..3 {
        assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(store.stats().host.in_use, 4 * ELEMENTS);
        assert!(read(&store, "sparse").unwrap() == sparse(1));
    }
    path.set_mischief(Mischief { quota_bytes: ELEMENTS, ..Mischief::default() });
    // Raw it would not fit.
    store.evict("sparse").unwrap();
    path.set_mischief(Mischief { fail_read_every: 1, ..Mischief::default() });
    assert_eq!(read(&store, "sparse").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(store.stats().host.in_use, 0);
    path.set_mischief(Mischief::default());
    assert!(read(&store, "sparse").unwrap() == sparse(1));
}

#[test]
fn a_flipped_bit_of_stored_bytes_is_found_before_they_are_decompressed() {
    let path = memory("flips", Mischief::default());
    let store = lz4(2048, &path).open().unwrap();
    for i in 0..4 {
        put_and_evict(&store, &format!("t{i}"), &if i % 2 == 0 { sparse(i) } else { narrow(i) });
    }
    assert_eq!(store.stats().counters.packed, 4);
    path.set_mischief(Mischief { flip_read_every: 1, ..Mischief::default() });
    for i in 0..4 {
        let error = read(&store, &format!("t{i}")).unwrap_err();
        assert!(matches!(error, Error::Corrupt { block: 0, .. }), "{error:?}");
    }
    path.set_mischief(Mischief::default());
    path.corrupt_all();
    for i in 0..4 {
        let error = read(&store, &format!("t{i}")).unwrap_err();
        let named =
            matches!(&error, Error::Corrupt { key, block: 1..4, .. } if *key == format!("t{i}"));
        assert!(named, "{error:?}");
    }
    assert_eq!(store.stats().host.in_use, 0);
}

#[test]
fn without_checksums_corrupt_bytes_are_an_error_or_other_bytes_but_no_panic() {
    let path = memory("flips", Mischief::default());
    let store = lz4(2048, &path).checksums(false).open().unwrap();
    put_and_evict(&store, "zeros", &vec![0; 4 * ELEMENTS as usize]);
    assert_eq!(store.stats().counters.packed, 1);
    // The first byte says how many literals and how long a match: its length is then another.
    path.set_mischief(Mischief { flip_read_every: 1, ..Mischief::default() });
    let error = read(&store, "zeros").unwrap_err();
    assert!(matches!(error, Error::Undecodable { block: 0, .. }), "{error:?}");
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("zeros"), "{error}");
    assert_eq!(store.stats().host.in_use, 0);
    path.set_mischief(Mischief::default());
    assert!(read(&store, "zeros").unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn files_hold_compressed_chunks_too() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = Store::builder()
        .host_budget(16 << 20)
        .chunk_bytes(3 << 20)
        .path(Path::new(dir.path()))
        .compression(Compression::Lz4)
        .open()
        .unwrap();
    let mut all = Vec::new();
    (0..8).for_each(|i| all.extend(if i % 3 == 0 { noise(4 * ELEMENTS, i) } else { sparse(i) }));
    put_and_evict(&store, "mixed", &all);
    assert!(store.stats().counters.packed > 0);
    assert!(read(&store, "mixed").unwrap() == all);
    store.close(PATIENCE).unwrap();
    assert_eq!(store.stats().host.in_use, 0);
}
