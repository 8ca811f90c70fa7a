//! Finding a frame: a free run, a longer one by moving chunks that lie still, or one that a victim
//! leaves.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::arena::{FrameMut, granules_up};
use crate::catalog::{Cell, ChunkRef, FrameSlot};
use crate::error::Error;
use crate::evict::Candidate;
use crate::id::{ObjectId, Tier};
use crate::residency::{Evict, Leaving};
use crate::sync::Ordering;
use crate::units::Bytes;

use super::state::{Mover, Victim};

/// How many victims one look over the resident chunks yields at least, and as which part of them. A
/// look costs as much as all of them, so that a victim costs as much as looking at so many.
const VICTIMS_PER_LOOK: usize = 64;
const VICTIMS_PART: usize = 16;

/// How much memory is made ahead of demands: this part of the budget, at most so many bytes per path
/// and what it has in flight. Were it less than the queues of all paths take, those that are believed
/// to be fast would get all of it, and nobody would see that the others are not slow.
const AHEAD_PART: u64 = 4;
const AHEAD_BYTES: u64 = 16 << 20;

/// The first part of the rank of a chunk that was read ahead and not yet used: below all others.
const AWAITED: bool = false;

/// What memory is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Somebody waits.
    Demand,
    /// Somebody will want it; of what schedules name, only what is used further away makes room.
    Prefetch { beyond: u64 },
}

/// How many objects that hold memory an error names.
const HOLDERS_NAMED: usize = 8;

/// The answer to a want of memory.
pub(super) enum Frame {
    /// Here it is.
    Found(FrameMut),
    /// Something under way will free memory.
    Coming,
    /// Leases hold it.
    Held(Error),
    /// Nothing will.
    Never(Error),
}

impl Mover {
    /// Finds a frame of `bytes`, making room if the class of the want may.
    pub(super) fn find_frame(&mut self, bytes: u64, for_what: Need) -> Frame {
        let need = granules_up(bytes.max(1));
        loop {
            match self.handle.shared.arena.try_alloc(bytes) {
                Ok(Some(frame)) => return Frame::Found(frame),
                Ok(None) => {}
                Err(error) => return Frame::Never(error),
            }
            let usage = self.handle.shared.arena.usage();
            if need > usage.for_frames() {
                let (tier, budget, needed) = (Tier::Host, Bytes(usage.for_frames()), Bytes(need));
                return Frame::Never(Error::BudgetTooSmall { tier, budget, needed });
            }
            let free = usage.free();
            if free >= need && self.lengthen_run(need) {
                continue;
            }
            if self.coming_bytes > 0 && free + self.coming_bytes >= need {
                if for_what == Need::Demand {
                    self.evict_ahead(self.ahead_bytes());
                }
                return Frame::Coming;
            }
            // Enough is free and only what is on its way in or out lies between: it will lie still.
            if free >= need && self.in_motion() {
                return Frame::Coming;
            }
            if self.evict_one(for_what) {
                if for_what == Need::Demand {
                    self.evict_ahead(self.ahead_bytes());
                }
            } else if let Some(answer) = self.nothing_to_evict(need, for_what) {
                return answer;
            }
        }
    }

    /// Says what follows from there being no victim, or `None` if there is one now.
    fn nothing_to_evict(&self, need: u64, for_what: Need) -> Option<Frame> {
        if self.in_motion() || self.coming_bytes > 0 || self.lent > 0 || for_what != Need::Demand {
            return Some(Frame::Coming);
        }
        if let Some(error) = self.stuck_for() {
            return Some(Frame::Never(error));
        }
        let usage = self.handle.shared.arena.usage();
        for chunk in self.resident.values() {
            let cell = chunk.cell.lock();
            // A lease that passes tells of its end, and so does one that took its frame with it.
            if cell.is_passing() || matches!(cell.frame(), FrameSlot::Empty) {
                return Some(Frame::Coming);
            }
            // Its lease ended since the victims were looked for.
            if cell.residency.may_leave() {
                return None;
            }
        }
        let mut holders = self.holders();
        let hung = self.quarantine_holders();
        // Memory that a path keeps does not come back by waiting for leases.
        let held = !holders.is_empty() || hung.is_empty();
        holders.extend(hung);
        let error = Error::BudgetExhausted {
            tier: Tier::Host,
            budget: Bytes(usage.budget),
            needed: Bytes(need),
            free: Bytes(usage.free()),
            largest_run: Bytes(usage.largest_run),
            holders,
        };
        Some(if held { Frame::Held(error) } else { Frame::Never(error) })
    }

