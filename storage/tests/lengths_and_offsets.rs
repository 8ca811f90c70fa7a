//! Every length is legal and every byte of it comes back: empty, odd, around blocks, granules and
//! chunks, longer than the whole budget, beyond 4 GiB; into buffers that lie anywhere.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::time::Duration;

use common::{builder, memory, pattern, read, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::ErrorKind;
use tensortier_storage::path::Path;
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::Store;

const CHUNK: u64 = 10_000;

/// Lengths at which something ends, and what is just beside them.
const LENGTHS: [usize; 17] = [
    0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 9_999, 10_000, 10_001, 19_999, 30_001,
    288_241,
];

fn on_memory() -> Store {
    let paths = [memory("one", Mischief::default()), memory("two", Mischief::default())];
    builder(16, &paths).chunk_bytes(CHUNK).open().unwrap()
}

/// Puts, reads in all ways, changes and evicts an object of `len` bytes, through buffers that begin
/// `offset` bytes into an aligned page.
fn round_trip(store: &Store, len: usize, offset: usize) {
    let mut page = vec![0; 4096 + offset + len];
    let skip = page.as_ptr().align_offset(4096) + offset;
    let buffer = &mut page[skip..skip + len];
    let bytes = pattern(len, len as u64);
    buffer.copy_from_slice(&bytes);
    let object = store.put("t", DType::U8, &[len as u64], buffer).unwrap();
    store.evict(&object).unwrap();
    assert_eq!(object.stat().host_bytes, 0);
    buffer.fill(0);
    store.get_into(&object, buffer).unwrap();
    assert_eq!(buffer, bytes);

    // A range around each border, and all but the first and last byte.
    let n = len as u64;
    let inner = if len >= 2 { 1..n - 1 } else { 0..n };
    let around = |at: u64| at.saturating_sub(offset as u64).min(n)..(at + 7).min(n);
    let ranges = [inner, around(4096), around(CHUNK), around(n), n..n, 0..0];
    for range in ranges {
        let expect = &bytes[range.start as usize..range.end as usize];
        let part = &mut buffer[..expect.len()];
        part.fill(0xEE);
        store.get_range_into(&object, range.clone(), part).unwrap();
        assert_eq!(part, expect, "{range:?} of {len}");
        // What is leased must fit in memory together.
        if expect.len() <= 2 * CHUNK as usize {
            let lease = store.lease_range_read(&object, range).wait().unwrap();
            assert_eq!(lease.slices().flatten().copied().collect::<Vec<_>>(), expect);
            assert_eq!(lease.len(), expect.len());
        }
    }

    let mut changed = bytes;
    if len > 0 {
        let from = (offset * 37) % len;
        let to = (from + 5_000).min(len);
        changed[from..to].iter_mut().for_each(|byte| *byte = !*byte);
        store.write_range(&object, from as u64..to as u64, &changed[from..to]).unwrap();
        let last = object.chunks() - 1;
        let mut lease = soon(store.lease_write(&object, last)).unwrap();
        let end = lease.len() - 1;
        lease[end] = 42;
        changed[len - 1] = 42;
    }
    store.evict(&object).unwrap();
    let parts = store.get(&object).unwrap();
    assert_eq!(parts.len() as u64, n.div_ceil(CHUNK));
    assert_eq!(parts.flat_map(|part| part.unwrap()).collect::<Vec<_>>(), changed);
}

#[test]
fn every_length_comes_back_from_paths_in_memory() {
    let store = on_memory();
    for (i, len) in LENGTHS.into_iter().enumerate() {
        (0..64).filter(|offset| offset % 8 == i % 8).for_each(|offset| {
            round_trip(&store, len, offset);
        });
    }
    // Every offset, at a length that crosses chunks.
    (0..64).for_each(|offset| round_trip(&store, 10_001, offset));
}

#[test]
fn every_length_comes_back_from_files() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = Store::builder()
        .host_budget(16 * GRANULE)
        .chunk_bytes(CHUNK)
        .path(Path::new(dir.path()))
        .open()
        .unwrap();
    LENGTHS.into_iter().enumerate().for_each(|(i, len)| round_trip(&store, len, 7 * i % 64));
}

