//! A path in memory, for tests: it answers late and out of order, refuses, fails, corrupts and hangs
//! when told to, and checks that nobody breaks the contract of extents.

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use super::hang::{Started, Watch};
use super::{
    Capabilities, CloseError, Condition, Extent, Outstanding, PathCounters, PathEvent, PathProfile,
    PathStore, ReadDone, Tell, TransferError, WriteDone,
};
use crate::arena::{FrameSlice, FrameSliceMut, GRANULE, granules_up};
use crate::clock::Clock;
use crate::error::Errno;
use crate::id::Class;
use crate::sync::channel::{self, Receiver, RecvTimeoutError, Sender};
use crate::sync::thread;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// What such a path takes without a quota, in bytes.
const MOST_BYTES: u64 = 1 << 32;

/// Its deadline on a clock of its own, which only [`MemoryPath::hang`] moves.
const DEADLINE: Duration = Duration::from_secs(30);

/// What a [`MemoryPath`] does to its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mischief {
    /// At most this many bytes in extents; 0 means no limit.
    pub quota_bytes: u64,
    /// Every n-th write fails with `EIO`; 0 means none.
    pub fail_write_every: u64,
    /// Every n-th read fails with `EIO`; 0 means none.
    pub fail_read_every: u64,
    /// Every n-th read has one bit flipped; 0 means none.
    pub flip_read_every: u64,
    /// How many answers are held back and given in reverse; 0 means in order.
    pub reorder: usize,
    /// How long each transfer takes at least.
    pub delay: Duration,
}

/// A path whose bytes are in ordinary memory.
#[derive(Debug)]
pub struct MemoryPath {
    capabilities: Capabilities,
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when no transfer is unanswered.
    quiet: Condvar,
    clock: Clock,
    bell: Bell,
}

#[derive(Debug)]
struct State {
    watch: Watch,
    /// What is asked for is taken and not answered.
    stalled: bool,
    extents: HashMap<u64, Vec<u8>>,
    next: u64,
    mischief: Mischief,
    counters: PathCounters,
    outstanding: Outstanding,
    answered_reads: u64,
    answered_writes: u64,
    unanswered: u64,
    closed: bool,
    share_bps: f64,
}

impl State {
    fn new(share_bps: f64) -> Self {
        State {
            watch: Watch::new(DEADLINE),
            stalled: false,
            extents: HashMap::new(),
            next: 0,
            mischief: Mischief::default(),
            counters: PathCounters::default(),
            outstanding: Outstanding::default(),
            answered_reads: 0,
            answered_writes: 0,
            unanswered: 0,
            closed: false,
            share_bps,
        }
    }
}

struct Job {
    started: Started,
    what: What,
}

enum What {
    Read { extent: u64, at: usize, into: FrameSliceMut, done: ReadDone },
    Write { extent: u64, from: FrameSlice, done: WriteDone },
}

impl MemoryPath {
    /// Returns an empty path that says it sustains `share_bps` each way.
    pub fn new(name: &str, share_bps: f64) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(share_bps)),
            quiet: Condvar::new(),
            clock: Clock::manual(),
            bell: Bell::default(),
        });
        let (jobs, inbox) = channel::unbounded();
        let worker = Arc::clone(&shared);
        thread::spawn(move || work(&inbox, &worker));
        MemoryPath { capabilities: Capabilities::of_own(name, "memory"), jobs, shared }
    }

    /// Sets what it does to its users from now on.
    pub fn set_mischief(&self, mischief: Mischief) {
        self.state().mischief = mischief;
    }

    /// From now on says that it sustains `bps` each way, as one that became faster or slower.
    pub fn set_speed(&self, bps: f64) {
        self.state().share_bps = bps;
    }

    /// Flips one bit of every extent as it is stored now.
    pub fn corrupt_all(&self) {
        for bytes in self.state().extents.values_mut() {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }
    }

    /// From now on takes what is asked for and does not answer, until [`MemoryPath::release`].
    pub fn stall(&self) {
        self.state().stalled = true;
    }

    /// Lets its deadline pass: it hangs if something is out.
    pub fn hang(&self) {
        self.shared.clock.advance(DEADLINE);
        let mut state = self.state();
        if state.watch.look(self.shared.clock.now()) {
            state.outstanding = Outstanding::default();
            self.shared.bell.note(PathEvent::Hung);
        }
        drop(state);
        self.shared.bell.ring();
    }

    /// Does and answers what is out, and what comes from now on.
    pub fn release(&self) {
        self.state().stalled = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Takes note of a transfer that will be answered, or says why it will not.
    fn begin(&self, read_bytes: usize, write_bytes: usize) -> Result<Started, Errno> {
        let mut state = self.state();
        if state.closed {
            return Err(Errno(libc::ECANCELED));
        }
        if state.watch.is_hung() {
            return Err(Errno(libc::ETIMEDOUT));
        }
        state.unanswered += 1;
        state.outstanding.read_bytes += read_bytes as u64;
        state.outstanding.write_bytes += write_bytes as u64;
        Ok(state.watch.started(self.shared.clock.now(), (read_bytes + write_bytes) as u64))
    }
}

