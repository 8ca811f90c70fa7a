//! What every path store must do, as functions that panic where one does not. Run them over your own.

use std::sync::mpsc;
use std::time::Duration;

use super::{Extent, PathStore, TransferError};
use crate::arena::{Arena, FrameMut, GRANULE};
use crate::error::Errno;
use crate::id::Class;

/// Makes a new store, without a quota and with room for 256 MiB.
pub type Make<'a> = &'a dyn Fn() -> Box<dyn PathStore>;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Checks a path store.
///
/// # Panics
/// Where the store is not what [`PathStore`] says.
pub fn check(make: Make<'_>) {
    odd_lengths_come_back(&*make());
    ranges_come_back(&*make());
    many_at_once_keep_their_bytes(&*make());
    extents_are_disjoint_and_reused(&*make());
    what_does_not_fit_is_refused(&*make());
    counters_add_up(&*make());
    a_callback_may_start_the_next_transfer(make);
    closing_answers_everything_once(&*make());
    a_closed_store_refuses(&*make());
}

/// Takes a frame of `bytes` whose contents follow from `seed`.
///
/// # Panics
/// When the arena has no room for it.
pub fn pattern(arena: &Arena, bytes: u64, seed: u64) -> FrameMut {
    let mut frame = arena.try_alloc(bytes).expect("memory").expect("room in the arena");
    for (index, byte) in frame.iter_mut().enumerate() {
        *byte = (index as u64).wrapping_mul(seed * 2 + 1).rotate_right(7) as u8 ^ seed as u8;
    }
    frame
}

/// Writes a frame and waits; the frame is dropped.
///
/// # Errors
/// What the store answered.
///
/// # Panics
/// When it does not answer within a minute, or still holds the frame when it does.
pub fn write(store: &dyn PathStore, extent: &Extent, frame: FrameMut) -> Result<(), Errno> {
    let frame = frame.share();
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).expect("the test waits"));
    store.write(extent, frame.whole(), Class::WriteBack, done);
    let result = told.recv_timeout(PATIENCE).expect("a write is answered");
    assert!(frame.try_exclusive().is_ok(), "the memory is free when the write is answered");
    assert!(told.recv_timeout(PATIENCE).is_err(), "a write is answered once");
    result
}

/// Reads a frame of `bytes` and waits.
///
/// # Errors
/// What the store answered.
///
/// # Panics
/// When it does not answer within a minute, or still holds the frame when it does.
pub fn read(
    store: &dyn PathStore,
    arena: &Arena,
    extent: &Extent,
    at: u64,
    bytes: u64,
) -> Result<FrameMut, TransferError> {
    let frame = arena.try_alloc(bytes).expect("memory").expect("room in the arena");
    let (guard, into) = frame.fill_from_outside();
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).expect("the test waits"));
    store.read(extent, at, into, Class::Demand, done);
    let result = told.recv_timeout(PATIENCE).expect("a read is answered");
    let frame = guard.try_finish().expect("the memory is free when the read is answered");
    assert!(told.recv_timeout(PATIENCE).is_err(), "a read is answered once");
    result.map(|()| frame)
}

fn close(store: &dyn PathStore) {
    store.close(PATIENCE).expect("it closes cleanly");
    assert!(!store.capabilities().scratch.exists(), "nothing is left");
}

fn odd_lengths_come_back(store: &dyn PathStore) {
    let arena = Arena::new(64 * MIB).expect("an arena");
    let lengths =
        [1, 511, 512, 513, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 3 * MIB + 5, 28_824_000];
    for bytes in lengths {
        let extent = store.reserve(bytes).expect("space");
        assert!(extent.bytes() >= bytes && extent.bytes().is_multiple_of(GRANULE));
        let frame = pattern(&arena, bytes, bytes);
        let expected = frame.to_vec();
        write(store, &extent, frame).expect("it is written");
        let back = read(store, &arena, &extent, 0, bytes).expect("it is read");
        assert!(*back == expected[..], "{bytes} bytes differ");
        store.free(extent);
    }
    close(store);
}

