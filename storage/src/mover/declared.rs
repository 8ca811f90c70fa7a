//! A declared schedule at work: chunks it releases leave at once, and what comes next is read ahead
//! as far as memory goes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::arena::granules_up;
use crate::catalog::Chunk;
use crate::id::ChunkId;
use crate::residency::Leaving;
use crate::schedule::{Access, Fate, Schedule};
use crate::sync::Ordering;

use super::run::Mover;

/// The schedule in force.
pub(super) struct Declared {
    schedule: Schedule,
    chunks: HashMap<ChunkId, Arc<Chunk>>,
    /// Accesses of this pass that were not yet read ahead, by their positions.
    ahead: VecDeque<(u32, Arc<Chunk>)>,
}

impl Declared {
    pub(super) fn next_use(&self, chunk: ChunkId) -> Option<u64> {
        self.schedule.next_use(chunk)
    }

    /// Takes the next access to read ahead for, passing over those that leases overtook.
    fn next_ahead(&mut self) -> Option<(u32, Arc<Chunk>)> {
        let schedule = &self.schedule;
        while self.ahead.pop_front_if(|(at, chunk)| schedule.is_past(chunk.id, *at)).is_some() {}
        self.ahead.pop_front()
    }
}

impl Mover {
    /// Puts a schedule in force. What is in memory and survives to its next use stays, what does
    /// not leaves; `reserve` bytes of the budget are left to what is on its way in and out.
    pub(super) fn declare(&mut self, this: Vec<Arc<Chunk>>, next: Vec<Arc<Chunk>>, reserve: u64) {
        self.end_schedule();
        let access =
            |chunk: &Arc<Chunk>| Access { chunk: chunk.id, bytes: granules_up(chunk.bytes.max(1)) };
        let budget = self.handle.shared.arena.usage().budget;
        let schedule = Schedule::new(
            this.iter().map(access).collect(),
            next.iter().map(access).collect(),
            budget.saturating_sub(reserve),
            |id| self.resident.get(&id).is_some_and(|chunk| chunk.cell.lock().residency.stays()),
        );
        let chunks: HashMap<_, _> =
            this.iter().chain(&next).map(|chunk| (chunk.id, Arc::clone(chunk))).collect();
        for chunk in chunks.values() {
            chunk.tracked.store(true, Ordering::Relaxed);
        }
        let surplus: Vec<_> = schedule.surplus().to_vec();
        self.declared = Some(Declared { schedule, chunks, ahead: (0..).zip(this).collect() });
        self.victims.clear();
        for id in surplus {
            if let Some(chunk) = self.resident.get(&id).cloned() {
                self.evict(&chunk, Leaving::ForGood);
            }
        }
    }

    /// From now on age alone decides.
    pub(super) fn end_schedule(&mut self) {
        if let Some(declared) = self.declared.take() {
            for chunk in declared.chunks.values() {
                chunk.tracked.store(false, Ordering::Relaxed);
            }
        }
    }

    /// A lease of a scheduled chunk ended: it stays for its next use or makes room now.
    pub(super) fn released(&mut self, chunk: &Arc<Chunk>) {
        let Some(declared) = &mut self.declared else { return };
        if declared.schedule.used(chunk.id) == Fate::Release {
            // It may be gone: deleted, or a victim since its lease ended.
            self.evict(chunk, Leaving::ForGood);
        }
    }

    /// Reads ahead in the order of the schedule until memory is short; returns whether all is done.
    pub(super) fn pump_ahead(&mut self) -> bool {
        while let Some((position, chunk)) = self.declared.as_mut().and_then(Declared::next_ahead) {
            if !self.prefetch_one(&chunk) {
                if let Some(declared) = &mut self.declared {
                    declared.ahead.push_front((position, chunk));
                }
                return false;
            }
        }
        true
    }
}
