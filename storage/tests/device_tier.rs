//! Leases on a device: the right version at the right time within a strict budget, whatever the host,
//! other leases and the device itself do meanwhile. Copies of the device are late on purpose, so that a
//! missing wait shows as wrong bytes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::device::{Watched, answer, blocked_stream, lost_event, set, watched};
use common::{PATIENCE, builder, eventually, memory, one_chunk, put, read, soon, within_patience};
use tensortier_gpu::Device;
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind, Fate};
use tensortier_storage::id::Tier;
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::{DeviceTier, ObjectRef, Store};

const LATE: Duration = Duration::from_millis(3);

struct World {
    store: Store,
    device: Arc<Watched>,
    tier: DeviceTier,
}

/// A host and a device of so many granules, over one path.
fn world(host: u64, device: u64) -> World {
    world_over(host, device, Mischief::default(), LATE)
}

fn world_over(host: u64, granules: u64, mischief: Mischief, late: Duration) -> World {
    let store = builder(host, &[memory("path", mischief)]).chunk_bytes(GRANULE).open().unwrap();
    let device = watched(late);
    let attached = Arc::clone(&device) as Arc<dyn Device>;
    let tier = store.attach_device(attached, granules * GRANULE).unwrap();
    World { store, device, tier }
}

impl World {
    fn read(&self, object: &ObjectRef) -> Vec<u8> {
        self.device.read(&answer(self.tier.lease_read(object, 0)).unwrap())
    }

    /// Writes on the device and does not wait for its end.
    fn write(&self, object: &ObjectRef, byte: u8) {
        let mut lease = answer(self.tier.lease_write(object, 0)).unwrap();
        let bytes = vec![byte; lease.bytes() as usize];
        let written = self.device.fill(&mut lease, bytes);
        drop(lease.end_after(&written));
    }

    fn counter(&self, of: impl Fn(&tensortier_storage::store::DeviceUse) -> u64) -> u64 {
        of(&self.tier.usage())
    }
}

/// Checks that all bytes are `byte`.
#[track_caller]
fn all_are(bytes: &[u8], byte: u8) {
    assert_eq!(bytes.iter().position(|one| *one != byte), None, "{} and not {byte}", bytes[0]);
}

#[test]
fn what_the_host_wrote_is_read_on_the_device() {
    let world = world(8, 4);
    let object = put(&world.store, "tensor", 1, 7);
    all_are(&world.read(&object), 7);
    soon(world.store.lease_write(&object, 0)).unwrap()[4095] = 9;
    let bytes = world.read(&object);
    assert_eq!((bytes[0], bytes[4095]), (7, 9));
    world.store.evict("tensor").unwrap();
    soon(world.store.lease_write(&object, 0)).unwrap()[0] = 1;
    world.store.evict("tensor").unwrap();
    assert_eq!(world.read(&object)[0], 1);
}

#[test]
fn a_large_chunk_goes_in_pieces() {
    let world = world(8192, 8192);
    let bytes: Vec<u8> = (0..20_000_003u32).map(|i| (i * 7 / 5) as u8).collect();
    let object = world.store.create_chunked("large", DType::U8, &[20_000_003], 20_000_003).unwrap();
    soon(world.store.lease_write(&object, 0)).unwrap().copy_from_slice(&bytes);
    let mut lease = answer(world.tier.lease_write(&object, 0)).unwrap();
    assert!(world.device.read(&lease) == bytes);
    let turned: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    let written = world.device.fill(&mut lease, turned.clone());
    answer(lease.end_after(&written)).unwrap();
    assert!(read(&world.store, "large").unwrap() == turned);
}

