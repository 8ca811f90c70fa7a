//! Finding a frame: a free run, a longer one by moving chunks that lie still, or one that a victim
//! leaves.

use std::ops::Range;
use std::sync::Arc;

use crate::arena::{FrameMut, granules_up};
use crate::catalog::{Chunk, FrameSlot};
use crate::error::Error;
use crate::evict::Candidate;
use crate::id::Class;
use crate::residency::{Evict, Leaving};
use crate::sync::Ordering;
use crate::units::Bytes;

use super::run::Mover;

/// How many victims one look over the resident chunks yields; a look costs as much as all of them.
const VICTIMS_PER_LOOK: usize = 64;

/// The answer to a want of memory.
pub(super) enum Frame {
    /// Here it is.
    Found(FrameMut),
    /// Something under way will free memory.
    Coming,
    /// Nothing will.
    Never(Error),
}

/// A chunk that could leave, as it was when it was looked at.
pub(super) struct Victim {
    rank: u64,
    last_use: u64,
    chunk: Arc<Chunk>,
}

impl Mover {
    /// Finds a frame of `bytes`, making room if the class of the want may.
    pub(super) fn find_frame(&mut self, bytes: u64, class: Class) -> Frame {
        let need = granules_up(bytes.max(1));
        loop {
            match self.handle.shared.arena.try_alloc(bytes) {
                Ok(Some(frame)) => return Frame::Found(frame),
                Ok(None) => {}
                Err(error) => return Frame::Never(error),
            }
            let usage = self.handle.shared.arena.usage();
            if need > usage.budget {
                let (budget, needed) = (Bytes(usage.budget), Bytes(need));
                return Frame::Never(Error::BudgetTooSmall { budget, needed });
            }
            let free = usage.budget - usage.in_use;
            if free >= need && self.lengthen_run(need) {
                continue;
            }
            if self.coming_bytes > 0 && free + self.coming_bytes >= need {
                return Frame::Coming;
            }
            // Enough is free and only what is on its way in or out lies between: it will lie still.
            if free >= need && self.in_motion() {
                return Frame::Coming;
            }
            if !self.evict_one(class) {
                break;
            }
        }
        self.nothing_to_evict(need, class)
    }

    fn nothing_to_evict(&self, need: u64, class: Class) -> Frame {
        if self.in_motion() || self.coming_bytes > 0 || self.lent > 0 || class != Class::Demand {
            return Frame::Coming;
        }
        if let Some(error) = self.stuck_for() {
            return Frame::Never(error);
        }
        let usage = self.handle.shared.arena.usage();
        let held = self.resident.values().filter(|chunk| chunk.cell.lock().residency.leased());
        let holders =
            held.take(8).map(|chunk| format!("{} ({})", chunk.key_text(), Bytes(chunk.bytes)));
        Frame::Never(Error::BudgetExhausted {
            budget: Bytes(usage.budget),
            needed: Bytes(need),
            free: Bytes(usage.budget - usage.in_use),
            largest_run: Bytes(usage.largest_run),
            holders: holders.collect(),
        })
    }

    /// Returns whether chunks are on their way in or out.
    fn in_motion(&self) -> bool {
        self.filling + self.sealing + self.writing > 0
            || !self.sealed.is_empty()
            || !self.to_write.is_empty()
    }

    /// Returns why no path takes what could leave memory, if that is what keeps it there.
    fn stuck_for(&self) -> Option<Error> {
        let error = self.no_space.as_ref().filter(|_| self.paths_refuse())?;
        let stuck = self.resident.values().any(|chunk| {
            let residency = &chunk.cell.lock().residency;
            residency.may_leave() && residency.dirty()
        });
        stuck.then(|| error.clone())
    }

