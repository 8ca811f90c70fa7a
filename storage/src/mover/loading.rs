//! A lease that waits for its chunk to be loaded: somebody must answer it, whatever becomes of the
//! message that says so.

use crate::catalog::ChunkRef;
use crate::error::Error;

/// A chunk that leases wait for and that is to be loaded. Dropped without having been taken, it
/// answers all who wait with [`Error::Closed`].
#[derive(Debug)]
pub(crate) struct Loading(Option<ChunkRef>);

impl Loading {
    /// Says that `chunk`, whose residency is `Filling`, is to be loaded.
    pub(super) fn of(chunk: &ChunkRef) -> Self {
        Loading(Some(chunk.clone()))
    }

    /// Returns the chunk; `None` never comes before it was taken.
    pub(super) fn chunk(&self) -> Option<&ChunkRef> {
        self.0.as_ref()
    }

    /// Returns the chunk's length in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |chunk| chunk.bytes())
    }

    /// Returns the chunk to be filled, or `None` if nobody waits for it any more: it was deleted, or
    /// all tickets were dropped.
    pub(super) fn take(mut self) -> Option<ChunkRef> {
        let chunk = self.0.take()?;
        let mut cell = chunk.cell.lock();
        let wanted = !cell.is_unwaited();
        if !wanted {
            cell.residency.filled(false);
        }
        drop(cell);
        wanted.then_some(chunk)
    }

    /// Returns whether somebody still waits.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|chunk| !chunk.cell.lock().is_unwaited())
    }

    /// Tells all who wait that the chunk cannot be loaded.
    pub(super) fn refuse(mut self, error: &Error) {
        self.answer(error);
    }

    fn answer(&mut self, error: &Error) {
        let Some(chunk) = self.0.take() else { return };
        let mut cell = chunk.cell.lock();
        cell.residency.filled(false);
        let woken = cell.refuse_all(error);
        drop(cell);
        for (waiter, answer) in woken {
            waiter.reply.tell(answer);
        }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.answer(&Error::Closed);
    }
}
