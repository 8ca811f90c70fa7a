//! Keeps a path's engine supplied: what the admission lets through is submitted, from any thread.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::{Admission, Direction, Limits, Load, Next, Permit};
use super::bell::Bell;
use super::depth::{Depth, MOST_BYTES};
use super::hang::{Amount, Started, Watch};
use super::profile::{Meter, PathProfile};
use super::request::Request;
use super::segment::Segments;
use super::store::{Condition, Outstanding, PathEvent, Tell, TransferError};
use super::timer::Timer;
use super::token::{Needs, Seat};
use crate::clock::Clock;
use crate::error::{Errno, Result};
use crate::id::Class;
use crate::io::{Completion, EngineKind, IoEngine, Operation, Transfer};
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
    segments: Arc<Segments>,
    lanes: Mutex<Lanes>,
    /// Told when the last request was answered.
    quiet: Condvar,
    timer: Arc<Timer>,
    bell: Bell,
    done: [Done; 2],
    /// Set where processes take turns.
    seat: Option<Seat>,
}

#[derive(Debug)]
struct Lanes {
    admission: Admission<Part>,
    meter: Meter,
    depth: Depth,
    watch: Watch,
    /// The timer will look at the deadline.
    watched: bool,
    /// How often a write through the page cache has failed.
    sync_failures: u64,
    /// Requests taken and not yet answered.
    requests: u64,
    closing: bool,
}

#[derive(Debug, Default)]
struct Done {
    bytes: AtomicU64,
    requests: AtomicU64,
}

/// Returns how many bytes each direction can have in flight: threads are as many as were started.
fn most_in_flight(engine: &dyn IoEngine, limits: Limits) -> u64 {
    match engine.kind() {
        EngineKind::Uring => MOST_BYTES,
        EngineKind::Threads => limits.in_flight_bytes[0],
    }
}

/// What is remembered of an operation while the engine has it.
#[derive(Debug)]
struct InFlight {
    request: Arc<Request>,
    file: Arc<File>,
    offset: u64,
    /// What the page cache has taken is not yet accepted for good, so the engine waits for more.
    dsync: bool,
    /// It was refused as a direct transfer and is tried once more.
    again: bool,
    permit: Permit,
    started: Started,
    sync_failures: u64,
}

impl Pump {
    /// Returns a pump; it has a thread that ends with it.
    ///
    /// # Errors
    /// [`crate::Error::System`] when the system has no more threads.
    pub(super) fn start(
        engine: Arc<dyn IoEngine>,
        clock: Clock,
        segments: Arc<Segments>,
        (limits, deadline): (Limits, Duration),
        seed: PathProfile,
        seat: Option<Seat>,
    ) -> Result<Arc<Self>> {
        let lanes = Lanes {
            admission: Admission::new(limits),
            meter: Meter::new(seed),
            depth: Depth::new(limits.in_flight_bytes[0], most_in_flight(&*engine, limits)),
            watch: Watch::new(deadline),
            watched: false,
            sync_failures: 0,
            requests: 0,
            closing: false,
        };
        let pump = Arc::new(Pump {
            engine,
            timer: Timer::new(clock.clone()),
            clock,
            segments,
            lanes: Mutex::new(lanes),
            quiet: Condvar::new(),
            bell: Bell::default(),
            done: Default::default(),
            seat,
        });
        let weak = Arc::downgrade(&pump);
        Timer::start(&pump.timer, move || {
            let pump = weak.upgrade();
            pump.as_ref().map(Pump::look).is_some()
        })?;
        Ok(pump)
    }

