//! Many threads on one path whose engine fails, delays and reorders: every transfer is answered
//! once, and what is read without an error is what was written without one.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::mix;
use tensortier_storage::arena::Arena;
use tensortier_storage::clock::Clock;
use tensortier_storage::error::Errno;
use tensortier_storage::io::decorate::{Fault, Faulty};
use tensortier_storage::io::{EngineChoice, IoEngine};
use tensortier_storage::path::conformance::{pattern, read, write};
use tensortier_storage::path::{FilePathStore, Outstanding, Path, PathStore};
use tensortier_storage::units::BytesPerSecond;

const MIB: u64 = 1 << 20;

fn fault(index: u64) -> Fault {
    match mix(index) % 20 {
        0 => Fault::Fail(Errno(libc::EIO)),
        1 => Fault::Fail(Errno(libc::ENODEV)),
        2..=4 => Fault::Delay(Duration::from_micros(mix(index + 1) % 3000)),
        5..=9 => Fault::Hold(2),
        _ => Fault::Pass,
    }
}

fn storm(engine: EngineChoice, caps: bool) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let cap = BytesPerSecond(if caps { 400e6 } else { 100e9 });
    let options = Path::new(dir.path()).read_cap(cap).write_cap(cap);
    let wrap = |inner: Arc<dyn IoEngine>| {
        let faulty = Arc::new(Faulty::new(inner, |index, _| fault(index)));
        // What is held back for want of a partner comes after a while.
        let weak = Arc::downgrade(&faulty);
        thread::spawn(move || {
            while let Some(faulty) = weak.upgrade() {
                faulty.release();
                drop(faulty);
                thread::sleep(Duration::from_millis(2));
            }
        });
        faulty as Arc<dyn IoEngine>
    };
    let store = FilePathStore::open_decorated(&options, engine, Clock::system(), wrap).unwrap();
    let arena = Arena::new(64 * MIB).unwrap();
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, arena) = (&store, &arena);
            scope.spawn(move || {
                for round in 0..40u64 {
                    let seed = thread * 1000 + round;
                    let bytes = mix(seed) % (5 * MIB) + 1;
                    let extent = store.reserve(bytes).unwrap();
                    if write(store, &extent, pattern(arena, bytes, seed)).is_ok()
                        && let Ok(back) = read(store, arena, &extent, 0, bytes)
                    {
                        assert!(*back == *pattern(arena, bytes, seed), "bytes differ");
                    }
                    store.free(extent);
                }
            });
        }
    });
    assert_eq!(store.outstanding(), Outstanding::default());
    assert_eq!((store.counters().used_bytes, arena.usage().in_use), (0, 0));
    assert!(store.counters().writes > 0 && store.counters().reads > 0);
    store.close(Duration::from_secs(30)).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn every_transfer_is_answered_once_with_its_own_bytes() {
    storm(EngineChoice::Auto, false);
    storm(EngineChoice::Threads, false);
}

#[test]
fn also_under_a_cap() {
    storm(EngineChoice::Auto, true);
}