    /// Returns whose leases and views hold memory, the largest first: the object's key and how much.
    fn holders(&self) -> Vec<String> {
        let mut held: HashMap<ObjectId, (u64, u64, &ChunkRef)> = HashMap::new();
        for chunk in self.resident.values() {
            if chunk.cell.lock().residency.leased() {
                let of_object = held.entry(chunk.id().object).or_insert((0, 0, chunk));
                of_object.0 += chunk.bytes();
                of_object.1 += 1;
            }
        }
        let mut held: Vec<_> = held.into_values().collect();
        held.sort_unstable_by_key(|(bytes, _, chunk)| (Reverse(*bytes), chunk.id()));
        let name = |(bytes, chunks, chunk): &(u64, u64, &ChunkRef)| match chunks {
            1 => format!("{} ({})", chunk.key_text(), Bytes(*bytes)),
            _ => format!("{} ({} in {chunks} chunks)", chunk.key_text(), Bytes(*bytes)),
        };
        let mut names: Vec<_> = held.iter().take(HOLDERS_NAMED).map(name).collect();
        if let Some(more) = held.get(HOLDERS_NAMED..).filter(|more| !more.is_empty()) {
            let bytes = more.iter().map(|(bytes, ..)| bytes).sum();
            names.push(format!("{} others ({})", more.len(), Bytes(bytes)));
        }
        names
    }

    /// Returns whether chunks are on their way in or out.
    fn in_motion(&self) -> bool {
        self.filling + self.sealing + self.writing > 0
            || !self.sealed.is_empty()
            || !self.to_write.is_empty()
    }

    /// Returns why no path takes what could leave memory, if that is what keeps it there.
    fn stuck_for(&self) -> Option<Error> {
        if !self.paths_refuse() {
            return None;
        }
        let stuck = self.resident.values().find(|chunk| {
            let residency = &chunk.cell.lock().residency;
            residency.may_leave() && residency.dirty()
        });
        stuck.map(|chunk| self.no_space.clone().unwrap_or_else(|| self.no_space_for(chunk, &[])))
    }

    /// Returns how much may leave ahead of demands, in bytes.
    fn ahead_bytes(&self) -> u64 {
        let paths = self.handle.shared.paths.all().into_iter();
        let takes_writes = paths.filter(|path| !self.health[path.id.index()].retired);
        let queues = takes_writes.map(|path| path.store.depth_bytes() + AHEAD_BYTES).sum();
        (self.handle.shared.arena.usage().for_frames() / AHEAD_PART).min(queues)
    }

    /// Lets more leave than one demand needs, so that `rest` bytes more find room: chunks would be
    /// written one at a time otherwise, and all paths but one be idle. Of what is known not to fit the
    /// beginning is written while memory fills, and not only once it is full. What a schedule keeps is
    /// not touched, nor what was read ahead.
    pub(super) fn evict_ahead(&mut self, rest: u64) {
        if !self.schedules.is_empty() {
            return;
        }
        let ahead = self.ahead_bytes();
        loop {
            let lacking = rest.saturating_sub(self.handle.shared.arena.usage().free());
            if self.coming_bytes >= lacking.min(ahead)
                || !self.evict_one(Need::Prefetch { beyond: u64::MAX })
            {
                return;
            }
        }
    }

    /// Makes the best victim leave, or begin to. Returns whether there was one.
    fn evict_one(&mut self, for_what: Need) -> bool {
        let mut spared = Vec::new();
        let mut looked = false;
        let found = loop {
            let Some(victim) = self.victims.pop() else {
                if looked {
                    break false;
                }
                looked = true;
                self.look_for_victims(for_what);
                continue;
            };
            // It was leased since it was looked at: it is no longer the best.
            if victim.chunk.last_use.load(Ordering::Relaxed) != victim.last_use {
                continue;
            }
            // What came since may leave before what was read ahead.
            if victim.rank.0 == AWAITED && self.entered_since_look {
                self.victims.clear();
                continue;
            }
            if self.rank_at(&victim.chunk, for_what, victim.last_use).is_none() {
                // Who needs memory more may still take it.
                spared.extend((for_what != Need::Demand).then_some(victim));
                continue;
            }
            match self.evict(&victim.chunk, Leaving::IfUnused) {
                Evict::Dropped | Evict::WriteBack => break true,
                Evict::UnderWay | Evict::Held | Evict::Nothing => {}
            }
        };
        if !looked {
            self.victims.extend(spared.into_iter().rev());
        }
        found
    }

