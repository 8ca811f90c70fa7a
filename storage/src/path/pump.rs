//! Keeps a path's engine supplied: what the admission lets through is submitted, from any thread.

use std::fs::File;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::admission::{Admission, Direction, Limits, Next, Permit};
use super::profile::{Meter, PathProfile};
use super::request::Request;
use super::store::{Outstanding, TransferError};
use crate::clock::Clock;
use crate::error::{Errno, Error, Result};
use crate::id::Class;
use crate::io::{Completion, IoEngine, Operation, Transfer};
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering};

/// One transfer of a request, not yet started.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) request: Arc<Request>,
    pub(super) file: Arc<File>,
    pub(super) offset: u64,
    pub(super) transfer: Transfer,
}

/// The queue of a path and its engine.
#[derive(Debug)]
pub(super) struct Pump {
    engine: Arc<dyn IoEngine>,
    clock: Clock,
    dsync: bool,
    lanes: Mutex<Lanes>,
    /// Told when the last request was answered.
    quiet: Condvar,
    alarm: Option<Arc<Alarm>>,
    done: [Done; 2],
}

#[derive(Debug)]
struct Lanes {
    admission: Admission<Part>,
    meter: Meter,
    /// Requests taken and not yet answered.
    requests: u64,
    closing: bool,
}

#[derive(Debug, Default)]
struct Done {
    bytes: AtomicU64,
    requests: AtomicU64,
}

impl Pump {
    /// Returns a pump; with a cap in `limits` it has a thread that ends with it.
    pub(super) fn start(
        engine: Arc<dyn IoEngine>,
        clock: Clock,
        dsync: bool,
        limits: Limits,
        seed: PathProfile,
    ) -> Result<Arc<Self>> {
        let capped = limits.caps.iter().any(Option::is_some);
        let alarm = capped.then(Arc::<Alarm>::default);
        let lanes = Lanes {
            admission: Admission::new(limits),
            meter: Meter::new(seed),
            requests: 0,
            closing: false,
        };
        let pump = Arc::new(Pump {
            engine,
            clock,
            dsync,
            lanes: Mutex::new(lanes),
            quiet: Condvar::new(),
            alarm,
            done: Default::default(),
        });
        if let Some(alarm) = &pump.alarm {
            Alarm::start(alarm, Arc::downgrade(&pump))?;
        }
        Ok(pump)
    }

    /// Takes a request of at least one part.
    ///
    /// # Errors
    /// The parts again, once the path is closing.
    pub(super) fn submit(
        self: &Arc<Self>,
        class: Class,
        parts: Vec<Part>,
    ) -> std::result::Result<(), Vec<Part>> {
        let now = self.clock.now();
        {
            let mut lanes = self.lanes.lock();
            if lanes.closing {
                return Err(parts);
            }
            lanes.requests += 1;
            for part in parts {
                let (direction, bytes) = (part.request.direction, part.transfer.bytes());
                lanes.admission.submit(now, direction, class, bytes, part);
            }
        }
        self.run();
        Ok(())
    }

    /// Starts what may start. Any number of threads may do so at a time.
    fn run(self: &Arc<Self>) {
        loop {
            let now = self.clock.now();
            let next = {
                let mut lanes = self.lanes.lock();
                let next = lanes.admission.next(now);
                if !matches!(next, Next::Start(..)) {
                    let loads = Direction::BOTH.map(|way| lanes.admission.load(way));
                    lanes.meter.note(now, loads);
                }
                next
            };
            match next {
                Next::Start(part, permit) => self.start_one(part, permit),
                Next::Wait(until) => {
                    if let Some(alarm) = &self.alarm {
                        alarm.set(until.saturating_sub(now));
                    }
                    return;
                }
                Next::Idle => return,
            }
        }
    }

    fn start_one(self: &Arc<Self>, part: Part, permit: Permit) {
        let Part { request, file, offset, transfer } = part;
        let pump = Arc::clone(self);
        let done = Box::new(move |completion| pump.completed(&request, permit, offset, completion));
        self.engine.submit(Operation { file, offset, transfer, dsync: self.dsync, done });
    }

