//! What every path store that can tell that it hangs must do, as one function that panics where one
//! does not. Run it over your own.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::conformance::{pattern, read, write};
use super::{Condition, Extent, PathEvent, PathStore};
use crate::arena::{Arena, FillGuard};
use crate::error::Errno;
use crate::id::Class;

/// A store whose answers can be held back.
pub trait Stubborn {
    /// Returns the store.
    fn store(&self) -> Arc<dyn PathStore>;
    /// From now on it takes transfers and answers none.
    fn stall(&self);
    /// Lets its deadline pass.
    fn expire(&self);
    /// From now on it answers everything, also what it has.
    fn release(&self);
}

/// Makes a new store, without a quota and with room for 64 MiB.
pub type MakeStubborn<'a> = &'a dyn Fn() -> Box<dyn Stubborn>;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const TIMED_OUT: Errno = Errno(libc::ETIMEDOUT);

/// How many operations a store on probation may want to see succeed at most.
const TRIALS: u64 = 100;

/// Checks a path store that can hang.
///
/// # Panics
/// Where the store is not what [`PathStore`] says.
pub fn check_hanging(make: MakeStubborn<'_>) {
    writes_that_hang_keep_their_memory_and_end_late(&*make());
    reads_that_hang_keep_their_memory_and_end_late(&*make());
    it_may_hang_again_on_probation(&*make());
    closing_it_ends_in_time_and_leaves_what_is_out(&*make());
}

fn events(store: &dyn PathStore) -> mpsc::Receiver<PathEvent> {
    let (tell, told) = mpsc::channel();
    store.watch(Box::new(move |event| {
        let _ = tell.send(event);
    }));
    told
}

fn expect(told: &mpsc::Receiver<PathEvent>, event: PathEvent) {
    assert_eq!(told.recv_timeout(PATIENCE).expect("an event"), event);
}

type Answers = mpsc::Receiver<(u64, Result<(), Errno>)>;

/// Starts `count` writes of 2 MiB, each to an extent of its own.
fn start_writes(store: &dyn PathStore, arena: &Arena, count: u64) -> (Vec<Extent>, Answers) {
    let (tell, told) = mpsc::channel();
    let extents = (0..count).map(|seed| {
        let extent = store.reserve(2 * MIB).expect("space");
        let tell = tell.clone();
        let done = Box::new(move |result| {
            let _ = tell.send((seed, result));
        });
        let from = pattern(arena, 2 * MIB, seed).share().whole();
        store.write(&extent, from, Class::WriteBack, done);
        extent
    });
    (extents.collect(), told)
}

/// Takes the answers that came at once: all say that the path does not answer.
fn timed_out(told: &Answers) -> u64 {
    let mut count = 0;
    while let Ok((_, result)) = told.recv_timeout(Duration::from_millis(200)) {
        assert_eq!(result, Err(TIMED_OUT));
        count += 1;
    }
    count
}

/// Waits for answers that come late.
fn late(told: &Answers, count: u64) -> Vec<(u64, Result<(), Errno>)> {
    (0..count).map(|_| told.recv_timeout(PATIENCE).expect("a late answer")).collect()
}

/// Checks that a hung store refuses what is new.
fn refuses(store: &dyn PathStore, arena: &Arena, extent: &Extent) {
    assert!(matches!(store.condition(), Condition::Hung { .. }), "{:?}", store.condition());
    assert_eq!(write(store, extent, pattern(arena, MIB, 1)), Err(TIMED_OUT));
    let refused = read(store, arena, extent, 0, MIB).map(|_| ());
    assert_eq!(refused.expect_err("it is refused").errno, TIMED_OUT);
    assert_eq!(store.reserve(MIB), Err(TIMED_OUT));
    assert_eq!(store.sync(), Err(TIMED_OUT));
}

