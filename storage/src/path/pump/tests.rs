//! A pump with an engine that does nothing by itself.

use super::*;
use crate::arena::Arena;
use crate::path::Kind;
use crate::path::request::Answer;
use crate::path::segment::Making;
use crate::path::token::Limit;
use std::sync::mpsc;

const DEADLINE: Duration = Duration::from_secs(30);

/// An engine that does nothing until the test completes its operations.
#[derive(Debug, Default)]
struct Shelf(Mutex<Vec<Operation>>);

impl IoEngine for Shelf {
    fn submit(&self, operation: Operation) {
        self.0.lock().push(operation);
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Threads
    }
}

impl Shelf {
    fn complete(&self, result: std::result::Result<(), Errno>) {
        let Operation { transfer, done, .. } = self.0.lock().remove(0);
        let bytes = if result.is_ok() { transfer.bytes() } else { 0 };
        done(Completion { result, bytes, took: Duration::ZERO, transfer });
    }
}

fn pump(shelf: &Arc<Shelf>, dsync: bool) -> Arc<Pump> {
    pump_with(shelf, dsync, Clock::manual(), None)
}

fn pump_with(shelf: &Arc<Shelf>, dsync: bool, clock: Clock, seat: Option<Seat>) -> Arc<Pump> {
    let limits = (Limits::new(Kind::Nvme, None, None), DEADLINE);
    let seed = PathProfile::new(1e9, 1e9, 0.0);
    let making = Making { direct: !dsync, fallocate: true, quota: 0 };
    let segments = Arc::new(Segments::new(making));
    let engine = Arc::clone(shelf) as Arc<dyn IoEngine>;
    Pump::start(engine, clock, segments, limits, seed, seat).unwrap()
}

fn write(pump: &Arc<Pump>, index: u64, tell: mpsc::Sender<(u64, bool)>) {
    let answer = Answer::Write(Box::new(move |r| tell.send((index, r.is_ok())).unwrap()));
    let request = Arc::new(Request::new(answer, 4096, 1));
    let frame = Arena::new(4096).unwrap().try_alloc(4096).unwrap().unwrap().share();
    let (file, transfer) = (tempfile::tempfile().unwrap(), Transfer::Write(frame.whole()));
    let part = Part { request, file: Arc::new(file), offset: 0, transfer };
    pump.submit(Class::WriteBack, vec![part]).unwrap();
}

/// Answers of four writes of which the second fails when the first is complete already.
fn outcomes(dsync: bool) -> Vec<bool> {
    let shelf = Arc::new(Shelf::default());
    let pump = pump(&shelf, dsync);
    let (tell, told) = mpsc::channel();
    (0..3).for_each(|index| write(&pump, index, tell.clone()));
    shelf.complete(Ok(()));
    shelf.complete(Err(Errno(libc::EIO)));
    write(&pump, 3, tell);
    shelf.complete(Ok(()));
    shelf.complete(Ok(()));
    let mut outcomes: Vec<_> = told.try_iter().collect();
    outcomes.sort_unstable();
    outcomes.into_iter().map(|(_, ok)| ok).collect()
}

#[test]
fn a_refused_direct_write_and_those_beside_it_are_done_once_more_through_the_cache() {
    let shelf = Arc::new(Shelf::default());
    let pump = pump(&shelf, false);
    let (tell, told) = mpsc::channel();
    (0..3).for_each(|index| write(&pump, index, tell.clone()));
    let dsync = || shelf.0.lock().iter().map(|one| one.dsync).collect::<Vec<_>>();
    let refused = Err(Errno(libc::EINVAL));
    shelf.complete(refused);
    assert_eq!(dsync(), [false, false, true], "it waits until the device has it");
    shelf.complete(Ok(()));
    assert_eq!(dsync(), [false, true, true], "whether the device has that one is not known");
    shelf.complete(refused);
    assert_eq!((dsync(), told.try_iter().count()), (vec![true; 3], 0));
    shelf.complete(Ok(()));
    shelf.complete(Ok(()));
    // Refused as a buffered one too, it is about something else.
    shelf.complete(refused);
    let mut outcomes: Vec<_> = told.try_iter().collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, [(0, true), (1, true), (2, false)]);
    assert!(shelf.0.lock().is_empty());
}

#[test]
fn a_failed_sync_fails_what_was_in_flight_with_it_and_nothing_else() {
    assert_eq!(outcomes(true), [true, false, false, true]);
    assert_eq!(outcomes(false), [true, false, true, true], "direct writes fail alone");
}

/// A pump beside another process before one device, on one clock.
struct Beside {
    shelf: Arc<Shelf>,
    pump: Arc<Pump>,
    other: Seat,
    clock: Clock,
    _dir: tempfile::TempDir,
}

const START: Needs = Needs { start: true, in_flight: false };
const NOTHING: Needs = Needs { start: false, in_flight: false };

impl Beside {
    fn new() -> Self {
        let (dir, clock, shelf) = (tempfile::tempdir().unwrap(), Clock::manual(), Arc::default());
        let seat = || Seat::in_dir(dir.path(), Limit::AtMost(1), &clock);
        let (own, other) = (seat(), seat());
        let pump = pump_with(&shelf, false, clock.clone(), Some(own));
        Beside { shelf, pump, other, clock, _dir: dir }
    }

    /// Lets time pass until the shelf has so many operations; the timer needs a moment of real time.
    fn wait_for(&self, operations: usize) {
        for _ in 0..10_000 {
            if self.shelf.0.lock().len() == operations {
                return;
            }
            self.clock.advance(Duration::from_millis(1));
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} operations", self.shelf.0.lock().len());
    }
}

#[test]
fn what_waits_for_another_process_starts_when_that_gives_way_and_does_not_hang_meanwhile() {
    let beside = Beside::new();
    let (tell, told) = mpsc::channel();
    assert!(beside.other.ask(START).go);
    (0..3).for_each(|index| write(&beside.pump, index, tell.clone()));
    let rate = beside.pump.profile().write_bps;
    for _ in 0..100 {
        beside.clock.advance(DEADLINE / 101);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(beside.shelf.0.lock().is_empty());
    assert_eq!(beside.pump.condition(), Condition::Good);
    assert!(beside.pump.waited() > DEADLINE / 2);
    assert!(beside.pump.profile().write_bps < 0.01 * rate, "little of the device is its own");
    assert_eq!(beside.pump.lanes.lock().meter.profile().write_bps, rate, "the device is as fast");
    beside.other.ask(NOTHING);
    beside.clock.advance(Duration::from_millis(2));
    assert!(!beside.other.ask(NOTHING).go);
    beside.wait_for(3);
    (0..3).for_each(|_| beside.shelf.complete(Ok(())));
    assert_eq!(told.try_iter().filter(|(_, ok)| *ok).count(), 3);
}

#[test]
fn a_path_that_hangs_or_closes_gives_the_device_to_the_others() {
    for hangs in [true, false] {
        let beside = Beside::new();
        let (tell, told) = mpsc::channel();
        write(&beside.pump, 0, tell.clone());
        assert!(!beside.other.ask(START).go);
        if hangs {
            beside.clock.advance(DEADLINE);
        } else {
            beside.shelf.complete(Ok(()));
            beside.pump.close(DEADLINE);
        }
        let mut goes = false;
        for _ in 0..10_000 {
            beside.clock.advance(Duration::from_millis(1));
            std::thread::sleep(Duration::from_millis(1));
            goes = beside.other.ask(START).go;
            if goes {
                break;
            }
        }
        assert!(goes, "hangs: {hangs}");
        assert_eq!(told.try_iter().count(), usize::from(!hangs));
    }
}
