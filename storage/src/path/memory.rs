//! A path in memory, for tests: it answers late and out of order, refuses, fails and corrupts when
//! told to, and checks that nobody breaks the contract of extents.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::{
    Capabilities, CloseError, Extent, Outstanding, PathCounters, PathProfile, PathStore, ReadDone,
    TransferError, WriteDone,
};
use crate::arena::{FrameSlice, FrameSliceMut, GRANULE, granules_up};
use crate::error::Errno;
use crate::id::Class;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// What such a path takes without a quota, in bytes.
const MOST_BYTES: u64 = 1 << 32;

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
    share_bps: f64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Told when no transfer is unanswered.
    quiet: Condvar,
}

#[derive(Debug, Default)]
struct State {
    extents: HashMap<u64, Vec<u8>>,
    next: u64,
    mischief: Mischief,
    counters: PathCounters,
    outstanding: Outstanding,
    answered_reads: u64,
    answered_writes: u64,
    unanswered: u64,
    closed: bool,
}

enum Job {
    Read { extent: u64, at: usize, into: FrameSliceMut, done: ReadDone },
    Write { extent: u64, from: FrameSlice, done: WriteDone },
}

impl MemoryPath {
    /// Returns an empty path that says it sustains `share_bps` each way.
    pub fn new(name: &str, share_bps: f64) -> Self {
        let shared = Arc::<Shared>::default();
        let (jobs, inbox) = crossbeam_channel::unbounded();
        let worker = Arc::clone(&shared);
        std::thread::spawn(move || work(&inbox, &worker));
        MemoryPath { capabilities: Capabilities::of_own(name, "memory"), jobs, shared, share_bps }
    }

    /// Sets what it does to its users from now on.
    pub fn set_mischief(&self, mischief: Mischief) {
        self.state().mischief = mischief;
    }

    /// Flips one bit of every extent as it is stored now.
    pub fn corrupt_all(&self) {
        for bytes in self.state().extents.values_mut() {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Takes note of a transfer that will be answered, or says that the path is closed.
    fn begin(&self, read_bytes: usize, write_bytes: usize) -> Result<(), Errno> {
        let mut state = self.state();
        if state.closed {
            return Err(Errno(libc::ECANCELED));
        }
        state.unanswered += 1;
        state.outstanding.read_bytes += read_bytes as u64;
        state.outstanding.write_bytes += write_bytes as u64;
        Ok(())
    }
}

impl Shared {
    /// Gives answers, last first.
    fn answer(&self, held: &mut Vec<Box<dyn FnOnce()>>) {
        let count = held.len() as u64;
        held.drain(..).rev().for_each(|answer| answer());
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
    loop {
        // Held answers are given when enough are held or nothing else comes.
        let job = match inbox.recv_timeout(Duration::from_millis(1)) {
            Ok(job) => job,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                shared.answer(&mut held);
                continue;
            }
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => break,
        };
        let (delay, reorder) = {
            let state = state.lock();
            (state.mischief.delay, state.mischief.reorder)
        };
        std::thread::sleep(delay);
        held.push(match job {
            Job::Read { extent, at, into, done } => {
                let result = read(&mut state.lock(), extent, at, into);
                Box::new(move || done(result))
            }
            Job::Write { extent, from, done } => {
                let result = write(&mut state.lock(), extent, &from);
                drop(from);
                Box::new(move || done(result))
            }
        });
        if held.len() > reorder {
            shared.answer(&mut held);
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
    state.outstanding.read_bytes -= into.len() as u64;
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
    state.outstanding.write_bytes -= from.len() as u64;
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
            Ok(()) => {
                let _ = self.jobs.send(Job::Write { extent: extent.place(), from, done });
            }
            Err(errno) => {
                drop(from);
                done(Err(errno));
            }
        }
    }

    fn read(&self, extent: &Extent, at: u64, into: FrameSliceMut, _class: Class, done: ReadDone) {
        match self.begin(into.len(), 0) {
            Ok(()) => {
                let (extent, at) = (extent.place(), at as usize);
                let _ = self.jobs.send(Job::Read { extent, at, into, done });
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
        Ok(())
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn profile(&self) -> PathProfile {
        PathProfile::new(self.share_bps, self.share_bps, 0.0)
    }

    fn outstanding(&self) -> Outstanding {
        self.state().outstanding
    }

    fn counters(&self) -> PathCounters {
        self.state().counters
    }

    fn close(&self, grace: Duration) -> Result<(), CloseError> {
        let mut state = self.state();
        state.closed = true;
        let busy = |state: &mut State| state.unanswered > 0;
        if !self.shared.quiet.wait_while_for(&mut state, busy, grace).timed_out() {
            return Ok(());
        }
        let why = format!("{} did not answer in {grace:?}", self.capabilities.dir.display());
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
