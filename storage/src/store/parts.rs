//! The parts of a tensor, one per chunk, loaded as they are consumed.

use bytes::Bytes;

use crate::error::Result;
use crate::mover::Hold;
use crate::residency::Mode;
use crate::ticket::Ticket;

use super::block_on::block_on;
use super::lease::ReadLease;
use super::span::Span;
use super::{Ahead, ObjectRef, Store};

/// An iterator over a tensor's chunks in order, each as shared bytes without a copy. What
/// comes after the one being consumed is prefetched, by up to half of the host budget.
#[derive(Debug)]
pub struct Parts {
    store: Store,
    object: ObjectRef,
    next: u32,
    /// The lease of the next, if it was asked for and not yet waited for to the end.
    asked: Option<Ticket<Hold>>,
    ahead: Ahead,
}

impl Parts {
    pub(super) fn new(store: &Store, object: ObjectRef) -> Self {
        let ahead = Ahead::of(&store.0.handle, &Span::whole(object.clone()));
        Parts { store: store.clone(), object, next: 0, asked: None, ahead }
    }

    /// As [`Iterator::next`], without blocking. Dropped before its end it loses no part.
    pub async fn next_async(&mut self) -> Option<Result<Bytes>> {
        if self.asked.is_none() {
            let chunk = self.object.0.chunk(self.next).ok()?;
            self.asked = Some(self.ahead.lease(&self.store.0.handle, &chunk, Mode::Read));
        }
        let answer = self.asked.as_mut()?.await;
        self.asked = None;
        self.next += 1;
        Some(answer.map(|hold| ReadLease::new(hold).into_bytes()))
    }
}

impl Iterator for Parts {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.next_async())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.object.chunks() - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Parts {}
