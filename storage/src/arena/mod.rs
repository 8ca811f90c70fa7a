//! The host memory of a store: one region of a strict budget, from which chunks take contiguous frames
//! of 4 KiB granules. It is kept until close, but for what metadata needs (`shrink.rs`).

mod allocator;
mod frame;
mod lock;
mod piece;
mod region;
mod shrink;

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::units::Bytes;

pub(crate) use allocator::RangeAllocator;
pub use frame::{FillGuard, FrameMut, FrameRef, FrameSlice, FrameSliceMut};
pub use lock::Unlocked;
pub(crate) use piece::Piece;
use region::Region;

/// The unit of host memory and of path space: frames and extents are whole granules.
pub const GRANULE: u64 = 4096;

/// Rounds `bytes` up to whole granules.
pub const fn granules_up(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE) * GRANULE
}

/// The host arena of one store. Clones share it; frames keep it alive.
#[derive(Clone)]
pub struct Arena(Arc<Shared>);

struct Shared {
    region: Region,
    state: Mutex<State>,
    /// Set while somebody waits for memory; then `freed` is called after each frame comes back. It is
    /// also called when metadata needs committed memory.
    starving: AtomicBool,
    freed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug)]
struct State {
    ranges: RangeAllocator,
    /// Committed bytes, always a prefix of the region.
    committed: u64,
    /// Committed bytes that the kernel agreed to lock.
    locked: u64,
    /// Why the first of the others are not.
    unlocked: Option<Unlocked>,
    /// Bytes of metadata outside of the region that its budget answers for.
    metadata: u64,
    /// Memory below this was handed out to be page-locked for a device: it stays committed until close.
    kept: u64,
}

/// How the arena stands, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaUse {
    /// The strict budget.
    pub budget: u64,
    /// What is committed: what was needed so far, but for what metadata needs since.
    pub committed: u64,
    /// Of that, what is locked in memory.
    pub locked: u64,
    /// What frames hold.
    pub in_use: u64,
    /// The longest run that one frame could take.
    pub largest_run: u64,
    /// What the store's metadata takes outside of frames, as counted, in bytes.
    pub metadata: u64,
    /// Of the budget, what frames cannot have because metadata takes it.
    pub charged: u64,
}

impl ArenaUse {
    /// Returns how much frames could have in all.
    pub fn for_frames(&self) -> u64 {
        self.budget - self.charged.min(self.budget)
    }

    /// Returns how much frames could still take, whatever its pieces.
    pub fn free(&self) -> u64 {
        self.for_frames().saturating_sub(self.in_use)
    }
}

impl Arena {
    /// Reserves address space for `budget_bytes` (whole granules); memory is committed on need.
    ///
    /// # Errors
    /// [`Error::Config`] below one granule, [`Error::System`] when the system has no address space.
    pub fn new(budget_bytes: u64) -> Result<Self> {
        let budget = budget_bytes / GRANULE * GRANULE;
        if budget == 0 {
            return Err(Error::Config {
                what: format!("host budget of {}", Bytes(budget_bytes)),
                why: String::from("at least 4 KiB are needed"),
            });
        }
        let region = Region::reserve(budget)?;
        let ranges = RangeAllocator::new(budget);
        let state = State { ranges, committed: 0, locked: 0, unlocked: None, metadata: 0, kept: 0 };
        Ok(Arena(Arc::new(Shared {
            region,
            state: Mutex::new(state),
            starving: AtomicBool::new(false),
            freed: OnceLock::new(),
        })))
    }

    /// Sets what is called after a frame came back while [`Arena::set_starving`] is on, and when memory
    /// becomes owed to metadata. Only the first call counts.
    pub(crate) fn on_freed(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.freed.set(Box::new(call));
    }

    /// Says whether somebody waits for memory.
    pub(crate) fn set_starving(&self, starving: bool) {
        self.0.starving.store(starving, Ordering::SeqCst);
    }

    /// Returns a frame of `bytes` (its bytes are whatever was there before, its padding zero), or
    /// `None` when no free run is long enough. Commits memory on first use; never waits.
    ///
    /// # Errors
    /// [`Error::System`] when the system refuses memory that the budget allows.
    pub fn try_alloc(&self, bytes: u64) -> Result<Option<FrameMut>> {
        self.try_alloc_avoiding(bytes, 0..0)
    }

    /// As [`Arena::try_alloc`], but nothing inside the byte range `avoid` is handed out.
    pub(crate) fn try_alloc_avoiding(
        &self,
        bytes: u64,
        avoid: std::ops::Range<u64>,
    ) -> Result<Option<FrameMut>> {
        let padded = granules_up(bytes.max(1));
        let mut state = self.0.state.lock();
        if state.ranges.free() < padded + state.charged() {
            return Ok(None);
        }
        let limit = state.limit(self.0.region.bytes());
        let Some(start) = state.ranges.take_where(padded, limit, &avoid) else {
            return Ok(None);
        };
        if let Err(error) = self.commit_to(&mut state, start + padded, limit) {
            state.ranges.give(start, padded);
            return Err(error);
        }
        drop(state);
        Ok(Some(FrameMut::new(self.clone(), start, bytes)))
    }

