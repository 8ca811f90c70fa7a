//! Declared schedules at work: chunks that one releases leave at once, and what comes next is read ahead
//! as far as memory goes.

use crate::catalog::ChunkRef;
use crate::id::ScheduleId;
use crate::residency::Leaving;
use crate::schedule::Fate;
use crate::sync::Ordering;

use super::declared::Declared;
use super::state::Mover;

impl Mover {
    /// Puts a schedule in force. If it is the only one, what is in memory and survives to its next
    /// use stays and what does not leaves; `reserve` bytes of the budget are left to what is on its
    /// way in and out. At most `read_ahead` accesses are read ahead of the one that is made.
    pub(super) fn declare(
        &mut self,
        id: ScheduleId,
        this: Vec<ChunkRef>,
        next: &[ChunkRef],
        (reserve, read_ahead): (u64, Option<u32>),
    ) {
        self.end_schedule(id);
        let capacity = self.handle.shared.arena.usage().for_frames();
        let declared = Declared::new(this, next, (capacity, reserve), |id| {
            self.resident.get(&id).is_some_and(|chunk| chunk.cell.lock().residency.stays())
        });
        let declared = declared.reading_ahead(read_ahead);
        let surplus = declared.surplus();
        self.schedules.set(id, declared);
        self.handle.shared.scheduled.store(true, Ordering::Relaxed);
        self.victims.clear();
        if self.schedules.is_one() {
            for chunk in surplus {
                self.evict(&chunk, Leaving::ForGood);
            }
        }
    }

    /// Takes a schedule back.
    pub(super) fn end_schedule(&mut self, id: ScheduleId) {
        self.schedules.end(id);
        self.schedules_changed();
    }

    /// From now on age alone decides.
    pub(super) fn end_schedules(&mut self) {
        self.schedules.end_all();
        self.schedules_changed();
    }

    fn schedules_changed(&mut self) {
        self.victims.clear();
        let scheduled = !self.schedules.is_empty();
        self.handle.shared.scheduled.store(scheduled, Ordering::Relaxed);
    }

    /// An exclusive lease ended: a scheduled chunk stays for its next use or makes room now.
    pub(super) fn released(&mut self, chunk: &ChunkRef) {
        let now = self.now();
        if self.schedules.used(chunk.id(), now) == Fate::Release {
            // It may be gone: deleted, or a victim since its lease ended.
            self.evict(chunk, Leaving::ForGood);
        }
    }

    /// Reads ahead in the order of the schedules until memory is short; returns whether all is done.
    pub(super) fn pump_ahead(&mut self) -> bool {
        while let Some(coming) = self.schedules.next_ahead() {
            if !self.prefetch_one(&coming.chunk, coming.beyond) {
                return false;
            }
            self.schedules.took_ahead(coming.schedule);
        }
        true
    }
}