impl Shared {
    /// Does what a job says and returns its answer.
    fn run(&self, Job { started, what }: Job) -> Box<dyn FnOnce()> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        match what {
            What::Read { extent, at, into, done } => {
                let bytes = into.len() as u64;
                let result = read(&mut state, extent, at, into);
                let finished = state.watch.finished(now, started, result.is_ok());
                state.outstanding.read_bytes -= if finished.late { 0 } else { bytes };
                finished.event.into_iter().for_each(|event| self.bell.note(event));
                Box::new(move || done(result))
            }
            What::Write { extent, from, done } => {
                let bytes = from.len() as u64;
                let result = write(&mut state, extent, &from);
                drop(from);
                let finished = state.watch.finished(now, started, result.is_ok());
                state.outstanding.write_bytes -= if finished.late { 0 } else { bytes };
                finished.event.into_iter().for_each(|event| self.bell.note(event));
                Box::new(move || done(result))
            }
        }
    }

    /// Gives answers, last first.
    fn answer(&self, held: &mut Vec<Box<dyn FnOnce()>>) {
        let count = held.len() as u64;
        held.drain(..).rev().for_each(|answer| answer());
        self.bell.ring();
        let mut state = self.state.lock();
        state.unanswered -= count;
        if state.unanswered == 0 {
            self.quiet.notify_all();
        }
    }
}

fn every(n: u64, count: u64) -> bool {
    n > 0 && count.is_multiple_of(n)
}

