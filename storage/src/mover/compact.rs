//! Making a longer free run out of shorter ones by moving chunks that lie still.

use std::ops::Range;

use crate::arena::FrameMut;
use crate::catalog::{ChunkRef, FrameSlot};

use super::state::Mover;

impl Mover {
    /// Makes a free run of `need` bytes by moving chunks that lie still: out of the cheapest window
    /// where there is room for them elsewhere, or else closer together. Returns whether there is one
    /// now; only what does not lie still can refuse it. Cost: a copy of what is moved.
    pub(super) fn lengthen_run(&mut self, need: u64) -> bool {
        let frames = self.frames_at_rest(0);
        self.clear_window(&frames, need) || self.push_together(&frames, need)
    }

    /// Moves what lies in the cheapest window out of it, all or nothing.
    fn clear_window(&self, frames: &[(Range<u64>, ChunkRef)], need: u64) -> bool {
        let Some((window, moved)) = self.cheapest_window(frames, need) else { return false };
        let arena = &self.handle.shared.arena;
        let chunks = || frames[moved.start..moved.end].iter().map(|(_, chunk)| chunk);
        let room: Option<Vec<FrameMut>> = chunks()
            .map(|chunk| arena.try_alloc_avoiding(chunk.bytes(), window.clone()).ok().flatten())
            .collect();
        let Some(room) = room else { return false };
        chunks().zip(room).all(|(chunk, to)| self.move_to(chunk, to))
    }

    /// Slides neighbours down until the free runs between them are one of `need` bytes.
    fn push_together(&self, frames: &[(Range<u64>, ChunkRef)], need: u64) -> bool {
        let runs = self.handle.shared.arena.free_runs();
        let Some(moved) = neighbours(frames, &runs, need) else { return false };
        frames[moved].iter().all(|(_, chunk)| self.slide(chunk))
    }

    /// Slides a chunk's frame down; returns whether it lay still.
    fn slide(&self, chunk: &ChunkRef) -> bool {
        let mut cell = chunk.cell.lock();
        if !cell.residency.at_rest() {
            return false;
        }
        let FrameSlot::Here(frame) = cell.take_frame(FrameSlot::Out) else { return false };
        match frame.try_exclusive() {
            Ok(mut frame) => {
                frame.slide_down();
                cell.set_frame(FrameSlot::Here(frame.share()));
            }
            Err(frame) => {
                cell.set_frame(FrameSlot::Here(frame));
                return false;
            }
        }
        drop(cell);
        self.count_move(chunk);
        true
    }

    fn count_move(&self, chunk: &ChunkRef) {
        self.handle.shared.counters.moves.add(1);
        self.handle.shared.counters.moved_bytes.add(chunk.bytes());
    }

    /// Returns the frames that may be moved and end behind `start`, in order of address.
    pub(super) fn frames_at_rest(&self, start: u64) -> Vec<(Range<u64>, ChunkRef)> {
        let at_rest = self.resident.values().filter_map(|chunk| {
            let cell = chunk.cell.lock();
            let frame = cell.residency.at_rest().then(|| cell.frame_to_read()).flatten()?;
            let range = frame.arena_range();
            (range.end > start).then(|| (range, ChunkRef::clone(chunk)))
        });
        let mut frames: Vec<_> = at_rest.collect();
        frames.sort_unstable_by_key(|(range, _)| range.start);
        frames
    }

    /// Returns the window of `need` bytes that holds nothing but free memory and the fewest bytes
    /// of movable frames, and which frames those are.
    fn cheapest_window(
        &self,
        frames: &[(Range<u64>, ChunkRef)],
        need: u64,
    ) -> Option<(Range<u64>, Range<usize>)> {
        let arena = &self.handle.shared.arena;
        let limit = arena.limit();
        // A cheapest window begins where a frame ends or at the start of memory, or ends where a
        // frame begins or at the end of what may be used.
        let after = frames.iter().map(|(range, _)| range.end);
        let before = frames.iter().map(|(range, _)| range.start).chain([limit]);
        let starts = after.chain([0]).chain(before.filter_map(|end| end.checked_sub(need)));
        let windows = starts.filter(|start| start + need <= limit).filter_map(|start| {
            let window = start..start + need;
            let first = frames.partition_point(|(range, _)| range.end <= window.start);
            let last = frames.partition_point(|(range, _)| range.start < window.end);
            let inside: u64 = frames[first..last]
                .iter()
                .map(|(r, _)| r.end.min(window.end) - r.start.max(window.start))
                .sum();
            let cost: u64 = frames[first..last].iter().map(|(r, _)| r.end - r.start).sum();
            (arena.free_in(&window) + inside == need).then_some((cost, window, first..last))
        });
        windows.min_by_key(|(cost, ..)| *cost).map(|(_, window, moved)| (window, moved))
    }

    /// Moves a chunk to another frame; returns whether it lay still.
    pub(super) fn move_to(&self, chunk: &ChunkRef, mut to: FrameMut) -> bool {
        let mut cell = chunk.cell.lock();
        if !cell.residency.at_rest() {
            return false;
        }
        let Some(from) = cell.frame_to_read() else { return false };
        to.copy_from_slice(&from);
        let old = cell.take_frame(FrameSlot::Here(to.share()));
        drop(cell);
        drop((from, old));
        self.count_move(chunk);
        true
    }
}

/// Returns which frames (in order of address) to push together so that the free runs between and
/// around them become one of `need` bytes: those of the fewest bytes among unbroken rows of frames
/// and free runs that start with a free run.
fn neighbours(
    frames: &[(Range<u64>, ChunkRef)],
    runs: &[Range<u64>],
    need: u64,
) -> Option<Range<usize>> {
    // Free runs and frames in order of address; a frame knows its index.
    let frames = frames.iter().enumerate().map(|(index, (range, _))| (range.clone(), Some(index)));
    let mut row: Vec<_> = runs.iter().map(|run| (run.clone(), None)).chain(frames).collect();
    row.sort_unstable_by_key(|(range, _)| range.start);
    let bytes = |at: usize| row[at].0.end - row[at].0.start;
    let mut best: Option<(u64, Range<usize>)> = None;
    let (mut first, mut free, mut cost) = (0, 0, 0);
    for last in 0..row.len() {
        if last > first && row[last - 1].0.end != row[last].0.start {
            (first, free, cost) = (last, 0, 0);
        }
        match row[last].1 {
            None => free += bytes(last),
            Some(_) => cost += bytes(last),
        }
        while first < last && (row[first].1.is_some() || free - bytes(first) >= need) {
            match row[first].1 {
                None => free -= bytes(first),
                Some(_) => cost -= bytes(first),
            }
            first += 1;
        }
        if free >= need && best.as_ref().is_none_or(|(least, _)| cost < *least) {
            let mut inside = row[first..=last].iter().filter_map(|(_, index)| *index);
            let begin = inside.next()?;
            best = Some((cost, begin..inside.next_back().unwrap_or(begin) + 1));
        }
    }
    best.map(|(_, moved)| moved)
}