    /// Takes a request of at least one part.
    ///
    /// # Errors
    /// The parts again, and why: the path hangs or is closing.
    pub(super) fn submit(
        self: &Arc<Self>,
        class: Class,
        parts: Vec<Part>,
    ) -> std::result::Result<(), (Errno, Vec<Part>)> {
        let now = self.clock.now();
        {
            let mut lanes = self.lanes.lock();
            if lanes.closing {
                return Err((Errno(libc::ECANCELED), parts));
            }
            if lanes.watch.is_hung() {
                return Err((Errno(libc::ETIMEDOUT), parts));
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
            let mut lanes = self.lanes.lock();
            let (has_turn, next) = self.next(&mut lanes, now);
            match next {
                Next::Start(part, permit) => {
                    let started = lanes.watch.started(now, permit.bytes());
                    let sync_failures = lanes.sync_failures;
                    drop(lanes);
                    self.start_one(part, permit, started, sync_failures);
                }
                Next::Wait(_) | Next::Idle => {
                    let mut loads = Direction::BOTH.map(|way| lanes.admission.load(way));
                    if has_turn {
                        lanes.meter.note(now, loads);
                    } else {
                        // What waits for other processes says nothing of the device.
                        loads = [Load::Idle; 2];
                        lanes.meter.leave(now);
                    }
                    if let Some(bytes) = lanes.depth.note(now, loads) {
                        lanes.admission.set_in_flight_bytes(bytes);
                        // With more room more may start.
                        continue;
                    }
                    if let Next::Wait(until) = next {
                        self.timer.set(until);
                    }
                    // Until it has fallen due, the deadline only moves away.
                    if let Some(due) = lanes.watch.due().filter(|_| !lanes.watched) {
                        lanes.watched = true;
                        self.timer.set(due);
                    }
                    return;
                }
            }
        }
    }

    /// Returns whether the path has its turn among processes, and what to do now.
    fn next(&self, lanes: &mut Lanes, now: Duration) -> (bool, Next<Part>) {
        let may_start = lanes.watch.may_start();
        let Some(seat) = &self.seat else {
            return (true, if may_start { lanes.admission.next(now) } else { Next::Idle });
        };
        let in_flight = lanes.admission.in_flight() > 0;
        let ready = lanes.admission.ready(now).filter(|_| may_start);
        // What has to wait for a cap keeps no other process from the device.
        let start = ready.is_some_and(|ready| ready <= now);
        let answer = seat.ask(Needs { start, in_flight });
        let later = [ready.filter(|_| !start), answer.again.map(|after| now + after)];
        let next = match if start && answer.go { lanes.admission.next(now) } else { Next::Idle } {
            Next::Idle => later.into_iter().flatten().min().map_or(Next::Idle, Next::Wait),
            next => next,
        };
        (answer.go || in_flight || !start, next)
    }

    fn start_one(
        self: &Arc<Self>,
        part: Part,
        permit: Permit,
        started: Started,
        sync_failures: u64,
    ) {
        let Part { request, file, offset, transfer } = part;
        let (dsync, again) = (!self.segments.is_direct(), false);
        let in_flight =
            InFlight { request, file, offset, dsync, again, permit, started, sync_failures };
        self.give(in_flight, transfer);
    }

    fn give(self: &Arc<Self>, in_flight: InFlight, transfer: Transfer) {
        let pump = Arc::clone(self);
        let InFlight { ref file, offset, dsync, .. } = in_flight;
        let file = Arc::clone(file);
        let done = Box::new(move |completion| pump.completed(in_flight, completion));
        self.engine.submit(Operation { file, offset, transfer, dsync, done });
    }

    /// Returns whether an operation is to be done once more, now through the page cache: the file
    /// system took the flag of direct transfers at open and refuses them now, or the flag was taken
    /// off while the engine had a write that asked for no more than the cache.
    fn is_once_more(&self, in_flight: &InFlight, result: std::result::Result<(), Errno>) -> bool {
        match result {
            // Whatever we ask for is aligned and in range: this can only be about direct transfers.
            Err(errno @ Errno(libc::EINVAL | libc::EOPNOTSUPP)) if !in_flight.again => {
                let was_direct = self.segments.is_direct() || self.segments.refused().is_some();
                if was_direct {
                    self.segments.leave_direct(errno);
                }
                was_direct
            }
            Ok(()) => {
                let writes = in_flight.permit.direction() == Direction::Write;
                writes && !in_flight.dsync && !self.segments.is_direct()
            }
            Err(_) => false,
        }
    }

    fn completed(self: &Arc<Self>, in_flight: InFlight, completion: Completion) {
        let Completion { mut result, bytes, transfer, .. } = completion;
        if self.is_once_more(&in_flight, result) {
            return self.give(InFlight { dsync: true, again: true, ..in_flight }, transfer);
        }
        let InFlight { request, offset, dsync, permit, started, sync_failures, .. } = in_flight;
        // The owner makes his frame whole again as soon as he is told.
        drop(transfer);
        {
            let mut lanes = self.lanes.lock();
            if dsync && permit.direction() == Direction::Write {
                // The kernel tells of a write that the page cache could not pass on once per open
                // file, to whoever asks first: others in flight meanwhile may have failed as well.
                match result {
                    Ok(()) if lanes.sync_failures != sync_failures => {
                        result = Err(Errno(libc::EIO));
                    }
                    Ok(()) => {}
                    Err(_) => lanes.sync_failures += 1,
                }
            }
            let finished = lanes.watch.finished(self.clock.now(), started, result.is_ok());
            if !finished.late {
                lanes.meter.moved(permit.direction(), bytes);
                lanes.depth.moved(permit.direction(), bytes);
                lanes.admission.finish(permit);
            }
            if let Some(seat) = &self.seat {
                seat.moved(bytes);
            }
            if let Some(event) = finished.event {
                self.bell.note(event);
            }
        }
        // First the device gets more to do, then the owner hears of it.
        self.run();
        let offset = offset + bytes;
        self.part_done(&request, result.map_err(|errno| TransferError { errno, offset }));
        self.bell.ring();
    }

    /// Looks whether the path hangs. What waits then is answered, what is in flight stays out.
    fn look(self: &Arc<Self>) {
        let timed_out = {
            let mut lanes = self.lanes.lock();
            lanes.watched = false;
            if lanes.watch.look(self.clock.now()) {
                self.bell.note(PathEvent::Hung);
                lanes.admission.forget();
                lanes.meter.forget();
                lanes.admission.cancel()
            } else {
                Vec::new()
            }
        };
        self.bell.ring();
        self.refuse(timed_out, Errno(libc::ETIMEDOUT));
        self.run();
    }

    /// Answers parts that were never started.
    fn refuse(&self, parts: Vec<Part>, errno: Errno) {
        for Part { request, offset, transfer, .. } in parts {
            drop(transfer);
            self.part_done(&request, Err(TransferError { errno, offset }));
        }
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
        self.refuse(canceled, Errno(libc::ECANCELED));
        let begin = Instant::now();
        let mut lanes = self.lanes.lock();
        while lanes.requests > 0 {
            let left = grace.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            self.quiet.wait_for(&mut lanes, left);
        }
        (lanes.watch.operations(), lanes.requests == 0)
    }

    /// Returns how fast the path is for this process: where processes take turns, for its part of
    /// the time.
    pub(super) fn profile(&self) -> PathProfile {
        let profile = self.lanes.lock().meter.profile();
        match &self.seat {
            Some(seat) => profile.part(seat.share()),
            None => profile,
        }
    }

    /// Returns how long transfers have waited for other processes.
    pub(super) fn waited(&self) -> Duration {
        self.seat.as_ref().map_or(Duration::ZERO, Seat::waited)
    }

    pub(super) fn outstanding(&self) -> Outstanding {
        let lanes = self.lanes.lock();
        let [read_bytes, write_bytes] =
            Direction::BOTH.map(|way| lanes.admission.outstanding_bytes(way));
        Outstanding { read_bytes, write_bytes }
    }

    pub(super) fn depth_bytes(&self) -> u64 {
        self.lanes.lock().depth.bytes()
    }

    pub(super) fn condition(&self) -> Condition {
        self.lanes.lock().watch.condition(self.clock.now())
    }

    pub(super) fn watch(&self, tell: Tell) {
        self.bell.watch(tell);
    }

    /// Returns what was in flight when the path hung and has not completed.
    pub(super) fn hung(&self) -> Amount {
        self.lanes.lock().watch.apart()
    }

    /// Returns bytes and requests completed without error.
    pub(super) fn done(&self, direction: Direction) -> (u64, u64) {
        let done = &self.done[usize::from(direction == Direction::Write)];
        (done.bytes.load(Ordering::SeqCst), done.requests.load(Ordering::SeqCst))
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.timer.stop();
    }
}

#[cfg(test)]
mod tests;