    /// Makes the best victim leave, or begin to. Returns whether there was one.
    fn evict_one(&mut self, class: Class) -> bool {
        let mut looked = false;
        // What one class spares would be lost to the other.
        if self.victims_for != class {
            self.victims.clear();
            self.victims_for = class;
        }
        loop {
            let Some(victim) = self.victims.pop() else {
                if looked {
                    return false;
                }
                looked = true;
                self.look_for_victims(class);
                continue;
            };
            // It was leased since it was looked at: it is no longer the best.
            if victim.chunk.last_use.load(Ordering::Relaxed) != victim.last_use
                || self.rank_at(&victim.chunk, class, victim.last_use).is_none()
            {
                continue;
            }
            match self.evict(&victim.chunk, Leaving::IfUnused) {
                Evict::Dropped | Evict::WriteBack => return true,
                Evict::UnderWay | Evict::Held | Evict::Nothing => {}
            }
        }
    }

    fn look_for_victims(&mut self, class: Class) {
        let now = self.handle.shared.leases();
        let mut found: Vec<Victim> = Vec::new();
        for chunk in self.resident.values() {
            if let Some(rank) = self.rank_at(chunk, class, now) {
                let last_use = chunk.last_use.load(Ordering::Relaxed);
                found.push(Victim { rank, last_use, chunk: Arc::clone(chunk) });
            }
        }
        if found.len() > VICTIMS_PER_LOOK {
            let at = found.len() - VICTIMS_PER_LOOK;
            found.select_nth_unstable_by_key(at, |victim| (victim.rank, victim.chunk.id));
            found.drain(..at);
        }
        found.sort_unstable_by_key(|victim| (victim.rank, victim.chunk.id));
        self.victims = found;
    }

    /// Returns the rank of a chunk that may leave for a want of this class, or `None`.
    fn rank_at(&self, chunk: &Chunk, class: Class, now: u64) -> Option<u64> {
        let cell = chunk.cell.lock();
        let (rest, dirty) = (cell.residency.may_leave(), cell.residency.dirty());
        drop(cell);
        let next_use = self.declared.as_ref().and_then(|declared| declared.next_use(chunk.id));
        // What a prefetch brings must not cost what a schedule keeps, nor what another prefetch
        // brought and nobody used yet.
        let spared = class == Class::Prefetch
            && (next_use.is_some() || chunk.awaited.load(Ordering::Relaxed));
        let stuck = dirty && self.paths_refuse();
        if !rest || spared || stuck {
            return None;
        }
        let age = now.saturating_sub(chunk.last_use.load(Ordering::Relaxed));
        let candidate = Candidate::new(next_use, age, chunk.bytes, dirty);
        Some(self.policy.rank(&candidate))
    }

    /// Evicts a chunk: drops its frame, or queues its write-back.
    pub(super) fn evict(&mut self, chunk: &Arc<Chunk>, leaving: Leaving) -> Evict {
        let mut cell = chunk.cell.lock();
        let answer = cell.residency.evict(leaving);
        let slot = if answer == Evict::Dropped {
            std::mem::take(&mut cell.frame)
        } else {
            FrameSlot::Empty
        };
        let (woken, load) = cell.grant(chunk);
        drop(cell);
        drop(slot);
        match answer {
            Evict::Dropped => self.forget(chunk),
            Evict::WriteBack => self.queue_write_back(chunk),
            Evict::UnderWay => self.count_coming(chunk),
            Evict::Held | Evict::Nothing => {}
        }
        self.handle.wake(chunk, woken, load);
        answer
    }

    /// Makes a free run of `need` bytes by moving chunks that lie still: out of the cheapest window
    /// where there is room for them elsewhere, or else closer together. Returns whether there is one
    /// now; only what does not lie still can refuse it. Cost: a copy of what is moved.
    fn lengthen_run(&mut self, need: u64) -> bool {
        let frames = self.frames_at_rest();
        self.clear_window(&frames, need) || self.push_together(&frames, need)
    }

