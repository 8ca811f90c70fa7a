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

use super::load::Want;
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
    /// Finds a frame for a want, making room if its class may.
    pub(super) fn find_frame(&mut self, want: &Want, class: Class) -> Frame {
        let bytes = want.bytes();
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
            if !self.evict_one(class) {
                break;
            }
        }
        self.nothing_to_evict(need, class)
    }

    fn nothing_to_evict(&self, need: u64, class: Class) -> Frame {
        let moving = self.filling > 0 || self.coming_bytes > 0 || self.lent > 0 || self.writing > 0;
        if moving || class != Class::Demand {
            return Frame::Coming;
        }
        if let Some(error) = &self.no_space {
            return Frame::Never(error.clone());
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

    /// Makes the best victim leave, or begin to. Returns whether there was one.
    fn evict_one(&mut self, class: Class) -> bool {
        let mut looked = false;
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
        let stuck = dirty && !self.any_path_usable();
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

    /// Makes a free run of `need` bytes by moving chunks that lie still out of the cheapest window.
    /// Returns whether something was moved. Cost: a copy of what lies in the window.
    fn lengthen_run(&mut self, need: u64) -> bool {
        let frames = self.frames_at_rest();
        let Some((window, moved)) = self.cheapest_window(&frames, need) else { return false };
        for (_, chunk) in &frames[moved] {
            if !self.move_out(chunk, &window) {
                return false;
            }
        }
        true
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

    /// Copies a chunk's frame out of `window`; returns whether there was room and it lay still.
    fn move_out(&mut self, chunk: &Arc<Chunk>, window: &Range<u64>) -> bool {
        let shared = &self.handle.shared;
        let Ok(Some(mut to)) = shared.arena.try_alloc_avoiding(chunk.bytes, window.clone()) else {
            return false;
        };
        let mut cell = chunk.cell.lock();
        if !cell.residency.at_rest() {
            return false;
        }
        let Some(from) = cell.frame_to_read() else { return false };
        to.copy_from_slice(&from);
        cell.frame = FrameSlot::Here(to.share());
        drop(cell);
        drop(from);
        shared.counters.moves.add(1);
        shared.counters.moved_bytes.add(chunk.bytes);
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
