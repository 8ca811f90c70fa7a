//! A chunk: its residency, the frame and the extents that hold its copies, and who waits for it.
//! What only a chunk in memory needs is kept apart, so that one on a path alone is small.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::arena::{FillGuard, FrameMut, FrameRef};
use crate::codec::Form;
use crate::error::Result;
use crate::residency::{Mode, Residency};
use crate::sync::{AtomicU64, Mutex};

use super::DiskCopy;

/// A chunk of one object. All that changes is in the [`Cell`] behind one lock, which is never held
/// across I/O or while a ticket is answered.
#[derive(Default)]
pub(crate) struct Chunk {
    pub(crate) cell: Mutex<Cell>,
    /// When it was last leased or prefetched: a stamp of the store's clock.
    pub(crate) last_use: AtomicU64,
}

/// The changing part of a chunk.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub(crate) residency: Residency,
    pub(crate) disk: Option<DiskCopy>,
    presence: Option<Box<Presence>>,
}

/// What a chunk has while it is in memory, on its way there, or waited for.
#[derive(Debug, Default)]
struct Presence {
    frame: FrameSlot,
    waiters: VecDeque<Waiter>,
    framed_at: Option<Instant>,
    awaited: bool,
    /// The checksums of the frame's bytes, if they were taken when these were put there.
    sums: Option<Form>,
    /// The directory of the path that hangs while it reads the frame.
    pinned_by: Option<Box<Path>>,
    /// How many of its leases end or are handed out by themselves, when a copy is complete: whoever
    /// needs memory waits for that and does not fail.
    passing: u32,
}

/// Where a chunk's frame is.
#[derive(Debug, Default)]
pub(crate) enum FrameSlot {
    /// There is none, nor is one being filled.
    #[default]
    Empty,
    /// In memory; readers hold clones.
    Here(FrameRef),
    /// Being filled by a path.
    Filling(FillGuard),
    /// With the holder of a write lease, or with the mover on its way in.
    Out,
}

/// Somebody who waits for a lease.
pub(crate) struct Waiter {
    pub(crate) mode: Mode,
    /// Whether the lease is to count as passing.
    pub(crate) passing: bool,
    pub(crate) since: Instant,
    pub(crate) reply: Box<dyn Reply>,
}

/// How somebody who waits for a lease is told.
pub(crate) trait Reply: Send {
    /// Tells the outcome; called with no lock held.
    fn tell(self: Box<Self>, answer: Result<(Granted, Waits)>);
    /// Returns whether nobody waits any more.
    fn is_abandoned(&self) -> bool;
}

/// What a lease gives access to.
#[derive(Debug)]
pub(crate) enum Granted {
    Read(FrameRef),
    Write(FrameMut),
}

/// How long a lease was waited for, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Waiting for memory to become free (usually for a write-back).
    pub memory: Duration,
    /// Waiting for the chunk's bytes to arrive, or for other leases to end.
    pub arrival: Duration,
    /// Whether the chunk was in memory when it was asked for.
    pub hit: bool,
}

impl Cell {
    /// What a chunk in memory takes beside its frame and its metadata on a path, in bytes: its
    /// presence, its frame's block, its places in the mover's and the arena's tables.
    pub(crate) const PRESENCE_BYTES: u64 = 256;

    /// Returns where the frame is.
    pub(crate) fn frame(&self) -> &FrameSlot {
        self.presence.as_ref().map_or(&FrameSlot::Empty, |presence| &presence.frame)
    }

    /// Puts something in the frame's place, in which no frame is.
    pub(crate) fn set_frame(&mut self, slot: FrameSlot) {
        debug_assert!(matches!(self.frame(), FrameSlot::Empty | FrameSlot::Out));
        self.presence().frame = slot;
        self.shrink();
    }

    /// Takes what is in the frame's place and leaves something else there. A frame that is to be
    /// given back is dropped by the caller once the lock is free.
    pub(crate) fn take_frame(&mut self, leave: FrameSlot) -> FrameSlot {
        let Some(presence) = &mut self.presence else { return FrameSlot::Empty };
        let slot = std::mem::replace(&mut presence.frame, leave);
        self.shrink();
        slot
    }