    /// Looks at all resident chunks for the best victims. Takes no memory for the others: among many
    /// small chunks that would be as much as some of their metadata.
    fn look_for_victims(&mut self, for_what: Need) {
        let now = self.handle.stamp();
        let wanted = VICTIMS_PER_LOOK.max(self.resident.len() / VICTIMS_PART);
        let mut found: Vec<Victim> = Vec::with_capacity(2 * wanted);
        // What a victim must exceed, once enough are found.
        let mut least = None;
        for chunk in self.resident.values() {
            let Some(rank) = self.rank_at(chunk, for_what, now) else { continue };
            if least.is_some_and(|least| (rank, chunk.id()) < least) {
                continue;
            }
            let last_use = chunk.last_use.load(Ordering::Relaxed);
            found.push(Victim { rank, last_use, chunk: ChunkRef::clone(chunk) });
            if found.len() == 2 * wanted {
                found.select_nth_unstable_by_key(wanted, Victim::order);
                found.drain(..wanted);
                least = found.first().map(Victim::order);
            }
        }
        found.sort_unstable_by_key(Victim::order);
        found.drain(..found.len().saturating_sub(wanted));
        self.victims = found;
        self.entered_since_look = false;
    }

    /// Returns the rank of a chunk that may leave for such a want, or `None`. What was read ahead and
    /// not yet used leaves after all else: to read it once more costs its reader a wait and the path
    /// the time of another chunk.
    pub(super) fn rank_at(
        &self,
        chunk: &ChunkRef,
        for_what: Need,
        now: u64,
    ) -> Option<(bool, u64)> {
        let cell = chunk.cell.lock();
        let (rest, dirty) = (cell.residency.may_leave(), cell.residency.dirty());
        let awaited = cell.is_awaited();
        drop(cell);
        let next_use = self.schedules.distance(chunk.id());
        // What a prefetch brings must not cost what a schedule keeps, nor what another prefetch
        // brought and nobody used yet.
        let spared = match for_what {
            Need::Demand => false,
            Need::Prefetch { beyond } => awaited || next_use.is_some_and(|at| at <= beyond),
        };
        let stuck = dirty && self.paths_refuse();
        if !rest || spared || stuck {
            return None;
        }
        let age = now.saturating_sub(chunk.last_use.load(Ordering::Relaxed));
        let candidate = Candidate::new(next_use, age, chunk.bytes(), dirty);
        Some((if awaited { AWAITED } else { !AWAITED }, self.policy.rank(&candidate)))
    }

    /// Evicts a chunk: drops its frame, or queues its write-back.
    pub(super) fn evict(&mut self, chunk: &ChunkRef, leaving: Leaving) -> Evict {
        let mut cell = chunk.cell.lock();
        let answer = cell.residency.evict(leaving);
        let slot = if answer == Evict::Dropped {
            cell.take_frame(FrameSlot::Empty)
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

    /// A chunk has a frame.
    pub(super) fn enter(&mut self, chunk: &ChunkRef) {
        self.entered_since_look = true;
        if self.resident.insert(chunk.id(), Arc::new(chunk.clone())).is_none() {
            // It was let in: what little this takes beside comes out of the next frame.
            self.handle.shared.arena.add_metadata(Cell::PRESENCE_BYTES);
        }
    }

    /// A chunk has no frame any more.
    pub(super) fn forget(&mut self, chunk: &ChunkRef) {
        if self.resident.remove(&chunk.id()).is_some() {
            self.handle.shared.arena.remove_metadata(Cell::PRESENCE_BYTES);
            self.handle.shared.counters.evictions.add(1);
        }
        self.uncount_coming(chunk);
    }
}
