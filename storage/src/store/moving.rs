//! The verbs that say where bytes shall be: prefetch, evict, flush.

use crate::error::Result;
use crate::mover::Msg;
use crate::ticket::Ticket;

use super::block_on::block_on;
use super::{BoxFuture, Named, Store};

impl Store {
    /// Says that the object will be wanted: its chunks are loaded as memory allows, without evicting
    /// what a declared schedule keeps. Returns at once.
    ///
    /// # Errors
    /// [`crate::error::Error::NotFound`], [`crate::error::Error::Closed`].
    pub fn prefetch(&self, object: &(impl Named + ?Sized)) -> Result<()> {
        let object = self.find(object)?;
        self.0.handle.prefetch(object.0.chunks().collect());
        Ok(())
    }

    /// As [`Store::prefetch`] of each, in this order; one that fails stops no other.
    pub fn prefetch_many(&self, objects: impl IntoIterator<Item = impl Named>) -> Vec<Result<()>> {
        objects.into_iter().map(|object| self.prefetch(&object)).collect()
    }

    /// Moves the object out of memory and waits for it; chunks that leases hold stay.
    ///
    /// # Errors
    /// [`crate::error::Error::NotFound`], [`crate::error::Error::NoSpace`] (the chunk stays in
    /// memory), [`crate::error::Error::Closed`].
    pub fn evict(&self, object: &(impl Named + ?Sized)) -> Result<()> {
        self.evict_async(object).wait()
    }

    /// As [`Store::evict`]; begins at once, and goes on if the ticket is dropped.
    pub fn evict_async(&self, object: &(impl Named + ?Sized)) -> Ticket<()> {
        match self.find(object) {
            Ok(object) => {
                self.ask(|reply| Msg::Evict { chunks: object.0.chunks().collect(), reply })
            }
            Err(error) => Ticket::answered(Err(error)),
        }
    }

    /// As [`Store::evict`] of all of them at once. Each has its own outcome; one that fails stops no
    /// other.
    pub fn evict_many(&self, objects: impl IntoIterator<Item = impl Named>) -> Vec<Result<()>> {
        block_on(self.evict_many_async(objects))
    }

    /// As [`Store::evict_many`]; begins at once, and goes on if the future is dropped.
    pub fn evict_many_async(
        &self,
        objects: impl IntoIterator<Item = impl Named>,
    ) -> BoxFuture<Vec<Result<()>>> {
        let evicts: Vec<_> = objects.into_iter().map(|object| self.evict_async(&object)).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(evicts.len());
            for evict in evicts {
                outcomes.push(evict.await);
            }
            outcomes
        })
    }

    /// Waits until every chunk written so far is on a path; chunks under an exclusive lease are left
    /// out. They stay in memory.
    ///
    /// # Errors
    /// [`crate::error::Error::NoSpace`] when no path takes a chunk (it stays in memory);
    /// [`crate::error::Error::Closed`].
    pub fn flush(&self) -> Result<()> {
        self.flush_async().wait()
    }

    /// As [`Store::flush`]; begins at once, and goes on if the ticket is dropped.
    pub fn flush_async(&self) -> Ticket<()> {
        self.ask(|reply| Msg::Flush { reply })
    }

    /// Waits until everything asked for before has been decided (not finished), so that the counters
    /// include it.
    ///
    /// # Errors
    /// [`crate::error::Error::Closed`].
    pub fn barrier(&self) -> Result<()> {
        self.barrier_async().wait()
    }

    /// As [`Store::barrier`].
    pub fn barrier_async(&self) -> Ticket<()> {
        self.ask(|reply| Msg::Barrier { reply })
    }
}
