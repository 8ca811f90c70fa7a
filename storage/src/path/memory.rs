//! A path in memory, for tests: it answers late and out of order, refuses, fails and corrupts when
//! told to, and checks that nobody breaks the contract of extents.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::{
    Capabilities, CloseError, Extent, Kind, Outstanding, PathCounters, PathProfile, PathStore,
    ReadDone, TransferError, WriteDone,
};
use crate::arena::{FrameSlice, FrameSliceMut, granules_up};
use crate::error::Errno;
use crate::id::Class;
use crate::io::EngineKind;
use crate::sync::Mutex;

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
    state: Arc<Mutex<State>>,
    share_bps: f64,
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
    closed: bool,
}

enum Job {
    Read { extent: u64, at: usize, into: FrameSliceMut, done: ReadDone },
    Write { extent: u64, from: FrameSlice, done: WriteDone },
}

impl MemoryPath {
    /// Returns an empty path that says it sustains `share_bps` each way.
    pub fn new(name: &str, share_bps: f64) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (jobs, inbox) = crossbeam_channel::unbounded();
        let worker = Arc::clone(&state);
        std::thread::spawn(move || work(&inbox, &worker));
        MemoryPath { capabilities: capabilities(name), jobs, state, share_bps }
    }

    /// Sets what it does to its users from now on.
    pub fn set_mischief(&self, mischief: Mischief) {
        self.state.lock().mischief = mischief;
    }

    /// Flips one bit of every extent as it is stored now.
    pub fn corrupt_all(&self) {
        for bytes in self.state.lock().extents.values_mut() {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }
    }
}

fn capabilities(name: &str) -> Capabilities {
    Capabilities {
        dir: PathBuf::from(name),
        scratch: PathBuf::from(name),
        kind: Kind::Nvme,
        file_system: String::from("memory"),
        device: u64::MAX,
        direct: false,
        direct_why: String::from("there is no file"),
        align: 1,
        fallocate: false,
        locks: false,
        engine: EngineKind::Threads,
        engine_why: String::from("there is no file"),
        read_in_flight_bytes: u64::MAX,
        write_in_flight_bytes: u64::MAX,
    }
}

fn every(n: u64, count: u64) -> bool {
    n > 0 && count.is_multiple_of(n)
}

fn work(inbox: &Receiver<Job>, state: &Mutex<State>) {
    let mut held: Vec<Box<dyn FnOnce()>> = Vec::new();
    loop {
        // Held answers are given when enough are held or nothing else comes.
        let job = match inbox.recv_timeout(Duration::from_millis(1)) {
            Ok(job) => job,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                held.drain(..).rev().for_each(|answer| answer());
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
            held.drain(..).rev().for_each(|answer| answer());
        }
    }
    held.drain(..).for_each(|answer| answer());
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
    if every(state.mischief.fail_read_every, state.answered_reads) {
        into.fill(0xEE);
        return Err(fail(libc::EIO));
    }
    let from = state.extents.get(&extent).and_then(|bytes| bytes.get(at..at + into.len()));
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
        let mut state = self.state.lock();
        let bytes = granules_up(bytes);
        let quota = state.mischief.quota_bytes;
        if quota > 0 && state.counters.used_bytes + bytes > quota {
            return Err(Errno(libc::ENOSPC));
        }
        state.next += 1;
        let place = state.next;
        state.extents.insert(place, vec![0xDD; bytes as usize]);
        state.counters.used_bytes += bytes;
        state.counters.space_bytes = state.counters.space_bytes.max(state.counters.used_bytes);
        Ok(Extent::new(place, 0, bytes))
    }

    fn write(&self, extent: &Extent, from: FrameSlice, _class: Class, done: WriteDone) {
        self.state.lock().outstanding.write_bytes += from.len() as u64;
        let _ = self.jobs.send(Job::Write { extent: extent.place(), from, done });
    }

    fn read(&self, extent: &Extent, at: u64, into: FrameSliceMut, _class: Class, done: ReadDone) {
        self.state.lock().outstanding.read_bytes += into.len() as u64;
        let _ = self.jobs.send(Job::Read { extent: extent.place(), at: at as usize, into, done });
    }

    fn free(&self, extent: Extent) {
        let mut state = self.state.lock();
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
        self.state.lock().outstanding
    }

    fn counters(&self) -> PathCounters {
        self.state.lock().counters
    }

    fn close(&self, _grace: Duration) -> Result<(), CloseError> {
        self.state.lock().closed = true;
        Ok(())
    }
}
