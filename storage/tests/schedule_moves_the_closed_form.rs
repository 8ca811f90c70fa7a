//! With a declared schedule the store reads and writes exactly what the closed form says, in count
//! and in bytes, whatever the sizes, the paths and their timing.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{builder, cases, memory, one_chunk, soon};
use proptest::prelude::*;
use tensortier_storage::arena::GRANULE;
use tensortier_storage::evict::LeastRecentlyUsed;
use tensortier_storage::metrics::CounterValues;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::store::{Compression, ObjectRef, Store};

const PASSES: usize = 6;

/// Chunks and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Moved {
    chunks: u64,
    bytes: u64,
}

/// What stays dirty in memory after a pass: the longest suffix of its order that fits.
fn kept(order: &[usize], sizes: &[u64], capacity: u64) -> Moved {
    let mut kept = Moved::default();
    for index in order.iter().rev() {
        if kept.bytes + sizes[*index] * GRANULE > capacity * GRANULE {
            break;
        }
        kept.chunks += 1;
        kept.bytes += sizes[*index] * GRANULE;
    }
    kept
}

fn up_or_down(n: usize, down: bool) -> Vec<usize> {
    if down { (0..n).rev().collect() } else { (0..n).collect() }
}

/// Returns what pass `number` finds in an object: zeros in the first; later one value, behind some
/// noise in every second object, so that objects compress differently.
fn contents(index: usize, number: u8, len: usize) -> Vec<u8> {
    let fill = (index as u8).wrapping_mul(16).wrapping_add(number);
    let mut bytes = vec![if number == 0 { 0 } else { fill }; len];
    if number > 0 && index % 2 == 1 {
        let mut state = u64::from(fill);
        for byte in &mut bytes[..len * (index % 5) / 5] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    }
    bytes
}

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![Just(Compression::Off), Just(Compression::Lz4)]
}

/// Leases every chunk of a pass in order, checks that it holds what the last pass left, and leaves
/// what this one does. Returns what the store did meanwhile.
fn pass(store: &Store, objects: &[ObjectRef], order: &[usize], number: u8) -> CounterValues {
    let before = store.stats().counters;
    for index in order {
        let mut lease = soon(store.lease_write(&objects[*index], 0)).unwrap();
        let old = contents(*index, number, lease.len());
        assert!(*lease == *old, "object {index}, pass {number}");
        lease.copy_from_slice(&contents(*index, number + 1, old.len()));
    }
    store.barrier().unwrap();
    store.stats().counters.since(&before)
}

fn run_passes(
    store: &Store,
    sizes: &[u64],
    orders: &[Vec<usize>],
    reserve: u64,
) -> Vec<CounterValues> {
    let make = |(i, size): (usize, &u64)| one_chunk(store, &format!("chunk {i}"), *size);
    let objects: Vec<_> = sizes.iter().enumerate().map(make).collect();
    let list = |order: &[usize]| -> Vec<_> { order.iter().map(|i| objects[*i].clone()).collect() };
    let (schedule, mut done) = (store.schedule(), Vec::new());
    for (number, pair) in orders.windows(2).enumerate() {
        // What is read ahead begins with the declaration.
        let before = store.stats().counters;
        schedule.declare(&list(&pair[0]), &list(&pair[1]), reserve * GRANULE).unwrap();
        pass(store, &objects, &pair[0], number as u8);
        done.push(store.stats().counters.since(&before));
    }
    done
}

fn mischief() -> impl Strategy<Value = Mischief> {
    (0usize..4, 0u64..300).prop_map(|(reorder, delay)| Mischief {
        reorder,
        delay: Duration::from_micros(delay),
        ..Mischief::default()
    })
}