#[test]
fn tensors_without_elements_are_tensors() {
    let store = on_memory();
    let shapes: [&[u64]; 5] = [&[0], &[3, 0, 5], &[0, u64::MAX], &[7, 0], &[0, 0, 0, 0]];
    for shape in shapes {
        let object = store.put("empty", DType::F32, shape, &[]).unwrap();
        assert_eq!((object.bytes(), object.chunks()), (0, 0));
        assert_eq!(store.stat("empty").unwrap().shape, shape);
        store.prefetch("empty").unwrap();
        store.get_into("empty", &mut []).unwrap();
        store.write_range("empty", 0..0, &[]).unwrap();
        assert!(store.lease_range_read("empty", 0..0).wait().unwrap().is_empty());
        assert_eq!(store.get("empty").unwrap().count(), 0);
        assert_eq!(soon(store.lease_read(&object, 0)).unwrap_err().kind(), ErrorKind::InvalidInput);
        store.evict("empty").unwrap();
        store.flush().unwrap();
        store.rename("empty", "other").unwrap();
        assert!(store.contains("other"));
        store.delete("other").unwrap();
        store.create("empty", DType::BF16, shape).unwrap();
        store.delete("empty").unwrap();
    }
    // A scalar has one element and no extents.
    store.put("scalar", DType::F64, &[], &1.5f64.to_le_bytes()).unwrap();
    assert_eq!(read(&store, "scalar").unwrap(), 1.5f64.to_le_bytes());
    let stats = store.stats();
    assert_eq!((stats.host.in_use, stats.counters.loads), (GRANULE, 0));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let store = on_memory();
    let object = store.put("t", DType::U16, &[10], &[1; 20]).unwrap();
    let kind = |result: tensortier_storage::error::Result<()>| result.unwrap_err().kind();
    let invalid = ErrorKind::InvalidInput;
    assert_eq!(kind(store.put("t", DType::U16, &[10], &[1; 19]).map(drop)), invalid);
    assert_eq!(kind(store.put("t", DType::U16, &[1 << 63], &[1; 20]).map(drop)), invalid);
    assert_eq!(kind(store.get_into(&object, &mut [0; 21])), invalid);
    assert_eq!(kind(store.get_range_into(&object, 15..21, &mut [0; 6])), invalid);
    assert_eq!(kind(store.get_range_into(&object, 15..20, &mut [0; 6])), invalid);
    #[allow(clippy::reversed_empty_ranges, reason = "it is the range that is tested")]
    let reversed = store.get_range_into(&object, 9..8, &mut []);
    assert_eq!(kind(reversed), invalid);
    assert_eq!(kind(store.write_range(&object, u64::MAX..u64::MAX, &[])), invalid);
    assert_eq!(kind(store.write_range(&object, 0..2, &[1])), invalid);
    assert_eq!(kind(store.lease_range_read(&object, 0..21).wait().map(drop)), invalid);
    assert_eq!(read(&store, "t").unwrap(), [1; 20]);
}

#[test]
fn three_and_a_half_budgets_go_through_both_ways() {
    let slow = Mischief { delay: Duration::from_micros(50), ..Mischief::default() };
    let builder = builder(16, &[memory("path", slow)]).chunk_bytes(2 * GRANULE);
    let store = builder.open().unwrap();
    let bytes = pattern(56 * 4096 + 1, 1);
    let len = bytes.len() as u64;
    let object = store.put("long", DType::U8, &[len], &bytes).unwrap();
    assert_eq!(read(&store, "long").unwrap(), bytes);
    let parts = store.get("long").unwrap();
    assert_eq!(parts.flat_map(|part| part.unwrap()).collect::<Vec<_>>(), bytes);
    let flipped: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    store.write_range(&object, 0..len, &flipped).unwrap();
    assert_eq!(read(&store, "long").unwrap(), flipped);
    // Held all together it cannot be.
    let error = store.lease_range_read(&object, 0..len).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    assert_eq!(read(&store, "long").unwrap(), flipped);
    assert!(store.stats().host.committed <= 16 * GRANULE);
}

#[test]
fn beyond_four_gib_only_what_is_touched_costs() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = Store::builder()
        .host_budget(8 << 20)
        .chunk_bytes(1 << 20)
        .path(Path::new(dir.path()))
        .open()
        .unwrap();
    for len in [(2u64 << 30) - 1, (2 << 30) + 4096, (4 << 30) + 1] {
        let object = store.create("sparse", DType::U8, &[len]).unwrap();
        assert_eq!(u64::from(object.chunks()), len.div_ceil(1 << 20));
        let places = [0, len / 2 - 9_003, ((1 << 31) - 1_000).min(len - 4_000), len - 2_000];
        for (i, at) in places.into_iter().enumerate() {
            store.write_range(&object, at..at + 2_000, &pattern(2_000, i as u64)).unwrap();
        }
        store.evict(&object).unwrap();
        let stat = object.stat();
        assert!(stat.host_bytes == 0 && stat.stored_bytes <= 6 << 20, "{stat:?}");
        for (i, at) in places.into_iter().enumerate() {
            let mut into = vec![9; 2_000];
            store.get_range_into("sparse", at..at + 2_000, &mut into).unwrap();
            assert!(into == pattern(2_000, i as u64), "at {at} of {len}");
        }
        let mut last = [9; 1];
        store.get_range_into("sparse", (1 << 30) + 1..(1 << 30) + 2, &mut last).unwrap();
        assert_eq!(last, [0], "never written");
        let lease = store.lease_range_read("sparse", len - 1..len).wait().unwrap();
        assert_eq!(lease.as_slice(), Some(&pattern(2_000, 3)[1_999..]));
        drop(lease);
        store.delete(&object).unwrap();
    }
    let elements = 3u64 << 30;
    let object = store.create("elements", DType::F64, &[elements]).unwrap();
    assert_eq!(object.bytes(), elements * 8);
}