fn work(inbox: &Receiver<Job>, shared: &Shared) {
    let state = &shared.state;
    let mut held: Vec<Box<dyn FnOnce()>> = Vec::new();
    // As with a kernel that never answers, what is never released stays taken.
    let mut stalled: ManuallyDrop<VecDeque<Job>> = ManuallyDrop::default();
    loop {
        // Held answers are given when enough are held or nothing else comes.
        match inbox.recv_timeout(Duration::from_millis(1)) {
            Ok(job) => stalled.push_back(job),
            Err(RecvTimeoutError::Timeout) => shared.answer(&mut held),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        loop {
            let (is_stalled, mischief) = {
                let state = state.lock();
                (state.stalled, state.mischief)
            };
            if is_stalled {
                break;
            }
            let Some(job) = stalled.pop_front() else { break };
            thread::sleep(mischief.delay);
            held.push(shared.run(job));
            if held.len() > mischief.reorder {
                shared.answer(&mut held);
            }
        }
    }
    shared.answer(&mut held);
}

fn read(
    state: &mut State,
    extent: u64,
    at: usize,
    mut into: FrameSliceMut,
) -> Result<(), TransferError> {
    state.answered_reads += 1;
    let fail = |code| TransferError { errno: Errno(code), offset: at as u64 };
    if state.closed {
        return Err(fail(libc::ECANCELED));
    }
    if every(state.mischief.fail_read_every, state.answered_reads) {
        into.fill(0xEE);
        return Err(fail(libc::EIO));
    }
    let aligned = (at as u64).is_multiple_of(GRANULE);
    let range = at.checked_add(into.len()).filter(|_| aligned).map(|end| at..end);
    let from = range.and_then(|range| state.extents.get(&extent)?.get(range));
    into.copy_from_slice(from.ok_or_else(|| fail(libc::EINVAL))?);
    if every(state.mischief.flip_read_every, state.answered_reads) {
        into[0] ^= 1;
    }
    state.counters.reads += 1;
    state.counters.read_bytes += into.len() as u64;
    Ok(())
}

fn write(state: &mut State, extent: u64, from: &FrameSlice) -> Result<(), Errno> {
    state.answered_writes += 1;
    if state.closed {
        return Err(Errno(libc::ECANCELED));
    }
    if every(state.mischief.fail_write_every, state.answered_writes) {
        return Err(Errno(libc::EIO));
    }
    let bytes = state.extents.get_mut(&extent).ok_or(Errno(libc::EINVAL))?;
    bytes.get_mut(..from.len()).ok_or(Errno(libc::EINVAL))?.copy_from_slice(from);
    state.counters.writes += 1;
    state.counters.written_bytes += from.len() as u64;
    Ok(())
}

impl PathStore for MemoryPath {
    fn reserve(&self, bytes: u64) -> Result<Extent, Errno> {
        let mut state = self.state();
        if state.closed {
            return Err(Errno(libc::ECANCELED));
        }
        if state.watch.is_hung() {
            return Err(Errno(libc::ETIMEDOUT));
        }
        let quota = match state.mischief.quota_bytes {
            0 => MOST_BYTES,
            quota => quota.min(MOST_BYTES),
        };
        if bytes > quota || state.counters.used_bytes + granules_up(bytes) > quota {
            return Err(Errno(libc::ENOSPC));
        }
        let bytes = granules_up(bytes);
        state.next += 1;
        let place = state.next;
        state.extents.insert(place, vec![0xDD; bytes as usize]);
        state.counters.used_bytes += bytes;
        state.counters.space_bytes = state.counters.space_bytes.max(state.counters.used_bytes);
        Ok(Extent::new(place, 0, bytes))
    }

    fn write(&self, extent: &Extent, from: FrameSlice, _class: Class, done: WriteDone) {
        match self.begin(0, from.len()) {
            Ok(started) => {
                let what = What::Write { extent: extent.place(), from, done };
                let _ = self.jobs.send(Job { started, what });
            }
            Err(errno) => {
                drop(from);
                done(Err(errno));
            }
        }
    }

    fn read(&self, extent: &Extent, at: u64, into: FrameSliceMut, _class: Class, done: ReadDone) {
        match self.begin(into.len(), 0) {
            Ok(started) => {
                let what = What::Read { extent: extent.place(), at: at as usize, into, done };
                let _ = self.jobs.send(Job { started, what });
            }
            Err(errno) => {
                drop(into);
                done(Err(TransferError { errno, offset: at }));
            }
        }
    }

    fn free(&self, extent: Extent) {
        let mut state = self.state();
        let freed = state.extents.remove(&extent.place());
        assert!(freed.is_some(), "{extent:?} freed twice");
        state.counters.used_bytes -= extent.bytes();
    }

    fn sync(&self) -> Result<(), Errno> {
        if self.state().watch.is_hung() { Err(Errno(libc::ETIMEDOUT)) } else { Ok(()) }
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn profile(&self) -> PathProfile {
        let bps = self.state().share_bps;
        PathProfile::new(bps, bps, 0.0)
    }

    fn outstanding(&self) -> Outstanding {
        self.state().outstanding
    }

    fn counters(&self) -> PathCounters {
        let state = self.state();
        let hung = state.watch.apart();
        let (hung_operations, hung_bytes) = (hung.operations, hung.bytes);
        PathCounters { hung_operations, hung_bytes, ..state.counters }
    }

    fn condition(&self) -> Condition {
        self.state().watch.condition(self.shared.clock.now())
    }

    fn watch(&self, tell: Tell) {
        self.shared.bell.watch(tell);
    }

    fn close(&self, grace: Duration) -> Result<(), CloseError> {
        let mut state = self.state();
        state.closed = true;
        let busy = |state: &mut State| state.unanswered > 0;
        if !self.shared.quiet.wait_while_for(&mut state, busy, grace).timed_out() {
            return Ok(());
        }
        let why = format!("{} does not answer", self.capabilities.dir.display());
        Err(CloseError { in_flight: state.unanswered, left: Vec::new(), why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::conformance::check;

    #[test]
    fn it_conforms_in_order_and_out_of_order() {
        for reorder in [0, 5] {
            check(&|| {
                let path = MemoryPath::new("memory", 1e9);
                path.set_mischief(Mischief { reorder, ..Mischief::default() });
                Box::new(path)
            });
        }
    }
}
