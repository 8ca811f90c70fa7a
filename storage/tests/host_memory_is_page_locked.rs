//! The host's memory is page-locked for every device that is attached, as far as the device allows, and
//! no longer than it is attached, whatever ends first: the device, the store, or views of its memory.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::device::{Watched, answer, blocked_stream, set, watched, watched_as};
use common::{PATIENCE, builder, eventually, memory, put, read, soon};
use tensortier_gpu::emulated::Options;
use tensortier_gpu::{Device, Error as DeviceError};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::error::ErrorKind;
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::{DeviceTier, Store};

/// What an arena commits at a time.
const PIECE: u64 = 64 << 20;
const CHUNK: u64 = 16 << 20;
/// A chunk in granules.
const GRANULES: u64 = CHUNK / GRANULE;
const LATE: Duration = Duration::from_millis(3);

/// A store of two pieces.
fn store() -> Store {
    let paths = [memory("path", Mischief::default())];
    builder(2 * PIECE / GRANULE, &paths).chunk_bytes(CHUNK).open().unwrap()
}

fn attach(store: &Store, device: &Arc<Watched>) -> DeviceTier {
    store.attach_device(Arc::clone(device) as Arc<dyn Device>, 8 * CHUNK).unwrap()
}

/// Writes a chunk on the device and reads it on the host, the other way round, and what was put.
#[track_caller]
fn both_ways(store: &Store, device: &Watched, tier: &DeviceTier, key: &str) {
    let object = put(store, key, GRANULES, 1);
    let mut lease = answer(tier.lease_write(&object, 0)).unwrap();
    assert!(device.read(&lease).iter().all(|byte| *byte == 1));
    let written = device.fill(&mut lease, vec![2; CHUNK as usize]);
    answer(lease.end_after(&written)).unwrap();
    assert!(soon(store.lease_read(&object, 0)).unwrap().iter().all(|byte| *byte == 2));
    soon(store.lease_write(&object, 0)).unwrap().fill(3);
    let lease = answer(tier.lease_read(&object, 0)).unwrap();
    assert!(device.read(&lease).iter().all(|byte| *byte == 3));
}

/// What the tests themselves copy on the device's streams is never page-locked.
fn tiers_unlocked_bytes(device: &Watched, of_the_tests: u64) -> u64 {
    device.copied_unlocked_bytes() - of_the_tests
}

#[test]
fn what_is_committed_is_locked_when_a_device_is_attached_and_the_rest_before_its_copies() {
    let (store, device) = (store(), watched(LATE));
    let early: Vec<_> = (0..2).map(|i| put(&store, &format!("e{i}"), GRANULES, 7)).collect();
    let tier = attach(&store, &device);
    assert_eq!(device.page_locked_bytes(), PIECE);
    assert_eq!(tier.usage().host_locked, PIECE);
    // Everything fits the host: what comes later lies in the second piece, or across both.
    both_ways(&store, &device, &tier, "a");
    assert_eq!(tier.usage().host_locked, PIECE);
    let held: Vec<_> = early.iter().map(|e| soon(store.lease_read(e, 0)).unwrap()).collect();
    (0..4).for_each(|i| both_ways(&store, &device, &tier, &format!("b{i}")));
    assert_eq!(store.stats().host.committed, 2 * PIECE);
    assert_eq!((device.page_locked_bytes(), tier.usage().host_locked), (2 * PIECE, 2 * PIECE));
    // Each of five rounds looked twice at the device's bytes and filled them once.
    assert_eq!(tiers_unlocked_bytes(&device, 5 * 3 * CHUNK), 0);
    let usage = tier.usage();
    assert_eq!((usage.counters.bytes_out, usage.host_unlocked), (5 * CHUNK, None));
    let explained = store.explain().to_string();
    assert!(explained.contains("host memory: 128 MiB page-locked for it\n"), "{explained}");
    drop(held);
    store.close(PATIENCE).unwrap();
    assert_eq!((device.page_locked_bytes(), tier.usage().host_locked), (0, 0));
}