fn paths(mischief: &[Mischief]) -> Vec<Arc<MemoryPath>> {
    mischief.iter().enumerate().map(|(i, m)| memory(&format!("path {i}"), *m)).collect()
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn alternating_passes_move_n_less_what_was_kept(
        sizes in prop::collection::vec(1u64..=12, 2..20),
        more in 0u64..60,
        mischief in prop::collection::vec(mischief(), 1..4),
        checksums in any::<bool>(),
        compression in compression(),
        packing in 0u64..20,
        reserved in 1u64..=2,
    ) {
        let largest = *sizes.iter().max().unwrap();
        let (budget, reserve) = (3 * largest + more, reserved * largest);
        let paths = paths(&mischief);
        let packing = if compression == Compression::Off { 0 } else { packing };
        let store = builder(budget + packing, &paths)
            .checksums(checksums)
            .compression(compression)
            .packing_bytes(packing * GRANULE)
            .open()
            .unwrap();
        let orders: Vec<_> = (0..=PASSES).map(|t| up_or_down(sizes.len(), t % 2 == 1)).collect();
        let all = Moved {
            chunks: sizes.len() as u64,
            bytes: sizes.iter().sum::<u64>() * GRANULE,
        };
        let done = run_passes(&store, &sizes, &orders, reserve);
        for (t, did) in done.iter().enumerate().skip(1) {
            let before = kept(&orders[t - 1], &sizes, budget - reserve);
            let after = kept(&orders[t], &sizes, budget - reserve);
            let expect = [all.chunks - before.chunks, all.bytes - before.bytes];
            prop_assert_eq!([did.loads, did.load_bytes], expect, "loads of pass {}: {:?}", t, did);
            let expect = [all.chunks - after.chunks, all.bytes - after.bytes];
            let decided = [did.write_backs, did.write_back_bytes];
            prop_assert_eq!(decided, expect, "write-backs of pass {}: {:?}", t, did);
        }
        store.close(common::PATIENCE).unwrap();
    }

    #[test]
    fn a_repeated_order_keeps_a_fixed_set(
        size in 1u64..=5,
        n in 2usize..24,
        fits in 1u64..24,
        mischief in prop::collection::vec(mischief(), 1..4),
        compression in compression(),
    ) {
        let builder = builder((2 + fits) * size, &paths(&mischief)).compression(compression);
        let store = builder.open().unwrap();
        let orders = vec![up_or_down(n, false); PASSES + 1];
        let done = run_passes(&store, &vec![size; n], &orders, 2 * size);
        for did in &done[1..] {
            let moved = (n as u64).saturating_sub(fits);
            prop_assert_eq!([did.loads, did.write_backs], [moved, moved], "{:?}", did);
        }
        store.close(common::PATIENCE).unwrap();
    }
}

#[test]
fn ascending_without_a_schedule_finds_nothing_in_memory() {
    let store =
        builder(8, &paths(&[Mischief::default(); 2])).eviction(LeastRecentlyUsed).open().unwrap();
    let objects: Vec<_> = (0..11).map(|i| one_chunk(&store, &format!("chunk {i}"), 1)).collect();
    let order = up_or_down(11, false);
    pass(&store, &objects, &order, 0);
    for number in 1..4 {
        let did = pass(&store, &objects, &order, number);
        assert_eq!((did.loads, did.hits, did.misses), (11, 0, 11));
    }
}

#[test]
fn a_chunk_that_leases_overtook_is_not_read_ahead_again() {
    // The read-ahead waits for memory that a view holds, while the leases go on.
    let store = builder(6, &paths(&[Mischief::default()])).open().unwrap();
    let objects: Vec<_> = (0..8).map(|i| one_chunk(&store, &format!("chunk {i}"), 1)).collect();
    let order = up_or_down(8, false);
    pass(&store, &objects, &order, 0);
    (0..8).for_each(|i| store.evict(&format!("chunk {i}")).unwrap());
    let views: Vec<_> = (0..4)
        .map(|i| {
            common::put(&store, &format!("view {i}"), 1, 1);
            soon(store.lease_read(&store.object(&format!("view {i}")).unwrap(), 0)).unwrap()
        })
        .collect();
    let schedule = store.schedule();
    schedule.declare(&objects, &objects, 5 * GRANULE).unwrap();
    pass(&store, &objects, &order, 1);
    drop(views);
    store.barrier().unwrap();
    assert_eq!(store.stats().counters.loads, 8);
}