#[test]
fn what_the_device_wrote_is_read_everywhere() {
    let world = world(2, 2);
    let object = one_chunk(&world.store, "tensor", 1);
    all_are(&world.read(&object), 0);
    world.write(&object, 5);
    all_are(&soon(world.store.lease_read(&object, 0)).unwrap(), 5);
    world.store.evict("tensor").unwrap();
    assert_eq!(world.store.stat("tensor").unwrap().host_bytes, 0);
    // The copy that was written is still the newest: nothing is loaded for it.
    let loads = world.store.stats().counters.loads;
    all_are(&world.read(&object), 5);
    assert_eq!(world.store.stats().counters.loads, loads);
    // And without that copy it comes from its path.
    (0..4).for_each(|i| drop(world.read(&put(&world.store, &format!("other {i}"), 1, i))));
    world.store.evict("tensor").unwrap();
    all_are(&world.read(&object), 5);
    assert!(world.store.stats().counters.loads > loads);
}

#[test]
fn an_old_copy_is_never_served_and_a_lease_keeps_its_own() {
    let world = world(4, 4);
    let object = put(&world.store, "tensor", 1, 0);
    let mut held = Vec::new();
    for round in 1..4u8 {
        held.push((round - 1, answer(world.tier.lease_read(&object, 0)).unwrap()));
        if round == 2 {
            world.write(&object, round);
        } else {
            soon(world.store.lease_write(&object, 0)).unwrap().fill(round);
        }
        all_are(&world.read(&object), round);
        assert!(held.iter().all(|(byte, lease)| world.device.read(lease) == [*byte; 4096]));
    }
}

#[test]
fn copies_are_reused_by_readers_and_writers() {
    let world = world(4, 4);
    let object = put(&world.store, "tensor", 1, 3);
    world.read(&object);
    (0..5).for_each(|_| drop(world.read(&object)));
    world.write(&object, 4);
    world.write(&object, 5);
    all_are(&world.read(&object), 5);
    let counters = world.tier.usage().counters;
    assert_eq!((counters.copies_in, counters.bytes_in), (1, GRANULE));
    assert_eq!((counters.copies_out, counters.bytes_out), (2, 2 * GRANULE));
    assert_eq!(counters.evictions, 0);
    assert_eq!(world.device.in_use(), GRANULE);
}

#[test]
fn an_exclusive_lease_that_changes_nothing_copies_nothing_back() {
    let world = world(4, 4);
    let object = put(&world.store, "tensor", 1, 3);
    world.store.evict("tensor").unwrap();
    let lease = answer(world.tier.lease_write(&object, 0)).unwrap();
    all_are(&world.device.read(&lease), 3);
    answer(lease.end()).unwrap();
    drop(answer(world.tier.lease_write(&object, 0)).unwrap());
    world.store.flush().unwrap();
    let stats = world.store.stats();
    assert_eq!((stats.devices[0].counters.copies_out, stats.counters.written), (0, 1));
    all_are(&world.read(&object), 3);
}

#[test]
fn the_copy_back_waits_for_the_callers_work() {
    let world = world_over(4, 4, Mischief::default(), Duration::ZERO);
    let (object, other) = (put(&world.store, "tensor", 1, 1), put(&world.store, "other", 1, 3));
    let mut lease = answer(world.tier.lease_write(&object, 0)).unwrap();
    let (stream, opens) = blocked_stream(&*world.device);
    let work = world.device.fill_on(&stream, &mut lease, vec![2; 4096]);
    let ended = lease.end_after(&work);
    let reader = world.store.lease_read(&object, 0);
    // Others go on meanwhile, on the same streams of the tier.
    world.write(&other, 4);
    assert_eq!(soon(world.store.lease_read(&other, 0)).unwrap()[0], 4);
    assert!(!ended.is_ready() && !reader.is_ready(), "its work is not done");
    drop(opens);
    answer(ended).unwrap();
    all_are(&soon(reader).unwrap(), 2);
}