fn ranges_come_back(store: &dyn PathStore) {
    let arena = Arena::new(16 * MIB).expect("an arena");
    let bytes = 3 * MIB + 4096;
    let extent = store.reserve(bytes).expect("space");
    let frame = pattern(&arena, bytes, 3);
    let expected = frame.to_vec();
    write(store, &extent, frame).expect("it is written");
    for (at, len) in [(0, 4096), (4096, MIB), (MIB - 4096, 2 * MIB), (3 * MIB, 4096)] {
        let back = read(store, &arena, &extent, at, len).expect("it is read");
        assert!(*back == expected[at as usize..(at + len) as usize], "{len} at {at} differ");
    }
    store.sync().expect("it syncs");
    store.free(extent);
    close(store);
}

fn many_at_once_keep_their_bytes(store: &dyn PathStore) {
    const COUNT: u64 = 24;
    let bytes = 2 * MIB + GRANULE;
    let arena = Arena::new(COUNT * 2 * (bytes + GRANULE)).expect("an arena");
    let (tell, told) = mpsc::channel();
    let mut extents = Vec::new();
    for seed in 0..COUNT {
        let extent = store.reserve(bytes).expect("space");
        let tell = tell.clone();
        let done = Box::new(move |result| tell.send((seed, result)).expect("the test waits"));
        let from = pattern(&arena, bytes, seed).share().whole();
        store.write(&extent, from, Class::WriteBack, done);
        extents.push(extent);
    }
    for _ in 0..COUNT {
        let (_, result) = told.recv_timeout(PATIENCE).expect("an answer");
        result.expect("it is written");
    }
    let (tell, told) = mpsc::channel();
    let mut guards = Vec::new();
    for (seed, extent) in extents.iter().enumerate() {
        let frame = arena.try_alloc(bytes).expect("memory").expect("room");
        let (guard, into) = frame.fill_from_outside();
        guards.push(Some(guard));
        let tell = tell.clone();
        let class = [Class::Demand, Class::Prefetch][seed % 2];
        let done = Box::new(move |result| tell.send((seed, result)).expect("the test waits"));
        store.read(extent, 0, into, class, done);
    }
    for _ in 0..COUNT {
        let (seed, result) = told.recv_timeout(PATIENCE).expect("an answer");
        result.expect("it is read");
        let guard = guards[seed].take().expect("an answer comes once");
        let frame = guard.try_finish().expect("the memory is free when the read is answered");
        assert!(*frame == *pattern(&arena, bytes, seed as u64), "bytes differ");
    }
    extents.into_iter().for_each(|extent| store.free(extent));
    close(store);
}

fn extents_are_disjoint_and_reused(store: &dyn PathStore) {
    let mut held = Vec::new();
    for index in 0..64u64 {
        held.push(store.reserve((index % 7 + 1) * 100_000).expect("space"));
    }
    let mut ranges: Vec<_> =
        held.iter().map(|e| (e.place(), e.offset(), e.offset() + e.bytes())).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "extents overlap: {pair:?}");
    }
    let space = store.counters().space_bytes;
    for _ in 0..10 {
        held.drain(..).for_each(|extent| store.free(extent));
        assert_eq!(store.counters().used_bytes, 0);
        held.extend((0..64u64).map(|i| store.reserve((i % 7 + 1) * 100_000).expect("space")));
    }
    assert_eq!(store.counters().space_bytes, space, "freed space is reused");
    held.into_iter().for_each(|extent| store.free(extent));
    close(store);
}

fn what_does_not_fit_is_refused(store: &dyn PathStore) {
    let arena = Arena::new(MIB).expect("an arena");
    let extent = store.reserve(2 * GRANULE).expect("space");
    let invalid = Errno(libc::EINVAL);
    assert_eq!(write(store, &extent, pattern(&arena, 3 * GRANULE, 1)), Err(invalid));
    for (at, bytes) in [(0, 3 * GRANULE), (GRANULE, 2 * GRANULE), (100, GRANULE), (u64::MAX, 1)] {
        let refused = read(store, &arena, &extent, at, bytes);
        assert_eq!(refused.map(|_| ()).expect_err("it is refused").errno, invalid);
    }
    store.free(extent);
    assert!(store.reserve(u64::MAX).is_err());
    close(store);
}

