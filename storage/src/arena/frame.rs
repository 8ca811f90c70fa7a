//! Frames: the arena memory of one chunk, as exclusive or shared, whole or in parts. The types
//! carry the proof that nobody writes what another reads, also while the kernel is the other.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::{Arena, granules_up};

/// Counted ownership of one allocated range; the range returns to the arena with the last count.
struct Block {
    arena: Arena,
    start: u64,
    /// Logical length; the range itself is padded to whole granules.
    len: usize,
}

impl Block {
    fn padded_len(&self) -> usize {
        granules_up((self.len as u64).max(1)) as usize
    }

    fn address(&self, at: usize) -> *mut u8 {
        self.arena.region().address(self.start + at as u64)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.give(self.start, self.padded_len() as u64);
    }
}

/// A frame nobody else can see. Made by the arena, or from a [`FrameRef`] whose last holder this is.
pub struct FrameMut(Arc<Block>);

/// A frame that is only read; clones share it.
#[derive(Clone)]
pub struct FrameRef(Arc<Block>);

/// A part of a frame that is only read, for a write to a path.
#[derive(Clone)]
pub struct FrameSlice {
    block: Arc<Block>,
    range: Range<usize>,
}

/// A part of a frame nobody else can see, for a read from a path.
pub struct FrameSliceMut {
    block: Arc<Block>,
    range: Range<usize>,
}

/// What is left of a frame while its parts are being filled: it keeps the memory, sees no byte, and
/// becomes the frame again when all parts are gone.
pub struct FillGuard(Arc<Block>);

impl FrameMut {
    pub(super) fn new(arena: Arena, start: u64, bytes: u64) -> Self {
        let mut frame = FrameMut(Arc::new(Block { arena, start, len: bytes as usize }));
        let (len, padded) = (frame.0.len, frame.0.padded_len());
        // A path may store whole granules; no older bytes may travel along in the padding.
        frame.padded_mut()[len..padded].fill(0);
        frame
    }

    fn padded_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocator hands out disjoint committed ranges, and a `FrameMut` is the only
        // handle that can reach this one (see its constructors), so the slice is unique.
        unsafe { std::slice::from_raw_parts_mut(self.0.address(0), self.0.padded_len()) }
    }

    /// Moves the frame down to the start of the free run just below it, if there is one; what it
    /// leaves joins the run above. Cost: a copy of the frame.
    pub(crate) fn slide_down(&mut self) {
        // A `FrameMut` is the only handle, so this cannot fail.
        let Some(block) = Arc::get_mut(&mut self.0) else { return };
        let (from, padded) = (block.start, block.padded_len());
        let Some(to) = block.arena.take_before(from) else { return };
        let (source, target) = (block.address(0), block.arena.region().address(to));
        // SAFETY: `to..from` was just taken and `from..from + padded` is ours, all of it committed,
        // since what is committed is a prefix; nobody else reaches either. They may overlap.
        unsafe { std::ptr::copy(source, target, padded) };
        block.start = to;
        block.arena.give(to + padded as u64, from - to);
    }

    /// Shortens the frame to `len` bytes, if it is longer, and gives the granules behind them back.
    pub fn truncate(&mut self, len: usize) {
        // A `FrameMut` is the only handle, so this cannot fail.
        let Some(block) = Arc::get_mut(&mut self.0) else { return };
        if len >= block.len {
            return;
        }
        let old = block.padded_len();
        block.len = len;
        let new = block.padded_len();
        if new < old {
            block.arena.give(block.start + new as u64, (old - new) as u64);
        }
        self.padded_mut()[len..].fill(0);
    }

    /// Gives up exclusivity.
    pub fn share(self) -> FrameRef {
        FrameRef(self.0)
    }

    /// Gives the whole frame (padding included) away to be filled; the guard gets it back.
    pub fn fill_from_outside(self) -> (FillGuard, FrameSliceMut) {
        let range = 0..self.0.padded_len();
        let block = Arc::clone(&self.0);
        (FillGuard(self.0), FrameSliceMut { block, range })
    }
}