#[test]
fn memory_that_queued_work_reads_is_not_reused() {
    let world = world_over(4, 1, Mischief::default(), Duration::ZERO);
    let (first, second) = (put(&world.store, "first", 1, 1), put(&world.store, "second", 1, 2));
    let lease = answer(world.tier.lease_read(&first, 0)).unwrap();
    let (stream, opens) = blocked_stream(&*world.device);
    let copy = world.device.copy_out(&stream, &lease, 0, Box::new(vec![0; 4096])).unwrap();
    lease.end_after(copy.event());
    // Its memory is on its way back: this waits and does not fail.
    let waiting = world.tier.lease_read(&second, 0);
    let waiting = waiting.wait_timeout(10 * LATE).expect_err("its memory is not free");
    drop(opens);
    all_are(&world.device.read(&answer(waiting).unwrap()), 2);
    assert!(copy.event().is_done());
    all_are((*copy.wait().unwrap()).as_mut(), 1);
    // A byte more is the blocked stream's own.
    assert!(world.device.peak.load(Ordering::SeqCst) <= GRANULE + 1);
}

#[test]
fn exhaustion_is_immediate_and_names_the_holders() {
    let world = world(8, 3);
    let (read, written) = (put(&world.store, "held/r", 1, 1), put(&world.store, "held/w", 2, 2));
    let reader = answer(world.tier.lease_read(&read, 0)).unwrap();
    // Objects of two granules have two chunks here.
    let _first = answer(world.tier.lease_write(&written, 0)).unwrap();
    let second = answer(world.tier.lease_write(&written, 1)).unwrap();
    let wanted = put(&world.store, "wanted", 1, 3);
    let error = answer(world.tier.lease_read(&wanted, 0)).unwrap_err();
    let Error::BudgetExhausted { tier, budget, needed, free, holders, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*tier, Tier::Device(world.device.id()));
    assert_eq!([budget.0, needed.0, free.0], [3 * GRANULE, GRANULE, 0]);
    let named = |key| holders.iter().filter(|holder| holder.contains(key)).count();
    assert_eq!((named("held/r"), named("held/w")), (1, 2), "{holders:?}");
    assert!(error.to_string().starts_with("the device 0 budget"), "{error}");
    drop(reader);
    all_are(&world.read(&wanted), 3);
    drop(second);
    let large = one_chunk(&world.store, "large", 4);
    let error = answer(world.tier.lease_write(&large, 0)).unwrap_err();
    assert!(matches!(error, Error::BudgetTooSmall { tier: Tier::Device(_), .. }), "{error}");
}

#[test]
fn the_least_recently_used_copy_leaves_first() {
    let world = world(8, 3);
    let objects: Vec<_> = (0..4).map(|i| put(&world.store, &format!("t{i}"), 1, i)).collect();
    (0..3).for_each(|i| drop(world.read(&objects[i])));
    world.read(&objects[0]);
    world.read(&objects[3]);
    let before = world.counter(|usage| usage.counters.copies_in);
    [0, 2, 3].into_iter().for_each(|i| drop(world.read(&objects[i])));
    assert_eq!(world.counter(|usage| usage.counters.copies_in), before);
    world.read(&objects[1]);
    assert_eq!(world.counter(|usage| usage.counters.copies_in), before + 1);
    assert!(world.device.peak.load(Ordering::SeqCst) <= 3 * GRANULE);
}

#[test]
fn copies_under_way_are_no_reason_to_fail_on_the_host() {
    // Beside the host's own reader one chunk fits the host, and every fetch needs room for one.
    let world = world(2, 8);
    let objects: Vec<_> = (0..8).map(|i| put(&world.store, &format!("t{i}"), 1, i)).collect();
    let tickets: Vec<_> = objects.iter().map(|object| world.tier.lease_read(object, 0)).collect();
    for (i, object) in objects.iter().enumerate().rev() {
        assert_eq!(usize::from(soon(world.store.lease_read(object, 0)).unwrap()[9]), i);
    }
    for (i, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(usize::from(world.device.read(&answer(ticket).unwrap())[0]), i);
    }
    objects.iter().for_each(|object| world.write(object, 77));
    let first = soon(world.store.lease_read(&objects[0], 0)).unwrap();
    assert_eq!(first[0], 77);
}