#[test]
fn a_copy_back_to_memory_that_was_committed_meanwhile() {
    let (store, device) = (store(), watched(LATE));
    let object = put(&store, "tensor", GRANULES, 1);
    let tier = attach(&store, &device);
    drop(answer(tier.lease_read(&object, 0)).unwrap());
    store.evict("tensor").unwrap();
    let others: Vec<_> = (0..4).map(|i| put(&store, &format!("o{i}"), GRANULES, 7)).collect();
    let _held: Vec<_> = others.iter().map(|o| soon(store.lease_read(o, 0)).unwrap()).collect();
    // The device has its bytes; the host has memory for it in the second piece only.
    let mut lease = answer(tier.lease_write(&object, 0)).unwrap();
    assert_eq!(tier.usage().counters.copies_in, 1);
    assert_eq!(store.stats().host.committed, 2 * PIECE);
    let written = device.fill(&mut lease, vec![2; CHUNK as usize]);
    answer(lease.end_after(&written)).unwrap();
    assert_eq!(tiers_unlocked_bytes(&device, CHUNK), 0);
    assert!(read(&store, "tensor").unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn what_the_device_will_not_lock_is_copied_as_well_and_told() {
    for lockable_bytes in [0, PIECE, 2 * PIECE - 1] {
        let options = Options { lockable_bytes, lateness: LATE, ..Options::default() };
        let (store, device) = (store(), watched_as(options));
        let tier = attach(&store, &device);
        let held: Vec<_> = (0..3)
            .map(|i| {
                soon(store.lease_read(&put(&store, &format!("h{i}"), GRANULES, i), 0)).unwrap()
            })
            .collect();
        (0..3).for_each(|i| both_ways(&store, &device, &tier, &format!("t{i}")));
        assert_eq!(store.stats().host.committed, 2 * PIECE);
        let (usage, locked) = (tier.usage(), lockable_bytes / PIECE * PIECE);
        assert_eq!((usage.host_locked, device.page_locked_bytes()), (locked, locked));
        let Some(DeviceError::LockRefused { bytes, locked_bytes, limit_bytes, .. }) =
            usage.host_unlocked
        else {
            panic!("{:?}", usage.host_unlocked)
        };
        assert_eq!((bytes, locked_bytes, limit_bytes), (PIECE, locked, Some(lockable_bytes)));
        assert!(tiers_unlocked_bytes(&device, 3 * 3 * CHUNK) > 0);
        let explained = store.explain().to_string();
        for said in
            ["page-locked for it (device 0 cannot page-lock", "the limit is", "it has locked"]
        {
            assert!(explained.contains(said), "{explained}");
        }
        drop((held, tier, store));
        assert_eq!(device.page_locked_bytes(), 0);
    }
}

#[test]
fn devices_lock_the_same_memory_each_for_itself() {
    let (store, first, second) = (store(), watched(LATE), watched(LATE));
    put(&store, "tensor", GRANULES, 1);
    let tiers = [attach(&store, &first), attach(&store, &second)];
    both_ways(&store, &first, &tiers[0], "first");
    both_ways(&store, &second, &tiers[1], "second");
    assert_eq!([first.page_locked_bytes(), second.page_locked_bytes()], [PIECE; 2]);
    let [tier, other] = tiers;
    drop(tier);
    eventually("its tier ends", || first.page_locked_bytes() == 0);
    assert_eq!(second.page_locked_bytes(), PIECE);
    both_ways(&store, &second, &other, "third");
    assert_eq!(tiers_unlocked_bytes(&second, 2 * 3 * CHUNK), 0);
}

#[test]
fn tiers_of_one_device_share_its_locks() {
    let (store, device) = (store(), watched(LATE));
    put(&store, "tensor", GRANULES, 1);
    let (tier, other) = (attach(&store, &device), attach(&store, &device));
    for usage in [tier.usage(), other.usage()] {
        assert_eq!((usage.host_locked, usage.host_unlocked), (PIECE, None));
    }
    assert_eq!(device.page_locked_bytes(), PIECE);
    drop(tier);
    eventually("its thread ends", || store.stats().devices.len() == 1);
    assert_eq!(device.page_locked_bytes(), PIECE);
    both_ways(&store, &device, &other, "a");
    // One that ends while another comes: no moment of either is without.
    for _ in 0..50 {
        drop(attach(&store, &device));
        let again = attach(&store, &device);
        assert_eq!((again.usage().host_locked, again.usage().host_unlocked), (PIECE, None));
    }
    drop(other);
    for _ in 0..50 {
        let again = attach(&store, &device);
        assert_eq!((again.usage().host_locked, again.usage().host_unlocked), (PIECE, None));
    }
    eventually("all tiers end", || store.stats().devices.is_empty());
    assert_eq!(device.page_locked_bytes(), 0);
    let again = attach(&store, &device);
    both_ways(&store, &device, &again, "b");
    assert_eq!(tiers_unlocked_bytes(&device, 2 * 3 * CHUNK), 0);
}

#[test]
fn a_tier_that_cannot_be_locks_nothing() {
    let (store, device) = (store(), watched(LATE));
    put(&store, "tensor", GRANULES, 1);
    let error = store.attach_device(Arc::clone(&device) as Arc<dyn Device>, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    store.close(PATIENCE).unwrap();
    let error = store.attach_device(Arc::clone(&device) as Arc<dyn Device>, CHUNK).unwrap_err();
    assert_eq!((error.kind(), device.page_locked_bytes()), (ErrorKind::Closed, 0));
}

#[test]
fn views_outlive_the_locks_and_the_device() {
    let (store, device) = (store(), watched(LATE));
    let object = put(&store, "tensor", GRANULES, 9);
    let tier = attach(&store, &device);
    let on_device = answer(tier.lease_read(&object, 0)).unwrap();
    let view = soon(store.lease_read(&object, 0)).unwrap().into_bytes();
    store.close(PATIENCE).unwrap();
    assert_eq!(device.page_locked_bytes(), 0);
    drop((store, tier, object, on_device));
    eventually("nothing keeps the device", || Arc::strong_count(&device) == 1);
    drop(device);
    assert!(view.iter().all(|byte| *byte == 9));
}

#[test]
fn the_device_outlives_the_memory() {
    let device = watched(LATE);
    for round in 1..3u8 {
        let store = store();
        let tier = attach(&store, &device);
        both_ways(&store, &device, &tier, "tensor");
        assert_eq!(device.page_locked_bytes(), PIECE);
        // Without a close, the store first or last.
        match round {
            1 => drop((store, tier)),
            _ => drop((tier, store)),
        }
        assert_eq!((device.page_locked_bytes(), device.in_use()), (0, 0));
    }
}

#[test]
fn memory_stays_locked_and_there_while_the_device_still_copies() {
    let (store, device) = (store(), watched(Duration::ZERO));
    let object = put(&store, "tensor", GRANULES, 1);
    let tier = attach(&store, &device);
    // A reader of the host's memory on a stream of the caller's own, and a copy of the tier's.
    let lease = Arc::new(soon(store.lease_read(&object, 0)).unwrap());
    let (stream, mine) = blocked_stream(&*device);
    let mut buffer = device.allocate(CHUNK).unwrap();
    let copied = device.copy_in(&stream, lease, 0..CHUNK as usize, &mut buffer, 0).unwrap();
    let tiers = device.block_next_copy();
    let waiting = tier.lease_read(&object, 0);
    eventually("a copy is under way", || device.in_use() > CHUNK + 1);
    let error = store.close(Duration::from_millis(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(answer(waiting).unwrap_err().kind(), ErrorKind::Closed);
    drop((store, tier, object));
    assert_eq!(device.page_locked_bytes(), PIECE);
    drop(tiers);
    // The tier is gone, and the caller's copy goes on.
    eventually("the tier's thread ends", || Arc::strong_count(&device) == 1);
    assert_eq!(device.page_locked_bytes(), PIECE);
    drop(mine);
    copied.wait().unwrap();
    assert_eq!(device.page_locked_bytes(), 0);
    assert!(device.read(&buffer).iter().all(|byte| *byte == 1));
}

#[test]
fn a_copy_that_the_device_refuses_leaves_the_memory_locked() {
    let (store, device) = (store(), watched(LATE));
    let object = put(&store, "tensor", GRANULES, 1);
    let tier = attach(&store, &device);
    set(&device.faults.copy_in, true);
    answer(tier.lease_read(&object, 0)).unwrap_err();
    set(&device.faults.copy_in, false);
    assert_eq!(device.page_locked_bytes(), PIECE);
    both_ways(&store, &device, &tier, "other");
    assert_eq!(tiers_unlocked_bytes(&device, 3 * CHUNK), 0);
    assert!(read(&store, "tensor").unwrap().iter().all(|byte| *byte == 1));
}