/// Checks that a store that answers again is trusted after a while and keeps bytes.
fn recovers(store: &dyn PathStore, arena: &Arena) {
    let extent = store.reserve(MIB).expect("space");
    for trial in 0.. {
        assert!(trial < TRIALS, "it stays {:?}", store.condition());
        write(store, &extent, pattern(arena, MIB, trial)).expect("it is written");
        let back = read(store, arena, &extent, 0, MIB).expect("it is read");
        assert!(*back == *pattern(arena, MIB, trial), "bytes differ");
        if store.condition() == Condition::Good {
            break;
        }
    }
    store.free(extent);
}

fn writes_that_hang_keep_their_memory_and_end_late(stubborn: &dyn Stubborn) {
    const COUNT: u64 = 6;
    let store = stubborn.store();
    let arena = Arena::new(32 * MIB).expect("an arena");
    let told = events(&*store);
    assert_eq!(store.condition(), Condition::Good);
    stubborn.stall();
    let (extents, answers) = start_writes(&*store, &arena, COUNT);
    assert!(answers.recv_timeout(Duration::from_millis(50)).is_err(), "nothing is answered");
    stubborn.expire();
    expect(&told, PathEvent::Hung);
    let out = COUNT - timed_out(&answers);
    assert!(out > 0, "what the kernel has is not answered");
    let counters = store.counters();
    assert!(counters.hung_operations >= out && counters.hung_bytes <= out * 2 * MIB);
    assert_eq!(store.outstanding().write_bytes, 0, "what hangs is counted apart");
    assert_eq!(arena.usage().in_use, out * 2 * MIB, "its memory, and no other, stays taken");
    refuses(&*store, &arena, &extents[0]);
    stubborn.release();
    let late = late(&answers, out);
    expect(&told, PathEvent::Answering);
    assert_eq!(arena.usage().in_use, 0, "all memory is given back");
    assert_eq!((store.counters().hung_operations, store.counters().hung_bytes), (0, 0));
    recovers(&*store, &arena);
    for (seed, _) in late.iter().filter(|(_, result)| result.is_ok()) {
        let back = read(&*store, &arena, &extents[*seed as usize], 0, 2 * MIB).expect("it is read");
        assert!(*back == *pattern(&arena, 2 * MIB, *seed), "bytes of a late write differ");
    }
    extents.into_iter().for_each(|extent| store.free(extent));
    assert!(told.try_recv().is_err(), "no other event");
    store.close(PATIENCE).expect("it closes cleanly");
}

fn reads_that_hang_keep_their_memory_and_end_late(stubborn: &dyn Stubborn) {
    let store = stubborn.store();
    let arena = Arena::new(8 * MIB).expect("an arena");
    let told = events(&*store);
    let extent = store.reserve(MIB).expect("space");
    write(&*store, &extent, pattern(&arena, MIB, 7)).expect("it is written");
    stubborn.stall();
    let (guard, into) = arena.try_alloc(MIB).expect("memory").expect("room").fill_from_outside();
    let (tell, answers) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).expect("the test waits"));
    store.read(&extent, 0, into, Class::Demand, done);
    stubborn.expire();
    expect(&told, PathEvent::Hung);
    assert!(answers.recv_timeout(Duration::from_millis(50)).is_err(), "it stays out");
    let guard: FillGuard = guard.try_finish().expect_err("its memory stays taken");
    refuses(&*store, &arena, &extent);
    stubborn.release();
    assert_eq!(answers.recv_timeout(PATIENCE).expect("late"), Ok(()));
    let frame = guard.try_finish().expect("the memory is free when the read is answered");
    assert!(*frame == *pattern(&arena, MIB, 7), "bytes differ");
    expect(&told, PathEvent::Answering);
    recovers(&*store, &arena);
    store.free(extent);
    store.close(PATIENCE).expect("it closes cleanly");
}