#[test]
fn a_prefetched_object_is_there_and_passes_through_a_smaller_host() {
    let slow = Mischief { delay: Duration::from_millis(2), ..Mischief::default() };
    let world = world_over(3, 8, slow, LATE);
    let bytes: Vec<u8> = (0..8 * GRANULE).map(|i| (i / GRANULE) as u8 + 1).collect();
    let object = world.store.put("tensor", DType::U8, &[8 * GRANULE], &bytes).unwrap();
    world.tier.prefetch(&object);
    let copied = || world.counter(|usage| usage.counters.copies_in);
    eventually("all chunks are on the device", || copied() == 8);
    for chunk in 0..8u8 {
        let lease = answer(world.tier.lease_read(&object, chunk.into())).unwrap();
        all_are(&world.device.read(&lease), chunk + 1);
    }
    let counters = world.tier.usage().counters;
    assert_eq!((counters.hits, counters.misses, counters.copies_in), (8, 0, 8));
}

#[test]
fn a_prefetch_of_more_than_the_device_takes_goes_on_as_it_is_used() {
    let world = world(16, 3);
    let bytes: Vec<u8> = (0..12 * GRANULE).map(|i| (i / GRANULE) as u8 + 1).collect();
    let object = world.store.put("tensor", DType::U8, &[12 * GRANULE], &bytes).unwrap();
    world.tier.prefetch(&object);
    for chunk in 0..12u8 {
        let copied = || world.counter(|usage| usage.counters.copies_in);
        eventually("the next chunks are there", || copied() == (3 + u64::from(chunk)).min(12));
        let lease = answer(world.tier.lease_read(&object, chunk.into())).unwrap();
        all_are(&world.device.read(&lease), chunk + 1);
    }
    assert_eq!(world.counter(|usage| usage.counters.misses), 0);
    assert_eq!(world.device.peak.load(Ordering::SeqCst), 3 * GRANULE);
}

#[test]
fn prefetches_stand_in_nobodys_way() {
    let world = world(4, 2);
    let objects: Vec<_> = (0..8).map(|i| put(&world.store, &format!("t{i}"), 1, i)).collect();
    // One is being changed, and the device is too small for all: both must not block a demand.
    let mut changed = soon(world.store.lease_write(&objects[0], 0)).unwrap();
    objects.iter().for_each(|object| world.tier.prefetch(object));
    changed[0] = 99;
    for (i, object) in objects.iter().enumerate().skip(1).rev() {
        assert_eq!(usize::from(world.read(object)[0]), i);
    }
    drop(changed);
    assert_eq!(world.read(&objects[0])[0], 99);
}

#[test]
fn dropped_tickets_give_everything_back() {
    let world = world(4, 2);
    let objects: Vec<_> = (0..6).map(|i| put(&world.store, &format!("t{i}"), 1, i)).collect();
    let held = soon(world.store.lease_write(&objects[0], 0)).unwrap();
    for object in &objects {
        drop(world.tier.lease_read(object, 0));
        drop(world.tier.lease_write(object, 0));
    }
    drop(held);
    for object in &objects {
        drop(soon(world.store.lease_write(object, 0)).unwrap());
        drop(answer(world.tier.lease_write(object, 0)).unwrap());
    }
    assert_eq!(world.counter(|usage| usage.counters.copies_out), 0);
}

#[test]
fn objects_of_no_bytes_and_missing_chunks() {
    let world = world(2, 2);
    let empty = world.store.put("empty", DType::F32, &[0, 3], &[]).unwrap();
    world.tier.prefetch(&empty);
    let kind = |error: Error| error.kind();
    assert_eq!(
        answer(world.tier.lease_read(&empty, 0)).map_err(kind).err(),
        Some(ErrorKind::InvalidInput)
    );
    let object = put(&world.store, "tensor", 1, 1);
    assert_eq!(
        answer(world.tier.lease_write(&object, 1)).map_err(kind).err(),
        Some(ErrorKind::InvalidInput)
    );
    world.read(&object);
    world.store.delete("tensor").unwrap();
    world.store.barrier().unwrap();
    assert_eq!(
        answer(world.tier.lease_read(&object, 0)).map_err(kind).err(),
        Some(ErrorKind::NotFound)
    );
    all_are(&world.read(&put(&world.store, "tensor", 1, 2)), 2);
}

