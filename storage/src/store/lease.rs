//! Leases: the only way to a chunk's bytes. A lease keeps its chunk in memory; its drop ends it.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut, Range};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::catalog::Waits;
use crate::error::{Error, Result};
use crate::mover::Hold;
use crate::residency::Mode;
use crate::ticket::Ticket;

use super::{ObjectRef, Store};

/// A shared lease: the chunk's bytes, unchanging while it lives. Outlives the store.
#[derive(Debug)]
pub struct ReadLease(Hold);

/// An exclusive lease: the chunk's bytes, to be changed. If they were borrowed mutably the chunk has
/// a new version when the lease ends, unless the holder ends it by [`WriteLease::unchanged`].
#[derive(Debug)]
pub struct WriteLease(Hold);

/// A lease that comes later; blocks in [`LeaseTicket::wait`] or is awaited on any executor. Dropped,
/// it gives the lease back as soon as it comes.
#[must_use = "dropping a ticket gives the lease back"]
pub struct LeaseTicket<L> {
    ticket: Ticket<Hold>,
    make: fn(Hold) -> L,
}

impl Store {
    /// Asks for a shared lease on a chunk. Granted at once when the chunk is in memory.
    pub fn lease_read(&self, object: &ObjectRef, chunk: u32) -> LeaseTicket<ReadLease> {
        LeaseTicket { ticket: self.lease(object, chunk, Mode::Read), make: ReadLease }
    }

    /// Asks for an exclusive lease on a chunk: waits for other leases and for a write-back under way
    /// to end.
    pub fn lease_write(&self, object: &ObjectRef, chunk: u32) -> LeaseTicket<WriteLease> {
        LeaseTicket { ticket: self.lease(object, chunk, Mode::Write), make: WriteLease }
    }

    fn lease(&self, object: &ObjectRef, chunk: u32, mode: Mode) -> Ticket<Hold> {
        match self.check_open().and_then(|()| object.0.named(chunk)) {
            Ok(chunk) => self.0.handle.lease(chunk, mode),
            Err(error) => Ticket::answered(Err(error)),
        }
    }
}

impl<L> LeaseTicket<L> {
    /// Blocks until the lease is granted.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Corrupt`] when the chunk could not be loaded, `PathHung` when its
    /// path does not answer, `BudgetExhausted` when only leases hold memory, `NoSpace` when memory could only be
    /// freed by a write no path takes, `NotFound` when the object was deleted, `Closed`.
    pub fn wait(self) -> Result<L> {
        self.ticket.wait().map(self.make)
    }

    /// Blocks at most `limit`.
    ///
    /// # Errors
    /// The ticket itself when the time ran out; it can be waited for again.
    pub fn wait_timeout(self, limit: Duration) -> std::result::Result<Result<L>, Self> {
        let make = self.make;
        match self.ticket.wait_timeout(limit) {
            Ok(answer) => Ok(answer.map(make)),
            Err(ticket) => Err(LeaseTicket { ticket, make }),
        }
    }

    /// Returns whether the answer is there.
    pub fn is_ready(&self) -> bool {
        self.ticket.is_ready()
    }
}

impl<L> Future for LeaseTicket<L> {
    type Output = Result<L>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let make = self.make;
        Pin::new(&mut self.ticket).poll(cx).map(|answer| answer.map(make))
    }
}

impl<L> fmt::Debug for LeaseTicket<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ticket.fmt(f)
    }
}

impl ReadLease {
    pub(super) fn new(hold: Hold) -> Self {
        ReadLease(hold)
    }

    /// Returns what was waited for.
    pub fn waits(&self) -> Waits {
        self.0.waits()
    }

    /// Returns the chunk's bytes as a view: shared, counted bytes without a copy. The lease lives in
    /// them and in every slice of them: what is viewed stays in memory, charged to the budget and
    /// named by [`Error::BudgetExhausted`], and stays what it is when the object is
    /// replaced, renamed or deleted and when the store is closed.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl WriteLease {
    /// Returns what was waited for.
    pub fn waits(&self) -> Waits {
        self.0.waits()
    }

    /// Ends the lease and says that no byte was changed, though they were borrowed mutably: the chunk
    /// keeps its version, and nothing is written for it. A holder who changed bytes nevertheless loses
    /// them or not, depending on whether the chunk leaves memory before its next change.
    pub fn unchanged(mut self) {
        self.0.set_changed(false);
    }

    /// Ends the lease and says that no byte outside of `range` was changed. Today a chunk of which any
    /// byte changed is written whole, so only an empty range spares anything; as with
    /// [`WriteLease::unchanged`], changes outside of the range may be lost.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when the range leaves the chunk; then all of it counts as changed.
    pub fn changed(mut self, range: Range<usize>) -> Result<()> {
        let fits = range.start <= range.end && range.end <= self.len();
        self.0.set_changed(!fits || !range.is_empty());
        if fits {
            return Ok(());
        }
        let why = format!("bytes {range:?} of a chunk of {} do not exist", self.len());
        Err(Error::OutOfRange { key: self.0.key_text(), why })
    }
}

impl Deref for ReadLease {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for ReadLease {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Deref for WriteLease {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for WriteLease {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}