    /// Commits pieces until the first `end` bytes are usable, none beyond `limit`.
    fn commit_to(&self, state: &mut State, end: u64, limit: u64) -> Result<()> {
        while state.committed < end {
            let piece = Region::PIECE_BYTES.min(limit - state.committed);
            let unlocked = self.0.region.commit(state.committed, piece)?;
            state.committed += piece;
            state.locked += unlocked.map_or(piece, |unlocked| unlocked.locked);
            if let Some(unlocked) = unlocked.filter(|_| state.unlocked.is_none()) {
                unlocked.warn_once();
                state.unlocked = Some(unlocked);
            }
        }
        Ok(())
    }

    /// Gives a frame's range back; only a dropped frame calls it.
    fn give(&self, start: u64, padded: u64) {
        self.0.state.lock().ranges.give(start, padded);
        if self.0.starving.load(Ordering::SeqCst)
            && let Some(call) = self.0.freed.get()
        {
            call();
        }
    }

    fn region(&self) -> &Region {
        &self.0.region
    }

    /// Takes the whole free run that ends at `end` and returns its start; only a frame that slides
    /// down calls it.
    fn take_before(&self, end: u64) -> Option<u64> {
        self.0.state.lock().ranges.take_before(end)
    }

    /// Returns the free runs where frames may lie, in order.
    pub(crate) fn free_runs(&self) -> Vec<std::ops::Range<u64>> {
        let state = self.0.state.lock();
        let limit = state.limit(self.0.region.bytes());
        let below = state.ranges.runs().into_iter().map(|run| run.start..run.end.min(limit));
        below.filter(|run| !run.is_empty()).collect()
    }

    /// Returns how much of the byte range `window` no frame holds.
    pub(crate) fn free_in(&self, window: &std::ops::Range<u64>) -> u64 {
        self.0.state.lock().ranges.free_in(window)
    }

    /// Returns the pieces that were committed behind the first `start` bytes, which end with a piece.
    /// From now on all that is committed stays so.
    pub(crate) fn pieces_from(&self, start: u64) -> Vec<Piece> {
        let mut state = self.0.state.lock();
        let committed = state.committed;
        state.kept = committed;
        drop(state);
        let starts = (start..committed).step_by(Region::PIECE_BYTES as usize);
        let bytes = |at| Region::PIECE_BYTES.min(committed - at);
        starts.map(|at| Piece::new(self.clone(), at, bytes(at))).collect()
    }

    /// Returns why committed memory is not locked, the first time that it could not be; `None` as
    /// long as all of it is.
    pub fn unlocked(&self) -> Option<Unlocked> {
        self.0.state.lock().unlocked
    }

    /// Returns how the arena stands now.
    pub fn usage(&self) -> ArenaUse {
        let state = self.0.state.lock();
        let budget = self.0.region.bytes();
        let mut usage = ArenaUse {
            budget,
            committed: state.committed,
            locked: state.locked,
            in_use: budget - state.ranges.free(),
            largest_run: state.ranges.largest_run(state.limit(budget)),
            metadata: state.metadata,
            charged: state.charged(),
        };
        usage.largest_run = usage.largest_run.min(usage.free());
        usage
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arena").field(&self.usage()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_take_and_return_the_budget() {
        let arena = Arena::new(10 * GRANULE + 100).unwrap();
        assert_eq!(arena.usage().budget, 10 * GRANULE);
        let frames: Vec<_> =
            (0..5).map(|_| arena.try_alloc(GRANULE + 1).unwrap().unwrap()).collect();
        assert_eq!(arena.usage().in_use, 10 * GRANULE);
        assert!(arena.try_alloc(1).unwrap().is_none());
        drop(frames);
        assert_eq!(arena.usage().in_use, 0);
        assert_eq!(arena.try_alloc(10 * GRANULE).unwrap().unwrap().len(), 10 * 4096);
        assert!(Arena::new(4095).is_err());
    }

    #[test]
    fn a_starving_arena_tells_of_freed_frames() {
        let arena = Arena::new(GRANULE).unwrap();
        let told = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&told);
        arena.on_freed(move || seen.store(true, Ordering::SeqCst));
        drop(arena.try_alloc(1).unwrap());
        assert!(!told.load(Ordering::SeqCst));
        arena.set_starving(true);
        drop(arena.try_alloc(1).unwrap());
        assert!(told.load(Ordering::SeqCst));
    }

    #[test]
    fn memory_is_committed_in_pieces_and_frames_may_cross_them() {
        let arena = Arena::new(Region::PIECE_BYTES * 2).unwrap();
        assert_eq!(arena.usage().committed, 0);
        let _first = arena.try_alloc(Region::PIECE_BYTES - GRANULE).unwrap().unwrap();
        assert_eq!(arena.usage().committed, Region::PIECE_BYTES);
        let mut across = arena.try_alloc(2 * GRANULE).unwrap().unwrap();
        across.fill(7);
        assert_eq!(arena.usage().committed, 2 * Region::PIECE_BYTES);
        assert!(across.iter().all(|byte| *byte == 7));
    }
}