fn counters_add_up(store: &dyn PathStore) {
    let arena = Arena::new(8 * MIB).expect("an arena");
    let before = store.counters();
    let extent = store.reserve(2 * MIB + 1).expect("space");
    assert_eq!(store.counters().used_bytes, before.used_bytes + 2 * MIB + GRANULE);
    write(store, &extent, pattern(&arena, 2 * MIB + 1, 1)).expect("it is written");
    read(store, &arena, &extent, 0, GRANULE).expect("it is read");
    read(store, &arena, &extent, MIB, MIB).expect("it is read");
    let after = store.counters();
    assert_eq!(after.written_bytes - before.written_bytes, 2 * MIB + GRANULE);
    assert_eq!(after.read_bytes - before.read_bytes, MIB + GRANULE);
    assert_eq!((after.writes - before.writes, after.reads - before.reads), (1, 2));
    let outstanding = store.outstanding();
    assert_eq!((outstanding.read_bytes, outstanding.write_bytes), (0, 0));
    let profile = store.profile();
    assert!(profile.read_bps > 0.0 && profile.write_bps > 0.0, "{profile:?}");
    store.free(extent);
    close(store);
}

fn a_callback_may_start_the_next_transfer(make: Make<'_>) {
    fn chain(
        store: std::sync::Arc<dyn PathStore>,
        extent: std::sync::Arc<Extent>,
        arena: Arena,
        left: u32,
        tell: mpsc::Sender<()>,
    ) {
        let from = pattern(&arena, GRANULE, u64::from(left)).share().whole();
        let (store2, extent2) = (store.clone(), extent.clone());
        store.write(
            &extent,
            from,
            Class::Demand,
            Box::new(move |result| {
                result.expect("it is written");
                if left == 0 {
                    let _ = tell.send(());
                } else {
                    chain(store2, extent2, arena, left - 1, tell);
                }
            }),
        );
    }
    let store: std::sync::Arc<dyn PathStore> = make().into();
    let arena = Arena::new(MIB).expect("an arena");
    let extent = std::sync::Arc::new(store.reserve(1).expect("space"));
    let (tell, told) = mpsc::channel();
    chain(store.clone(), extent, arena, 100, tell);
    told.recv_timeout(PATIENCE).expect("the chain ends");
    close(&*store);
}

fn closing_answers_everything_once(store: &dyn PathStore) {
    const COUNT: usize = 32;
    let arena = Arena::new(64 * MIB).expect("an arena");
    let extent = store.reserve(2 * MIB).expect("space");
    let (tell, told) = mpsc::channel();
    for index in 0..COUNT {
        let tell = tell.clone();
        let from = pattern(&arena, 2 * MIB, 1).share().whole();
        let done = Box::new(move |result| tell.send((index, result)).expect("the test waits"));
        store.write(&extent, from, Class::WriteBack, done);
    }
    drop(tell);
    close(store);
    let mut answered = [false; COUNT];
    for (index, result) in told {
        assert!(!std::mem::replace(&mut answered[index], true), "answered twice");
        assert!(result.is_ok() || result == Err(Errno(libc::ECANCELED)), "{result:?}");
    }
    assert!(answered.iter().all(|answered| *answered), "every write is answered");
    assert_eq!(arena.usage().in_use, 0, "all memory is given back");
}

fn a_closed_store_refuses(store: &dyn PathStore) {
    let arena = Arena::new(MIB).expect("an arena");
    let extent = store.reserve(1).expect("space");
    close(store);
    close(store);
    let canceled = Errno(libc::ECANCELED);
    assert_eq!(store.reserve(1), Err(canceled));
    assert_eq!(write(store, &extent, pattern(&arena, 1, 1)), Err(canceled));
    let refused = read(store, &arena, &extent, 0, 1);
    assert_eq!(refused.map(|_| ()).expect_err("it is refused").errno, canceled);
    store.free(extent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::io::EngineChoice;
    use crate::path::{FilePathStore, Path};
    use crate::units::{Bytes, BytesPerSecond};

    #[test]
    fn file_paths_conform_with_every_engine_on_two_file_systems() {
        for base in ["/dev/shm", "/var/tmp"] {
            let Ok(dir) = tempfile::tempdir_in(base) else { continue };
            for engine in [EngineChoice::Threads, EngineChoice::Auto] {
                check(&|| {
                    let options = Path::new(dir.path());
                    Box::new(FilePathStore::open(&options, engine, Clock::system()).unwrap())
                });
            }
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_capped_path_conforms() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        check(&|| {
            let cap = BytesPerSecond(2e9);
            let options = Path::new(dir.path()).read_cap(cap).write_cap(cap).quota(Bytes(1 << 30));
            Box::new(FilePathStore::open(&options, EngineChoice::Auto, Clock::system()).unwrap())
        });
    }
}