impl FillGuard {
    /// Returns the frame if every part of it has been dropped, or the guard again.
    ///
    /// # Errors
    /// The guard itself, while a part is still held somewhere.
    pub fn try_finish(mut self) -> std::result::Result<FrameMut, FillGuard> {
        // `get_mut` (and not the plain count) orders us after the last drop of a part.
        if Arc::get_mut(&mut self.0).is_some() { Ok(FrameMut(self.0)) } else { Err(self) }
    }
}

impl FrameRef {
    /// Returns the exclusive frame if nobody else holds it, or itself.
    ///
    /// # Errors
    /// The frame itself, while another holder or a write to a path still reads it.
    pub fn try_exclusive(mut self) -> std::result::Result<FrameMut, FrameRef> {
        if Arc::get_mut(&mut self.0).is_some() { Ok(FrameMut(self.0)) } else { Err(self) }
    }

    /// Returns the whole frame, padding included, for a write to a path.
    pub fn whole(&self) -> FrameSlice {
        FrameSlice { block: Arc::clone(&self.0), range: 0..self.0.padded_len() }
    }

    /// Returns how much memory the frame takes, in bytes, padding included.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.0.padded_len() as u64
    }

    /// Returns the frame's byte range in the arena, padding included.
    pub(crate) fn arena_range(&self) -> Range<u64> {
        self.0.start..self.0.start + self.0.padded_len() as u64
    }
}

impl FrameSlice {
    /// Splits into `..at` and `at..`; `at` is cut to the length.
    #[must_use]
    pub fn split_at(self, at: usize) -> (FrameSlice, FrameSlice) {
        let (left, right) = cut(&self.range, at);
        let block = Arc::clone(&self.block);
        (FrameSlice { block: self.block, range: left }, FrameSlice { block, range: right })
    }
}

impl FrameSliceMut {
    /// Splits into `..at` and `at..`; `at` is cut to the length.
    #[must_use]
    pub fn split_at(self, at: usize) -> (FrameSliceMut, FrameSliceMut) {
        let (left, right) = cut(&self.range, at);
        let block = Arc::clone(&self.block);
        (FrameSliceMut { block: self.block, range: left }, FrameSliceMut { block, range: right })
    }
}

fn cut(range: &Range<usize>, at: usize) -> (Range<usize>, Range<usize>) {
    let middle = range.start + at.min(range.len());
    (range.start..middle, middle..range.end)
}

impl Deref for FrameMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: committed memory of a live block that only this handle reaches.
        unsafe { std::slice::from_raw_parts(self.0.address(0), self.0.len) }
    }
}

impl DerefMut for FrameMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.0.len;
        &mut self.padded_mut()[..len]
    }
}

impl Deref for FrameRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: committed memory of a live block; while a `FrameRef` exists no exclusive handle
        // can be made, since each constructor of one needs the only count.
        unsafe { std::slice::from_raw_parts(self.0.address(0), self.0.len) }
    }
}

impl Deref for FrameSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `FrameRef`; the range lies inside the padded block.
        unsafe {
            std::slice::from_raw_parts(self.block.address(self.range.start), self.range.len())
        }
    }
}

impl Deref for FrameSliceMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range belongs to this part alone: it was split off a frame given up whole.
        unsafe {
            std::slice::from_raw_parts(self.block.address(self.range.start), self.range.len())
        }
    }
}

impl DerefMut for FrameSliceMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (at, len) = (self.block.address(self.range.start), self.range.len());
        // SAFETY: the range belongs to this part alone: it was split off a frame given up whole.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }
}

impl AsRef<[u8]> for FrameRef {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Names a handle by where its bytes lie; their values are nobody's business in a log.
fn describe(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    block: &Block,
    range: Range<usize>,
) -> fmt::Result {
    write!(f, "{name}({} + {range:?})", block.start)
}

impl fmt::Debug for FrameMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "FrameMut", &self.0, 0..self.0.len)
    }
}

