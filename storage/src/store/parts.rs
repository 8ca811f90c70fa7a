//! The parts of a tensor, one per chunk, loaded as they are consumed.

use bytes::Bytes;

use crate::error::Result;

use super::{Ahead, ObjectRef, Store};

/// An iterator over a tensor's chunks in order, each as shared bytes without a copy. What
/// comes after the one being consumed is prefetched, by up to half of the host budget.
#[derive(Debug)]
pub struct Parts {
    store: Store,
    object: ObjectRef,
    next: u32,
    ahead: Ahead,
}

impl Parts {
    pub(super) fn new(store: Store, object: ObjectRef) -> Self {
        let ahead = Ahead::new(&store, &object, object.chunks());
        Parts { store, object, next: 0, ahead }
    }
}

impl Iterator for Parts {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        if index >= self.object.chunks() {
            return None;
        }
        self.next += 1;
        let ticket = self.store.lease_read(&self.object, index);
        self.ahead.follow(&self.store, &self.object, index);
        Some(ticket.wait().map(super::ReadLease::into_bytes))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.object.chunks() - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Parts {}