    /// Moves what lies in the cheapest window out of it, all or nothing.
    fn clear_window(&self, frames: &[(Range<u64>, Arc<Chunk>)], need: u64) -> bool {
        let Some((window, moved)) = self.cheapest_window(frames, need) else { return false };
        let arena = &self.handle.shared.arena;
        let chunks = || frames[moved.start..moved.end].iter().map(|(_, chunk)| chunk);
        let room: Option<Vec<FrameMut>> = chunks()
            .map(|chunk| arena.try_alloc_avoiding(chunk.bytes, window.clone()).ok().flatten())
            .collect();
        let Some(room) = room else { return false };
        chunks().zip(room).all(|(chunk, to)| self.move_to(chunk, to))
    }

    /// Slides neighbours down until the free runs between them are one of `need` bytes.
    fn push_together(&self, frames: &[(Range<u64>, Arc<Chunk>)], need: u64) -> bool {
        let runs = self.handle.shared.arena.free_runs();
        let Some(moved) = neighbours(frames, &runs, need) else { return false };
        frames[moved].iter().all(|(_, chunk)| self.slide(chunk))
    }

    /// Slides a chunk's frame down; returns whether it lay still.
    fn slide(&self, chunk: &Chunk) -> bool {
        let mut cell = chunk.cell.lock();
        if !cell.residency.at_rest() {
            return false;
        }
        let FrameSlot::Here(frame) = std::mem::take(&mut cell.frame) else { return false };
        match frame.try_exclusive() {
            Ok(mut frame) => {
                frame.slide_down();
                cell.frame = FrameSlot::Here(frame.share());
            }
            Err(frame) => {
                cell.frame = FrameSlot::Here(frame);
                return false;
            }
        }
        drop(cell);
        self.count_move(chunk);
        true
    }

    fn count_move(&self, chunk: &Chunk) {
        self.handle.shared.counters.moves.add(1);
        self.handle.shared.counters.moved_bytes.add(chunk.bytes);
    }

    /// Returns the frames that may be moved, in order of address.
    fn frames_at_rest(&self) -> Vec<(Range<u64>, Arc<Chunk>)> {
        let at_rest = self.resident.values().filter_map(|chunk| {
            let cell = chunk.cell.lock();
            let frame = cell.residency.at_rest().then(|| cell.frame_to_read()).flatten()?;
            Some((frame.arena_range(), Arc::clone(chunk)))
        });
        let mut frames: Vec<_> = at_rest.collect();
        frames.sort_unstable_by_key(|(range, _)| range.start);
        frames
    }

    /// Returns the window of `need` bytes that holds nothing but free memory and the fewest bytes
    /// of movable frames, and which frames those are.
    fn cheapest_window(
        &self,
        frames: &[(Range<u64>, Arc<Chunk>)],
        need: u64,
    ) -> Option<(Range<u64>, Range<usize>)> {
        let arena = &self.handle.shared.arena;
        let budget = arena.usage().budget;
        // A cheapest window begins where a frame ends or at the start of memory, or ends where a
        // frame begins or at the end of memory.
        let after = frames.iter().map(|(range, _)| range.end);
        let before = frames.iter().map(|(range, _)| range.start).chain([budget]);
        let starts = after.chain([0]).chain(before.filter_map(|end| end.checked_sub(need)));
        let windows = starts.filter(|start| start + need <= budget).filter_map(|start| {
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
    fn move_to(&self, chunk: &Chunk, mut to: FrameMut) -> bool {
        let mut cell = chunk.cell.lock();
        if !cell.residency.at_rest() {
            return false;
        }
        let Some(from) = cell.frame_to_read() else { return false };
        to.copy_from_slice(&from);
        cell.frame = FrameSlot::Here(to.share());
        drop(cell);
        drop(from);
        self.count_move(chunk);
        true
    }

    /// A chunk has no frame any more.
    pub(super) fn forget(&mut self, chunk: &Chunk) {
        if self.resident.remove(&chunk.id).is_some() {
            self.handle.shared.counters.evictions.add(1);
        }
        self.uncount_coming(chunk);
    }
}

/// Returns which frames (in order of address) to push together so that the free runs between and
/// around them become one of `need` bytes: those of the fewest bytes among unbroken rows of frames
/// and free runs that start with a free run.
fn neighbours(
    frames: &[(Range<u64>, Arc<Chunk>)],
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
