//! Shared leases on a byte range: on just the chunks that it touches, held together.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::Result;
use crate::mover::Hold;
use crate::residency::Mode;
use crate::ticket::Ticket;

use super::block_on::block_on;
use super::lease::ReadLease;
use super::span::Part;
use super::{Named, Store};

/// A byte range of an object under shared leases: one slice per chunk that it touches. None of the
/// bytes changes while it lives; chunks come each as of its own grant.
#[derive(Debug, Default)]
pub struct RangeLease {
    parts: Vec<(ReadLease, Range<usize>)>,
}

/// A [`RangeLease`] that comes later; blocks in [`RangeTicket::wait`] or is awaited on any executor.
/// Dropped, it gives what was granted back.
#[must_use = "dropping a ticket gives the leases back"]
pub struct RangeTicket {
    waiting: VecDeque<(Ticket<Hold>, Range<usize>)>,
    granted: RangeLease,
}

impl Store {
    /// Asks for shared leases on the chunks that bytes `range` of an object touch. All of them are in
    /// memory together when the answer comes: a range larger than what the budget has to give is
    /// refused, and is read by [`Store::get_range_into`].
    pub fn lease_range_read(
        &self,
        object: &(impl Named + ?Sized),
        range: Range<u64>,
    ) -> RangeTicket {
        let lease =
            |Part { chunk, within }| (self.0.handle.lease(chunk.name(), Mode::Read), within);
        let waiting = match self.span(object, range) {
            Ok(span) => span.parts().map(lease).collect(),
            Err(error) => VecDeque::from([(Ticket::answered(Err(error)), 0..0)]),
        };
        RangeTicket { waiting, granted: RangeLease::default() }
    }
}

impl RangeTicket {
    /// Blocks until all leases are granted.
    ///
    /// # Errors
    /// [`crate::error::Error::OutOfRange`] when the range leaves the object, `NotFound`, and the
    /// errors of a lease; no lease is kept then.
    pub fn wait(self) -> Result<RangeLease> {
        block_on(self)
    }

    /// Blocks at most `limit`.
    ///
    /// # Errors
    /// The ticket itself when the time ran out; it can be waited for again.
    pub fn wait_timeout(
        mut self,
        limit: Duration,
    ) -> std::result::Result<Result<RangeLease>, Self> {
        let begin = Instant::now();
        while let Some((ticket, within)) = self.waiting.pop_front() {
            match ticket.wait_timeout(limit.saturating_sub(begin.elapsed())) {
                Ok(Ok(hold)) => self.granted.parts.push((ReadLease::new(hold), within)),
                Ok(Err(error)) => return Ok(Err(error)),
                Err(ticket) => {
                    self.waiting.push_front((ticket, within));
                    return Err(self);
                }
            }
        }
        Ok(Ok(self.granted))
    }

    /// Returns whether all leases are granted, or one was refused.
    pub fn is_ready(&self) -> bool {
        self.waiting.iter().all(|(ticket, _)| ticket.is_ready())
    }
}

impl Future for RangeTicket {
    type Output = Result<RangeLease>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some((ticket, _)) = self.waiting.front_mut() {
            let hold = ready!(Pin::new(ticket).poll(cx));
            let within = self.waiting.pop_front().map_or(0..0, |(_, within)| within);
            match hold {
                Ok(hold) => self.granted.parts.push((ReadLease::new(hold), within)),
                Err(error) => {
                    self.waiting.clear();
                    self.granted = RangeLease::default();
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut self.granted)))
    }
}

impl fmt::Debug for RangeTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeTicket(ready: {})", self.is_ready())
    }
}

impl RangeLease {
    /// Returns the bytes in order, one slice per chunk, none of them empty.
    pub fn slices(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parts.iter().map(|(lease, within)| &lease[within.clone()])
    }

    /// Returns the bytes as one slice, if they lie in one chunk or there are none.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.parts[..] {
            [] => Some(&[]),
            [(lease, within)] => Some(&lease[within.clone()]),
            _ => None,
        }
    }

    /// Returns how many bytes the range has.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|(_, within)| within.len()).sum()
    }

    /// Returns whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns a view of each slice without a copy; each keeps its own chunk's lease.
    pub fn into_views(self) -> Vec<Bytes> {
        let view = |(lease, within): (ReadLease, Range<usize>)| lease.into_bytes().slice(within);
        self.parts.into_iter().map(view).collect()
    }
}