    /// Returns a reader's handle on the frame, if it is in memory and not written.
    pub(crate) fn frame_to_read(&self) -> Option<FrameRef> {
        match self.frame() {
            FrameSlot::Here(frame) => Some(frame.clone()),
            _ => None,
        }
    }

    /// Notes the checksums of the frame's bytes.
    pub(crate) fn set_sums(&mut self, sums: Form) {
        self.presence().sums = Some(sums);
    }

    /// Takes the checksums of the frame's bytes, if they are known.
    pub(crate) fn take_sums(&mut self) -> Option<Form> {
        self.presence.as_mut()?.sums.take()
    }

    /// Notes that a frame was found for what waits: what is waited before is waiting for memory.
    pub(crate) fn framed(&mut self, now: Instant) {
        self.presence().framed_at = Some(now);
    }

    /// Notes whether a prefetch brings it, and nobody has leased it yet.
    pub(crate) fn set_awaited(&mut self, awaited: bool) {
        if awaited || self.presence.is_some() {
            self.presence().awaited = awaited;
        }
    }

    /// Returns whether a prefetch brought it and nobody has leased it yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.presence.as_ref().is_some_and(|presence| presence.awaited)
    }

    /// Splits the time since `since` into waiting for memory and waiting for the rest.
    pub(crate) fn waits_since(&self, since: Instant) -> Waits {
        let all = since.elapsed();
        let framed_at = self.presence.as_ref().and_then(|presence| presence.framed_at);
        let memory = framed_at.map_or(all, |at| at.saturating_duration_since(since)).min(all);
        Waits { memory, arrival: all - memory, hit: false }
    }

    /// A write of the frame to the path in that directory hangs.
    pub(crate) fn pin(&mut self, dir: &Path) {
        self.residency.pin();
        self.presence().pinned_by = Some(dir.into());
    }

    /// Returns the directory of the path that hangs while it reads the frame.
    pub(crate) fn pinned_by(&self) -> Option<&Path> {
        self.presence.as_ref()?.pinned_by.as_deref()
    }

    /// Returns whether a lease ends or is handed out by itself.
    pub(crate) fn is_passing(&self) -> bool {
        self.presence.as_ref().is_some_and(|presence| presence.passing > 0)
    }

    /// Counts a lease as passing.
    pub(crate) fn pass(&mut self) {
        self.presence().passing += 1;
    }

    /// A lease that was counted as passing ended or was handed out.
    pub(crate) fn passed(&mut self) {
        self.presence().passing -= 1;
        self.shrink();
    }

    /// Returns whether nobody waits.
    pub(crate) fn is_unwaited(&self) -> bool {
        self.presence.as_ref().is_none_or(|presence| presence.waiters.is_empty())
    }

    /// Returns what the first who waits wants.
    pub(crate) fn next_waiter(&self) -> Option<Mode> {
        self.presence.as_ref()?.waiters.front().map(|waiter| waiter.mode)
    }

    pub(crate) fn add_waiter(&mut self, waiter: Waiter) {
        self.presence().waiters.push_back(waiter);
    }

    pub(crate) fn pop_waiter(&mut self) -> Option<Waiter> {
        let waiter = self.presence.as_mut()?.waiters.pop_front();
        self.shrink();
        waiter
    }

    /// Takes out those who wait and are not `kept`, in order.
    pub(crate) fn take_waiters(&mut self, kept: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let Some(presence) = &mut self.presence else { return Vec::new() };
        let waiters = std::mem::take(&mut presence.waiters);
        let (waiting, out): (VecDeque<_>, VecDeque<_>) = waiters.into_iter().partition(kept);
        presence.waiters = waiting;
        self.shrink();
        out.into()
    }

    fn presence(&mut self) -> &mut Presence {
        self.presence.get_or_insert_default()
    }

    /// Gives up what only a chunk in memory or waited for needs.
    fn shrink(&mut self) {
        let unneeded = |p: &Presence| {
            matches!(p.frame, FrameSlot::Empty) && p.waiters.is_empty() && p.passing == 0
        };
        if self.presence.as_ref().is_some_and(|presence| unneeded(presence)) {
            self.presence = None;
        }
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiter({:?})", self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_on_a_path_is_small() {
        assert_eq!((size_of::<Residency>(), size_of::<Cell>()), (24, 72));
        assert_eq!(size_of::<Chunk>(), 88);
    }
}
