//! The script of what goes wrong on a path: the n-th operation of equal seeds meets the same fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tensortier_storage::error::Errno;
use tensortier_storage::io::decorate::Fault;
use tensortier_storage::io::{KernelHook, Operation};

use super::config::Wrongs;
use super::numbers::Numbers;

// Numbers of the operating system, Linux on every architecture we build for.
const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
pub(super) const ETIMEDOUT: i32 = 110;

/// What a read may fail with.
pub(super) const READ_ERRORS: [i32; 2] = [EIO, ETIMEDOUT];

/// How many operations a burst without room lasts.
const BURST: u64 = 32;

/// What goes wrong on one path.
#[derive(Debug)]
pub(super) struct Script {
    seed: u64,
    wrongs: Wrongs,
    armed: AtomicBool,
    stalled: AtomicBool,
    calls: AtomicU64,
    met: AtomicU64,
}

impl Script {
    pub(super) fn new(seed: u64, wrongs: Wrongs) -> Self {
        let (calls, met) = (AtomicU64::new(0), AtomicU64::new(0));
        let (armed, stalled) = (AtomicBool::new(false), AtomicBool::new(false));
        Script { seed, wrongs, armed, stalled, calls, met }
    }

    /// Begins or ends what goes wrong.
    pub(super) fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::SeqCst);
    }

    /// From now on operations hang, or no longer.
    pub(super) fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::SeqCst);
    }

    /// Returns how many faults were met so far.
    pub(super) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// Decides on the `n`-th operation of the engine.
    pub(super) fn decide(&self, n: u64, operation: &Operation) -> Fault {
        if self.stalled.load(Ordering::SeqCst) {
            self.met.fetch_add(1, Ordering::Relaxed);
            return Fault::Hang;
        }
        if !self.armed.load(Ordering::SeqCst) {
            return Fault::Pass;
        }
        let fault = self.fault(n, operation.transfer.is_write());
        if fault != Fault::Pass {
            self.met.fetch_add(1, Ordering::Relaxed);
        }
        fault
    }

    fn fault(&self, n: u64, write: bool) -> Fault {
        let mut numbers = Numbers::part(self.seed, n);
        let wrongs = &self.wrongs;
        let mut happens = |per_mille: u64| numbers.below(1000) < per_mille;
        let fails = happens(if write { wrongs.writes_fail } else { wrongs.reads_fail });
        let flips = happens(wrongs.bits_flip) && !write;
        let (delays, holds) = (happens(wrongs.delays), happens(wrongs.holds));
        if write && (n / BURST) % wrongs.full_every.max(1) + 1 == wrongs.full_every {
            return Fault::Fail(Errno(ENOSPC));
        }
        match () {
            () if fails && write => Fault::Fail(Errno(numbers.pick(&[EIO, EIO, EROFS, ENOSPC]))),
            () if fails => Fault::Fail(Errno(numbers.pick(&READ_ERRORS))),
            () if flips => Fault::FlipBit(numbers.next() >> 8),
            () if delays => Fault::Delay(Duration::from_micros(numbers.below(3000))),
            () if holds => Fault::Hold(2 + numbers.below(4) as usize),
            () => Fault::Pass,
        }
    }

    /// Returns what the kernel answers to calls instead of doing all that was asked: less, or that it
    /// was interrupted.
    pub(super) fn hook(self: &Arc<Self>) -> KernelHook {
        let script = Arc::clone(self);
        Arc::new(move |bytes| {
            if !script.armed.load(Ordering::SeqCst) {
                return Ok(bytes);
            }
            let n = script.calls.fetch_add(1, Ordering::Relaxed);
            let mut numbers = Numbers::part(!script.seed, n);
            match numbers.below(20) {
                0 => Err(Errno(EINTR)),
                1 => Err(Errno(EAGAIN)),
                2..6 => Ok((1 + numbers.below(bytes)).next_multiple_of(4096).min(bytes)),
                _ => Ok(bytes),
            }
        })
    }
}
