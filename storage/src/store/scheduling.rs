//! Declaring the future: which chunks will be accessed in which order.

use crate::catalog::ChunkRef;
use crate::error::Result;
use crate::id::ScheduleId;
use crate::mover::{Handle, Msg};
use crate::sync::Ordering;
use crate::ticket::{Ticket, ticket};

use super::{ObjectRef, Store};

/// A caller's schedule: what he declares to access, pass by pass. Its drop takes it back. A store
/// follows one schedule to the letter; several share memory by time (see [`Schedule::declare`]).
#[derive(Debug)]
pub struct Schedule {
    id: ScheduleId,
    read_ahead: Option<u32>,
    handle: Handle,
}

impl Store {
    /// Returns a schedule with nothing declared yet.
    pub fn schedule(&self) -> Schedule {
        let id = ScheduleId(self.0.next_schedule.fetch_add(1, Ordering::Relaxed));
        Schedule { id, read_ahead: None, handle: self.0.handle.clone() }
    }
}

impl Schedule {
    /// Returns it with at most so many accesses read ahead of the one that is made, where memory and
    /// paths would allow more: to see what reading ahead brings.
    #[must_use]
    pub fn with_read_ahead(mut self, accesses: u32) -> Self {
        self.read_ahead = Some(accesses);
        self
    }

    /// Declares the coming exclusive accesses: this pass and the next, as objects whose chunks are
    /// accessed in order. From now on this pass is read ahead in that order as far as memory goes;
    /// a chunk whose lease ends stays if it survives to its next use within the budget less
    /// `reserve` bytes (which are left to what is on its way in and out), and otherwise is written
    /// back and leaves at once. What is written and read thus depends on the declaration alone, not
    /// on timing. Replaces what this schedule declared before.
    ///
    /// While several schedules of a store are in force none is planned to the letter: memory goes to
    /// what is used soonest, given the rate at which each goes, and what is used last leaves only
    /// when its place is needed. An access to a chunk that several name is taken for that of the one
    /// that expected it soonest.
    ///
    /// # Errors
    /// [`crate::error::Error::Closed`].
    pub fn declare(&self, this: &[ObjectRef], next: &[ObjectRef], reserve: u64) -> Result<()> {
        self.declare_async(this, next, reserve).wait()
    }

    /// As [`Schedule::declare`]; in force once the ticket is answered.
    pub fn declare_async(
        &self,
        this: &[ObjectRef],
        next: &[ObjectRef],
        reserve: u64,
    ) -> Ticket<()> {
        let chunks = |objects: &[ObjectRef]| -> Vec<ChunkRef> {
            objects.iter().flat_map(|object| object.0.chunks()).collect()
        };
        let (reply, done) = ticket();
        let (id, this, next) = (self.id, chunks(this), chunks(next));
        let read_ahead = self.read_ahead;
        self.handle.send(Msg::Declare { id, this, next, reserve, read_ahead, reply });
        done
    }

    /// Takes back what was declared; age decides again.
    pub fn end(&self) {
        self.handle.send(Msg::EndSchedule(self.id));
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        self.end();
    }
}
