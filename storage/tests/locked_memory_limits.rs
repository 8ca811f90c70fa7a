//! Limits on locked memory: the store works under any, locks what it may, says once what was needed,
//! allowed and used, and its account of locked bytes is the kernel's.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use common::apart::{Place, apart};
use common::{PATIENCE, put, read};
use tensortier_storage::arena::{Arena, GRANULE};
use tensortier_storage::path::Path;
use tensortier_storage::store::Store;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

const MIB: u64 = 1 << 20;

/// Keeps what is said in the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Visit for &Log {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut &*self);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns what the kernel says this process has locked, in bytes.
fn locked_by_process() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// In a process whose limit is `allowed`: a store of 16 MiB works and tells the truth about it.
fn a_store_works(dir: &std::path::Path, allowed: u64, shown: &str) {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let open = || Store::builder().host_budget(16 * MIB).path(Path::new(dir)).open().unwrap();
    let (store, second) = (open(), open());
    for store in [&store, &second] {
        (0..12).for_each(|i| drop(put(store, &format!("t{i}"), 512, i)));
        (0..12).for_each(|i| {
            assert!(read(store, &format!("t{i}")).unwrap().iter().all(|byte| *byte == i));
        });
    }
    let explained = [store.explain(), second.explain()];
    let locked: u64 = explained.iter().map(|explained| explained.locked_bytes).sum();
    assert_eq!(locked, locked_by_process(), "the account is the kernel's");
    assert_eq!(locked, allowed / GRANULE * GRANULE, "what is allowed is used");
    for explained in explained {
        assert_eq!(explained.committed_bytes, 16 * MIB);
        let why = explained.unlocked.unwrap();
        assert_eq!((why.needed, why.limits), (16 * MIB, [Some(allowed); 2]));
        let text = explained.to_string();
        assert!(text.contains("locked of 16.0 MiB committed (locking 16.0 MiB"), "{text}");
        assert!(text.contains(&format!("the limit is {shown}")), "{text}");
    }
    let said = log.0.lock().unwrap();
    let about: Vec<_> = said.iter().filter(|text| text.contains("ulimit -l")).collect();
    assert_eq!(about.len(), 1, "{said:?}");
    assert!(about[0].contains(&format!("the limit is {shown}")), "{about:?}");
    drop(said);
    store.close(PATIENCE).unwrap();
    second.close(PATIENCE).unwrap();
    drop((store, second));
    assert_eq!(locked_by_process(), 0);
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn nothing_may_be_locked() {
    let place = Place::User { memlock_kib: 0 };
    apart("nothing_may_be_locked", place, |dir| a_store_works(dir, 0, "0 B"));
}

#[test]
fn some_pages_may_be_locked() {
    let place = Place::User { memlock_kib: 64 };
    apart("some_pages_may_be_locked", place, |dir| a_store_works(dir, 64 << 10, "64.0 KiB"));
}

#[test]
fn half_of_the_budget_may_be_locked() {
    let place = Place::User { memlock_kib: 8 << 10 };
    apart("half_of_the_budget_may_be_locked", place, |dir| a_store_works(dir, 8 * MIB, "8.00 MiB"));
}

#[test]
fn when_a_later_piece_cannot_be_locked_the_account_is_of_what_is() {
    let name = "when_a_later_piece_cannot_be_locked_the_account_is_of_what_is";
    apart(name, Place::User { memlock_kib: (80 << 10) + 1 }, |_| {
        // Pieces of 64 MiB: the first is locked whole, the second in part, the third not at all.
        let arena = Arena::new(192 * MIB).unwrap();
        let mut frames = Vec::new();
        for expected in [64, 80, 80] {
            frames.push(arena.try_alloc(64 * MIB).unwrap().unwrap());
            assert_eq!(arena.usage().locked, expected * MIB);
            assert_eq!(locked_by_process(), expected * MIB);
            assert_eq!(arena.unlocked().is_some(), expected == 80);
        }
        let why = arena.unlocked().unwrap();
        assert_eq!((why.needed, why.locked, why.used), (64 * MIB, 16 * MIB, 64 * MIB));
        drop(frames);
        assert_eq!(arena.usage().locked, 80 * MIB, "committed memory is kept");
        drop(arena);
        assert_eq!(locked_by_process(), 0);
        // And again: nothing of the first is still counted.
        let arena = Arena::new(64 * MIB).unwrap();
        let _frame = arena.try_alloc(MIB).unwrap().unwrap();
        assert_eq!((arena.usage().locked, arena.unlocked()), (64 * MIB, None));
    });
}

#[test]
fn when_a_later_store_finds_the_limit_used_up_each_account_is_its_own() {
    let name = "when_a_later_store_finds_the_limit_used_up_each_account_is_its_own";
    apart(name, Place::User { memlock_kib: 8 << 10 }, |_| {
        let mut held = Vec::new();
        for (expected, used) in [(3, 0), (3, 3), (2, 6), (0, 8)] {
            let arena = Arena::new(3 * MIB).unwrap();
            let frame = arena.try_alloc(MIB).unwrap().unwrap();
            assert_eq!(arena.usage().locked, expected * MIB);
            assert_eq!(locked_by_process(), (used + expected) * MIB);
            let why = arena.unlocked().map(|why| (why.locked, why.used));
            assert_eq!(why, (expected < 3).then_some((expected * MIB, used * MIB)));
            held.push((arena, frame));
        }
        held.remove(0);
        assert_eq!(locked_by_process(), 5 * MIB);
        let arena = Arena::new(3 * MIB).unwrap();
        drop(arena.try_alloc(MIB).unwrap());
        assert_eq!((arena.usage().locked, arena.unlocked()), (3 * MIB, None));
        drop((held, arena));
        assert_eq!(locked_by_process(), 0);
    });
}