fn it_may_hang_again_on_probation(stubborn: &dyn Stubborn) {
    let store = stubborn.store();
    let arena = Arena::new(32 * MIB).expect("an arena");
    let told = events(&*store);
    let mut extents = Vec::new();
    for _ in 0..3 {
        stubborn.stall();
        let (more, answers) = start_writes(&*store, &arena, 3);
        extents.extend(more);
        stubborn.expire();
        expect(&told, PathEvent::Hung);
        let out = 3 - timed_out(&answers);
        stubborn.release();
        late(&answers, out);
        expect(&told, PathEvent::Answering);
        assert_eq!(store.condition(), Condition::Probation);
    }
    recovers(&*store, &arena);
    extents.into_iter().for_each(|extent| store.free(extent));
    store.close(PATIENCE).expect("it closes cleanly");
}

fn closing_it_ends_in_time_and_leaves_what_is_out(stubborn: &dyn Stubborn) {
    let store = stubborn.store();
    let arena = Arena::new(32 * MIB).expect("an arena");
    let told = events(&*store);
    stubborn.stall();
    let (extents, answers) = start_writes(&*store, &arena, 6);
    stubborn.expire();
    expect(&told, PathEvent::Hung);
    let out = 6 - timed_out(&answers);
    let error = store.close(Duration::from_millis(20)).expect_err("something is in flight");
    assert!(error.in_flight >= out, "{error}");
    assert_eq!(store.close(Duration::ZERO), Err(error));
    assert_eq!(arena.usage().in_use, out * 2 * MIB, "what the kernel may read stays taken");
    extents.into_iter().for_each(|extent| store.free(extent));
    drop(store);
    stubborn.release();
    late(&answers, out);
    assert_eq!(arena.usage().in_use, 0, "all memory is given back");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::io::decorate::{Fault, Faulty};
    use crate::io::{EngineChoice, IoEngine};
    use crate::path::memory::MemoryPath;
    use crate::path::{FilePathStore, Path};
    use crate::sync::{AtomicBool, Ordering};
    use tempfile::TempDir;

    impl Stubborn for Arc<MemoryPath> {
        fn store(&self) -> Arc<dyn PathStore> {
            Arc::clone(self) as Arc<dyn PathStore>
        }

        fn stall(&self) {
            MemoryPath::stall(self);
        }

        fn expire(&self) {
            self.hang();
        }

        fn release(&self) {
            MemoryPath::release(self);
        }
    }

    struct Files {
        store: Arc<FilePathStore>,
        engine: Arc<Faulty>,
        clock: Clock,
        stalled: Arc<AtomicBool>,
        _dir: TempDir,
    }

    impl Files {
        fn open(choice: EngineChoice) -> Self {
            let dir = tempfile::tempdir_in("/var/tmp").unwrap();
            let (clock, stalled) = (Clock::manual(), Arc::new(AtomicBool::new(false)));
            let (asked, mut kept) = (Arc::clone(&stalled), None);
            let decorate = |inner: Arc<dyn IoEngine>| {
                let decide = move |_, _: &_| match asked.load(Ordering::SeqCst) {
                    true => Fault::Hang,
                    false => Fault::Pass,
                };
                let engine = Arc::new(Faulty::new(inner, decide));
                kept = Some(Arc::clone(&engine));
                engine as Arc<dyn IoEngine>
            };
            let options = Path::new(dir.path()).deadline(Duration::from_secs(3));
            let store = FilePathStore::open_decorated(&options, choice, clock.clone(), decorate);
            let (store, engine) = (Arc::new(store.unwrap()), kept.unwrap());
            Files { store, engine, clock, stalled, _dir: dir }
        }
    }

    impl Stubborn for Files {
        fn store(&self) -> Arc<dyn PathStore> {
            Arc::clone(&self.store) as Arc<dyn PathStore>
        }

        fn stall(&self) {
            self.stalled.store(true, Ordering::SeqCst);
        }

        fn expire(&self) {
            self.clock.advance(Duration::from_secs(3));
        }

        fn release(&self) {
            self.stalled.store(false, Ordering::SeqCst);
            assert!(self.engine.release() > 0);
        }
    }

    #[test]
    fn paths_in_memory_conform() {
        check_hanging(&|| Box::new(Arc::new(MemoryPath::new("memory", 1e9))));
    }

    #[test]
    fn file_paths_conform_with_every_engine() {
        for choice in [EngineChoice::Threads, EngineChoice::Auto] {
            check_hanging(&|| Box::new(Files::open(choice)));
        }
    }

    #[test]
    fn a_request_of_which_the_kernel_has_a_part_stays_out_and_fails_late() {
        let files = Files::open(EngineChoice::Auto);
        let arena = Arena::new(16 * MIB).unwrap();
        files.stall();
        let extent = files.store.reserve(12 * MIB).unwrap();
        let (tell, told) = mpsc::channel();
        let from = pattern(&arena, 12 * MIB, 1).share().whole();
        let done = Box::new(move |result| tell.send(result).unwrap());
        files.store.write(&extent, from, Class::WriteBack, done);
        let out = files.engine.hanging() as u64;
        assert!(out < 12, "some of it waits");
        let hung = events(&*files.store);
        files.expire();
        expect(&hung, PathEvent::Hung);
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        let counters = files.store.counters();
        assert_eq!((counters.hung_operations, counters.hung_bytes), (out, out * MIB));
        files.release();
        assert_eq!(told.recv().unwrap(), Err(TIMED_OUT), "the rest was never written");
    }

    #[test]
    fn time_in_the_queue_of_a_cap_does_not_count() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let cap = crate::units::BytesPerSecond(1e6);
        let options = Path::new(dir.path()).read_cap(cap).write_cap(cap);
        let options = options.deadline(Duration::from_millis(100));
        let clock = Clock::manual();
        let store = FilePathStore::open(&options, EngineChoice::Auto, clock.clone()).unwrap();
        let arena = Arena::new(4 * MIB).unwrap();
        let (extents, answers) = start_writes(&store, &arena, 1);
        // A second part waits for a second; the first is complete when only that one is left.
        while store.outstanding().write_bytes > MIB {
            std::thread::yield_now();
        }
        for _ in 0..5 {
            clock.advance(Duration::from_millis(200));
            assert_eq!(store.condition(), Condition::Good);
        }
        clock.advance(Duration::from_secs(1));
        assert_eq!(answers.recv().unwrap(), (0, Ok(())));
        extents.into_iter().for_each(|extent| store.free(extent));
    }

    #[test]
    fn dropping_a_path_whose_kernel_calls_block_does_not_wait_for_them() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let cap = crate::units::BytesPerSecond(100e9);
        let options = Path::new(dir.path()).read_cap(cap).write_cap(cap);
        let (open_gate, gate) = mpsc::channel::<()>();
        let (gate, arena) = (crate::sync::Mutex::new(gate), Arena::new(4 * MIB).unwrap());
        let hook = Arc::new(move |bytes| {
            let _ = gate.lock().recv();
            Ok(bytes)
        });
        let threads = move |_| {
            Arc::new(crate::io::Threads::start_hooked(2, hook).unwrap()) as Arc<dyn IoEngine>
        };
        let (choice, clock) = (EngineChoice::Threads, Clock::system());
        let store = FilePathStore::open_decorated(&options, choice, clock, threads).unwrap();
        let (extents, answers) = start_writes(&store, &arena, 1);
        let error = store.close(Duration::from_millis(20)).unwrap_err();
        assert_eq!((error.in_flight, error.left.len()), (2, 1));
        assert!(error.left[0].exists());
        extents.into_iter().for_each(|extent| store.free(extent));
        drop(store);
        assert_eq!(arena.usage().in_use, 2 * MIB, "it stays taken until the calls return");
        drop(open_gate);
        assert!(answers.recv().unwrap().1.is_ok());
        assert_eq!(arena.usage().in_use, 0);
    }
}