    fn completed(
        self: &Arc<Self>,
        request: &Request,
        permit: Permit,
        offset: u64,
        completion: Completion,
    ) {
        let Completion { result, bytes, transfer, .. } = completion;
        // The owner makes his frame whole again as soon as he is told.
        drop(transfer);
        {
            let mut lanes = self.lanes.lock();
            lanes.meter.moved(permit.direction(), bytes);
            lanes.admission.finish(permit);
        }
        // First the device gets more to do, then the owner hears of it.
        self.run();
        let offset = offset + bytes;
        self.part_done(request, result.map_err(|errno| TransferError { errno, offset }));
    }

    fn part_done(&self, request: &Request, result: std::result::Result<(), TransferError>) {
        let Some((answer, result)) = request.part_done(result) else {
            return;
        };
        if result.is_ok() {
            let done = &self.done[usize::from(request.direction == Direction::Write)];
            done.bytes.fetch_add(request.bytes, Ordering::SeqCst);
            done.requests.fetch_add(1, Ordering::SeqCst);
        }
        answer.tell(result);
        let mut lanes = self.lanes.lock();
        lanes.requests -= 1;
        if lanes.requests == 0 {
            self.quiet.notify_all();
        }
    }

    /// Cancels what waits, and waits up to `grace` for the rest. Returns how many operations the
    /// engine still has, and whether every request was answered.
    pub(super) fn close(&self, grace: Duration) -> (u64, bool) {
        let canceled = {
            let mut lanes = self.lanes.lock();
            lanes.closing = true;
            lanes.admission.cancel()
        };
        for Part { request, offset, transfer, .. } in canceled {
            drop(transfer);
            self.part_done(&request, Err(TransferError { errno: Errno(libc::ECANCELED), offset }));
        }
        let begin = Instant::now();
        let mut lanes = self.lanes.lock();
        while lanes.requests > 0 {
            let left = grace.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            self.quiet.wait_for(&mut lanes, left);
        }
        (lanes.admission.in_flight(), lanes.requests == 0)
    }

    pub(super) fn profile(&self) -> PathProfile {
        self.lanes.lock().meter.profile()
    }

    pub(super) fn outstanding(&self) -> Outstanding {
        let lanes = self.lanes.lock();
        let [read_bytes, write_bytes] =
            Direction::BOTH.map(|way| lanes.admission.outstanding_bytes(way));
        Outstanding { read_bytes, write_bytes }
    }

    /// Returns bytes and requests completed without error.
    pub(super) fn done(&self, direction: Direction) -> (u64, u64) {
        let done = &self.done[usize::from(direction == Direction::Write)];
        (done.bytes.load(Ordering::SeqCst), done.requests.load(Ordering::SeqCst))
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        if let Some(alarm) = &self.alarm {
            alarm.stop();
        }
    }
}

/// Runs the pump again when a cap allows more.
#[derive(Debug, Default)]
struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AlarmState {
    due: Option<Instant>,
    stopped: bool,
    thread: Option<JoinHandle<()>>,
}

impl Alarm {
    fn start(alarm: &Arc<Self>, pump: Weak<Pump>) -> Result<()> {
        let theirs = Arc::clone(alarm);
        let thread = thread::Builder::new()
            .name(String::from("tensortier-caps"))
            .spawn(move || theirs.watch(&pump))
            .map_err(|error| Error::System {
                attempted: String::from("start a thread for the caps of a path"),
                source: error.into(),
                remedy: String::from("raise the limit of threads (ulimit -u, pids.max)"),
            })?;
        alarm.state.lock().thread = Some(thread);
        Ok(())
    }

    /// Asks for a run of the pump after `wait`, or earlier.
    fn set(&self, wait: Duration) {
        let due = Instant::now() + wait;
        let mut state = self.state.lock();
        if state.due.is_none_or(|set| due < set) {
            state.due = Some(due);
            self.changed.notify_one();
        }
    }

    fn watch(&self, pump: &Weak<Pump>) {
        loop {
            {
                let mut state = self.state.lock();
                loop {
                    if state.stopped {
                        return;
                    }
                    match state.due {
                        None => self.changed.wait(&mut state),
                        Some(due) if due > Instant::now() => {
                            self.changed.wait_until(&mut state, due);
                        }
                        Some(_) => break,
                    }
                }
                state.due = None;
            }
            match pump.upgrade() {
                Some(pump) => pump.run(),
                None => return,
            }
        }
    }

    fn stop(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.thread.take()
        };
        self.changed.notify_one();
        let own = thread::current().id();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            // It cannot panic: what callbacks do is caught.
            let _ = thread.join();
        }
    }
}