#[test]
fn budgets_that_cannot_be_are_refused() {
    let world = world(2, 2);
    for budget in [0, (1 << 30) + 1] {
        let device = Arc::clone(&world.device) as Arc<dyn Device>;
        let error = world.store.attach_device(device, budget).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert!(world.store.explain().to_string().contains("device 0 (watched): budget 8.00 KiB"));
}

/// Expects a failure of the device that says so much of the bytes.
fn expect<T>(answer: Result<T, Error>, expected: Fate) {
    match answer.map(drop) {
        Err(Error::Device { device, key, chunk: 0, fate, .. }) => {
            assert_eq!((device.as_str(), key.as_str(), fate), ("watched", "tensor", expected));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn refused_allocations_and_copies_lose_nothing() {
    let world = world(4, 4);
    let object = put(&world.store, "tensor", 1, 6);
    for fault in [&world.device.faults.allocate, &world.device.faults.copy_in] {
        soon(world.store.lease_write(&object, 0)).unwrap()[0] += 1;
        set(fault, true);
        expect(answer(world.tier.lease_read(&object, 0)), Fate::Kept);
        expect(answer(world.tier.lease_write(&object, 0)), Fate::Kept);
        world.tier.prefetch(&object);
        expect(answer(world.tier.lease_read(&object, 0)), Fate::Kept);
        set(fault, false);
        assert_eq!(world.read(&object)[1], 6);
    }
    assert_eq!(world.read(&object)[0], 8);
}

#[test]
fn a_refused_copy_back_leaves_the_version_before() {
    let world = world(4, 4);
    let object = put(&world.store, "tensor", 1, 6);
    set(&world.device.faults.copy_out, true);
    let mut lease = answer(world.tier.lease_write(&object, 0)).unwrap();
    world.device.fill(&mut lease, vec![7; 4096]).wait().unwrap();
    expect(answer(lease.end()), Fate::WriteLost);
    all_are(&soon(world.store.lease_read(&object, 0)).unwrap(), 6);
    all_are(&world.read(&object), 6);
    set(&world.device.faults.copy_out, false);
    world.write(&object, 8);
    all_are(&read(&world.store, "tensor").unwrap(), 8);
}

#[test]
fn work_that_is_lost_leaves_the_version_before() {
    let world = world(4, 4);
    let object = put(&world.store, "tensor", 1, 6);
    let mut lease = answer(world.tier.lease_write(&object, 0)).unwrap();
    world.device.fill(&mut lease, vec![7; 4096]).wait().unwrap();
    expect(answer(lease.end_after(&lost_event(&*world.device))), Fate::WriteLost);
    all_are(&world.read(&object), 6);
    // One caller's lost stream costs the tier none of its own.
    world.write(&object, 8);
    all_are(&read(&world.store, "tensor").unwrap(), 8);
}

#[test]
fn a_copy_back_that_breaks_off_shows_nobody_half_of_it() {
    for stored in [true, false] {
        let world = world(4, 4);
        let object = put(&world.store, "tensor", 1, 6);
        if stored {
            world.store.flush().unwrap();
        }
        set(&world.device.faults.lose_copy_out, true);
        let mut lease = answer(world.tier.lease_write(&object, 0)).unwrap();
        world.device.fill(&mut lease, vec![7; 4096]).wait().unwrap();
        expect(answer(lease.end()), if stored { Fate::WriteLost } else { Fate::Lost });
        let host = soon(world.store.lease_read(&object, 0)).map(|lease| lease.to_vec());
        match stored {
            true => assert_eq!(host.unwrap(), [6; 4096]),
            false => assert_eq!(host.unwrap_err().kind(), ErrorKind::NotFound),
        }
        assert_eq!(world.store.stats().counters.loads, u64::from(stored));
        world.store.delete("tensor").unwrap();
        all_are(&world.read(&put(&world.store, "tensor", 1, 9)), 9);
        world.store.delete("tensor").unwrap();
        eventually("all memory is free", || world.store.stats().host.in_use == 0);
    }
}

#[test]
fn leases_outlive_the_store() {
    let world = world(4, 4);
    let (read, written) = (put(&world.store, "read", 1, 1), put(&world.store, "written", 1, 2));
    let reader = answer(world.tier.lease_read(&read, 0)).unwrap();
    let mut writer = answer(world.tier.lease_write(&written, 0)).unwrap();
    let waiting = world.store.lease_write(&written, 0);
    world.store.close(PATIENCE).unwrap();
    assert_eq!(soon(waiting).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(answer(world.tier.lease_read(&read, 0)).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(answer(world.tier.lease_write(&read, 0)).unwrap_err().kind(), ErrorKind::Closed);
    world.tier.prefetch(&read);
    all_are(&world.device.read(&reader), 1);
    let work = world.device.fill(&mut writer, vec![3; 4096]);
    assert_eq!(answer(writer.end_after(&work)).unwrap_err().kind(), ErrorKind::Closed);
    let World { store, device, tier } = world;
    drop((store, tier, read, written));
    all_are(&device.read(&reader), 1);
    drop(reader);
    eventually("the device's memory is free", || device.in_use() == 0);
}

#[test]
fn closing_waits_for_copies_and_no_longer_than_its_grace() {
    for grace in [PATIENCE, Duration::from_millis(5)] {
        let world = world(4, 4);
        let opens = world.device.block_next_copy();
        let objects: Vec<_> = (0..4).map(|i| put(&world.store, &format!("t{i}"), 1, i)).collect();
        let waiting: Vec<_> =
            objects.iter().map(|object| world.tier.lease_read(object, 0)).collect();
        eventually("a copy is under way", || world.device.in_use() > GRANULE);
        let store = world.store.clone();
        let closing = std::thread::spawn(move || store.close(grace));
        for ticket in waiting {
            let answer = answer(ticket);
            assert!(answer.is_err_and(|error| error.kind() == ErrorKind::Closed));
        }
        let closed =
            |closing: std::thread::JoinHandle<_>| within_patience(move || closing.join().unwrap());
        if grace == PATIENCE {
            drop(opens);
            closed(closing).unwrap();
        } else {
            let error = closed(closing).unwrap_err();
            assert!(error.kind() == ErrorKind::Timeout, "{error}");
            assert!(error.to_string().contains("device watched"), "{error}");
            drop(opens);
        }
        let World { device, .. } = world;
        eventually("the device's memory is free", || device.in_use() == 0);
    }
}

#[test]
fn a_dropped_tier_frees_its_memory_and_the_store_goes_on() {
    let World { store, device, tier } = world(4, 4);
    let object = put(&store, "tensor", 1, 1);
    drop(answer(tier.lease_read(&object, 0)).unwrap());
    let clone = tier.clone();
    drop(tier);
    assert_eq!(device.in_use(), GRANULE);
    let lease = answer(clone.lease_read(&object, 0)).unwrap();
    drop(clone);
    eventually("its thread ends", || store.stats().devices.is_empty());
    all_are(&device.read(&lease), 1);
    drop(lease);
    assert_eq!(device.in_use(), 0);
    assert_eq!(read(&store, "tensor").unwrap()[0], 1);
    let again = store.attach_device(Arc::clone(&device) as Arc<dyn Device>, GRANULE).unwrap();
    all_are(&device.read(&answer(again.lease_read(&object, 0)).unwrap()), 1);
}
