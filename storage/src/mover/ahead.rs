//! A declared schedule at work: chunks it releases leave at once, and what comes next is read ahead
//! as far as memory goes.

use crate::catalog::ChunkRef;
use crate::residency::Leaving;
use crate::schedule::Fate;
use crate::sync::Ordering;

use super::declared::Declared;
use super::state::Mover;

impl Mover {
    /// Puts a schedule in force. What is in memory and survives to its next use stays, what does
    /// not leaves; `reserve` bytes of the budget are left to what is on its way in and out.
    pub(super) fn declare(&mut self, this: Vec<ChunkRef>, next: &[ChunkRef], reserve: u64) {
        self.end_schedule();
        let capacity = self.handle.shared.arena.usage().for_frames().saturating_sub(reserve);
        let declared = Declared::new(this, next, capacity, |id| {
            self.resident.get(&id).is_some_and(|chunk| chunk.cell.lock().residency.stays())
        });
        let surplus = declared.surplus();
        self.declared = Some(declared);
        self.handle.shared.scheduled.store(true, Ordering::Relaxed);
        self.victims.clear();
        for chunk in surplus {
            self.evict(&chunk, Leaving::ForGood);
        }
    }

    /// From now on age alone decides.
    pub(super) fn end_schedule(&mut self) {
        self.declared = None;
        self.handle.shared.scheduled.store(false, Ordering::Relaxed);
    }

    /// An exclusive lease ended: a scheduled chunk stays for its next use or makes room now.
    pub(super) fn released(&mut self, chunk: &ChunkRef) {
        let Some(declared) = &mut self.declared else { return };
        if declared.used(chunk.id()) == Fate::Release {
            // It may be gone: deleted, or a victim since its lease ended.
            self.evict(chunk, Leaving::ForGood);
        }
    }

    /// Reads ahead in the order of the schedule until memory is short; returns whether all is done.
    pub(super) fn pump_ahead(&mut self) -> bool {
        while let Some(access) = self.declared.as_mut().and_then(Declared::next_ahead) {
            if !self.prefetch_one(&access.1) {
                if let Some(declared) = &mut self.declared {
                    declared.put_back(access);
                }
                return false;
            }
        }
        true
    }
}