#[test]
fn no_more_is_read_ahead_than_a_schedule_is_told() {
    let store = builder(8, &paths(&[Mischief::default()])).open().unwrap();
    let objects: Vec<_> = (0..8).map(|i| one_chunk(&store, &format!("chunk {i}"), 1)).collect();
    pass(&store, &objects, &up_or_down(8, false), 0);
    (0..8).for_each(|i| store.evict(&format!("chunk {i}")).unwrap());
    let schedule = store.schedule().with_read_ahead(2);
    schedule.declare(&objects, &objects, GRANULE).unwrap();
    let loads = || {
        store.barrier().unwrap();
        store.stats().counters.loads
    };
    // The first, and two ahead of it; with each that ends one more.
    common::eventually("three were read", || loads() == 3);
    drop(soon(store.lease_write(&objects[0], 0)).unwrap());
    common::eventually("a fourth was read", || loads() == 4);
    let _leased = soon(store.lease_write(&objects[1], 0)).unwrap();
    assert_eq!(loads(), 4);
}

#[test]
fn memory_for_stored_bytes_costs_no_chunk_that_the_schedule_keeps() {
    // "kept" stays; "a" and "b" share a reserve of 12 granules. While "a" is written, compressed into
    // what is left of it, "b" is wanted: it must wait for "a", not take the place of "kept".
    let slow = Mischief { delay: Duration::from_millis(20), ..Mischief::default() };
    let store = builder(24, &paths(&[slow])).compression(Compression::Lz4).open().unwrap();
    let sizes = [("kept", 12), ("a", 8), ("b", 12)];
    let objects: Vec<_> =
        sizes.iter().map(|(key, granules)| one_chunk(&store, key, *granules)).collect();
    let (schedule, mut did) = (store.schedule(), Vec::new());
    for number in 0..4u8 {
        let before = store.stats().counters;
        schedule.declare(&objects, &objects, 12 * GRANULE).unwrap();
        for (index, object) in objects.iter().enumerate() {
            let mut lease = soon(store.lease_write(object, 0)).unwrap();
            // Index 1 of `contents`: noise, then one value.
            let old = contents(1, number, lease.len());
            assert!(*lease == *old, "object {index}");
            lease.copy_from_slice(&contents(1, number + 1, old.len()));
            drop(lease);
            std::thread::sleep(Duration::from_millis(5));
        }
        store.barrier().unwrap();
        let counters = store.stats().counters.since(&before);
        did.push((counters.loads + counters.zero_fills, counters.write_backs));
    }
    assert!(store.stats().counters.packed > 0);
    assert_eq!(did, [(3, 2), (2, 2), (2, 2), (2, 2)]);
}

#[test]
fn of_two_schedules_the_one_that_comes_round_keeps_its_chunks() {
    // In every round 4 chunks are used again, and 10 of a long scan once. By age the scan would
    // drive them out each time.
    let store = builder(8, &paths(&[Mischief::default()])).open().unwrap();
    let make = |prefix: &str, count: usize| -> Vec<_> {
        (0..count).map(|i| one_chunk(&store, &format!("{prefix} {i}"), 1)).collect()
    };
    let (again, once) = (make("again", 4), make("once", 200));
    let use_all = |objects: &[ObjectRef]| {
        for object in objects {
            soon(store.lease_write(object, 0)).unwrap()[0] += 1;
        }
    };
    let (round, scan) = (store.schedule(), store.schedule());
    scan.declare(&once, &[], 0).unwrap();
    for part in once.chunks(10) {
        round.declare(&again, &again, 0).unwrap();
        use_all(&again);
        use_all(part);
    }
    store.barrier().unwrap();
    let counters = store.stats().counters;
    assert!(counters.zero_fills >= 204, "each is made once at least");
    assert!(counters.loads < 20, "{} of 80 uses had to be read", counters.loads);
    drop((round, scan));
    use_all(&again);
}
