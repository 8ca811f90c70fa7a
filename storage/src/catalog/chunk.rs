//! A chunk: its residency, the frame and the extents that hold its copies, and who waits for it.
//! What only a chunk in memory needs is kept apart, so that one on a path alone is small.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::{FillGuard, FrameMut, FrameRef};
use crate::codec::Form;
use crate::error::Result;
use crate::residency::{Left, Mode, Residency};
use crate::sync::{AtomicU64, Mutex};

use super::{ChunkName, ChunkRef, DiskCopy};

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
    /// What leases share a hold on while the frame is in memory, instead of each having one of its own
    /// on the object, where those of all chunks would meet. It goes with the frame.
    keeper: Option<Arc<ChunkRef>>,
    awaited: bool,
    /// The checksums of the frame's bytes, if they were taken when these were put there.
    sums: Option<Form>,
    waiting: Option<Box<Waiting>>,
    /// How many of its leases end or are handed out by themselves, when a copy is complete: whoever
    /// needs memory waits for that and does not fail.
    passing: u32,
}

/// What a chunk has until its frame is there and nobody waits, or while a path hangs.
#[derive(Debug, Default)]
struct Waiting {
    waiters: VecDeque<Waiter>,
    framed_at: Option<Instant>,
    /// The directory of the path that hangs while it reads the frame.
    pinned_by: Option<Box<Path>>,
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
    /// Whether all bytes will be overwritten, so that none need be loaded.
    pub(crate) overwrites: bool,
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
    /// And what the lease leaves behind, as far as is known.
    Write(FrameMut, Left),
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

    /// Notes what leases share while the frame is in memory. Whoever does so must have the frame taken
    /// out in the end: until then the chunk keeps its object.
    pub(crate) fn set_keeper(&mut self, keeper: &Arc<ChunkRef>) {
        if let Some(presence) = &mut self.presence
            && !matches!(presence.frame, FrameSlot::Empty)
        {
            presence.keeper = Some(Arc::clone(keeper));
        }
    }

    /// Returns a hold on the chunk, which is called `name`.
    pub(crate) fn keeper(&self, name: ChunkName<'_>) -> Arc<ChunkRef> {
        let kept = self.presence.as_ref().and_then(|presence| presence.keeper.as_ref());
        kept.map_or_else(|| Arc::new(name.keep()), Arc::clone)
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
        self.waiting_mut().framed_at = Some(now);
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

    /// Splits the time since the first who waits began to into waiting for memory and waiting for the
    /// rest.
    pub(crate) fn waits(&self) -> Waits {
        let Some(waiting) = self.waiting() else { return Waits::default() };
        let Some(since) = waiting.waiters.front().map(|waiter| waiter.since) else {
            return Waits::default();
        };
        let all = since.elapsed();
        let memory = match waiting.framed_at {
            Some(at) => at.saturating_duration_since(since).min(all),
            None if matches!(self.frame(), FrameSlot::Empty) => all,
            None => Duration::ZERO,
        };
        Waits { memory, arrival: all - memory, hit: false }
    }

    /// A write of the frame to the path in that directory hangs.
    pub(crate) fn pin(&mut self, dir: &Path) {
        self.residency.pin();
        self.waiting_mut().pinned_by = Some(dir.into());
    }

    /// Returns the directory of the path that hangs while it reads the frame.
    pub(crate) fn pinned_by(&self) -> Option<&Path> {
        self.waiting()?.pinned_by.as_deref()
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
        self.waiting().is_none_or(|waiting| waiting.waiters.is_empty())
    }

    /// Returns what the first who waits wants.
    pub(crate) fn next_waiter(&self) -> Option<Mode> {
        self.waiting()?.waiters.front().map(|waiter| waiter.mode)
    }

    /// Returns whether the first who waits will overwrite all bytes.
    pub(crate) fn is_overwritten_next(&self) -> bool {
        let first = self.waiting().and_then(|waiting| waiting.waiters.front());
        first.is_some_and(|waiter| waiter.overwrites)
    }

    pub(crate) fn add_waiter(&mut self, waiter: Waiter) {
        self.waiting_mut().waiters.push_back(waiter);
    }

    pub(crate) fn pop_waiter(&mut self) -> Option<Waiter> {
        let waiter = self.presence.as_mut()?.waiting.as_mut()?.waiters.pop_front();
        self.shrink();
        waiter
    }

    /// Takes out those who wait and are not `kept`, in order.
    pub(crate) fn take_waiters(&mut self, kept: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let waiting = self.presence.as_mut().and_then(|presence| presence.waiting.as_mut());
        let Some(waiting) = waiting else { return Vec::new() };
        let waiters = std::mem::take(&mut waiting.waiters);
        let (still, out): (VecDeque<_>, VecDeque<_>) = waiters.into_iter().partition(kept);
        waiting.waiters = still;
        self.shrink();
        out.into()
    }

    fn presence(&mut self) -> &mut Presence {
        self.presence.get_or_insert_default()
    }

    fn waiting(&self) -> Option<&Waiting> {
        self.presence.as_ref()?.waiting.as_deref()
    }

    fn waiting_mut(&mut self) -> &mut Waiting {
        self.presence().waiting.get_or_insert_default()
    }

    /// Gives up what only a chunk in memory or waited for needs.
    fn shrink(&mut self) {
        let Some(presence) = &mut self.presence else { return };
        let unwaited = presence.waiting.as_ref().is_none_or(|w| w.waiters.is_empty());
        let pinned = presence.waiting.as_ref().is_some_and(|w| w.pinned_by.is_some());
        match presence.frame {
            FrameSlot::Empty if unwaited && presence.passing == 0 => self.presence = None,
            FrameSlot::Here(_) if unwaited && !pinned => presence.waiting = None,
            _ => {}
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
        assert_eq!((size_of::<Residency>(), size_of::<Cell>()), (24, 56));
        assert_eq!(size_of::<Chunk>(), 72);
    }
}
