//! Declaring the future: which chunks will be accessed in which order.

use crate::catalog::ChunkRef;
use crate::error::Result;
use crate::mover::Msg;
use crate::ticket::Ticket;

use super::{ObjectRef, Store};

impl Store {
    /// Declares the coming exclusive accesses: this pass and the next, as objects whose chunks are
    /// accessed in order. From now on this pass is read ahead in that order as far as memory goes;
    /// a chunk whose lease ends stays if it survives to its next use within the budget less
    /// `reserve` bytes (which are left to what is on its way in and out), and otherwise is written
    /// back and leaves at once. What is written and read thus depends on the declaration alone, not
    /// on timing. Replaces an earlier declaration.
    ///
    /// # Errors
    /// [`crate::error::Error::Closed`].
    pub fn declare(&self, this: &[ObjectRef], next: &[ObjectRef], reserve: u64) -> Result<()> {
        self.declare_async(this, next, reserve).wait()
    }

    /// As [`Store::declare`]; in force once the ticket is answered.
    pub fn declare_async(
        &self,
        this: &[ObjectRef],
        next: &[ObjectRef],
        reserve: u64,
    ) -> Ticket<()> {
        let chunks = |objects: &[ObjectRef]| -> Vec<ChunkRef> {
            objects.iter().flat_map(|object| object.0.chunks()).collect()
        };
        let (this, next) = (chunks(this), chunks(next));
        self.ask(|reply| Msg::Declare { this, next, reserve, reply })
    }

    /// Takes the declaration back: age decides again.
    pub fn end_schedule(&self) {
        self.0.handle.send(Msg::EndSchedule);
    }
}