impl fmt::Debug for FrameRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "FrameRef", &self.0, 0..self.0.len)
    }
}

impl fmt::Debug for FillGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "FillGuard", &self.0, 0..self.0.len)
    }
}

impl fmt::Debug for FrameSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "FrameSlice", &self.block, self.range.clone())
    }
}

impl fmt::Debug for FrameSliceMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "FrameSliceMut", &self.block, self.range.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::GRANULE;

    #[test]
    fn parts_fill_a_frame_and_reunite() {
        let arena = Arena::new(4 * GRANULE).unwrap();
        let frame = arena.try_alloc(5000).unwrap().unwrap();
        let (guard, whole) = frame.fill_from_outside();
        assert_eq!(whole.len(), 8192);
        let (mut left, mut right) = whole.split_at(4096);
        left.fill(1);
        let guard = guard.try_finish().unwrap_err();
        right.fill(2);
        drop(left);
        drop(right);
        let frame = guard.try_finish().unwrap();
        assert_eq!(frame.len(), 5000);
        assert_eq!((frame[4095], frame[4096]), (1, 2));
    }

    #[test]
    fn a_frame_slides_down_over_itself() {
        let arena = Arena::new(8 * GRANULE).unwrap();
        let first = arena.try_alloc(1).unwrap().unwrap();
        let mut second = arena.try_alloc(3 * GRANULE).unwrap().unwrap();
        let third = arena.try_alloc(1).unwrap().unwrap();
        second.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 7) as u8);
        drop(first);
        second.slide_down();
        second.slide_down();
        assert!(second.iter().enumerate().all(|(i, byte)| *byte == (i / 7) as u8));
        assert_eq!(arena.free_runs(), [3 * GRANULE..4 * GRANULE, 5 * GRANULE..8 * GRANULE]);
        drop((second, third));
        assert_eq!(arena.usage().largest_run, 8 * GRANULE);
    }

    #[test]
    fn a_truncated_frame_gives_its_end_back_and_pads_with_zeros() {
        let arena = Arena::new(8 * GRANULE).unwrap();
        let mut frame = arena.try_alloc(5 * GRANULE).unwrap().unwrap();
        frame.fill(9);
        frame.truncate(6 * GRANULE as usize);
        assert_eq!(frame.len(), 5 * GRANULE as usize);
        frame.truncate(5000);
        assert_eq!((frame.len(), arena.usage().in_use), (5000, 2 * GRANULE));
        let rest = arena.try_alloc(6 * GRANULE).unwrap().unwrap();
        let whole = frame.share().whole();
        assert!(whole[..5000].iter().all(|byte| *byte == 9));
        assert_eq!(whole[5000..], [0; 8192 - 5000]);
        drop(whole);
        assert_eq!(arena.usage().in_use, 6 * GRANULE);
        drop(rest);
        let mut frame = arena.try_alloc(2 * GRANULE).unwrap().unwrap();
        frame.truncate(0);
        drop(frame);
        assert_eq!(arena.usage().in_use, 0);
    }

    #[test]
    fn exclusive_only_when_alone() {
        let arena = Arena::new(4 * GRANULE).unwrap();
        let frame = arena.try_alloc(10).unwrap().unwrap().share();
        let slice = frame.whole();
        let frame = frame.try_exclusive().unwrap_err();
        let (part, rest) = slice.split_at(99_999);
        assert_eq!((part.len(), rest.len()), (4096, 0));
        drop((part, rest));
        assert!(frame.try_exclusive().is_ok());
        assert_eq!(arena.usage().in_use, 0);
    }

    #[test]
    fn padding_is_zero_and_frames_outlive_their_arena_handle() {
        let arena = Arena::new(GRANULE).unwrap();
        arena.try_alloc(4096).unwrap().unwrap().fill(0xAA);
        let frame = arena.try_alloc(100).unwrap().unwrap();
        drop(arena);
        let shared = frame.share();
        assert!(shared.whole()[100..].iter().all(|byte| *byte == 0));
    }
}
