//! Reading ahead of somebody who goes through chunks in order.

use std::collections::VecDeque;
use std::ops::Range;

use crate::catalog::ChunkRef;
use crate::mover::{Handle, Hold};
use crate::residency::Mode;
use crate::ticket::Ticket;

use super::ObjectRef;
use super::span::Span;

/// The part of the host budget that one reader has read ahead for him.
const BUDGET_PART: u64 = 2;

/// Chunks that will be leased in order, of which some have been asked for ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// What was not yet asked for, in order.
    rest: VecDeque<(ObjectRef, Range<u32>)>,
    /// Bytes that may be on their way or in memory before they are leased.
    window: u64,
    /// Bytes asked for and not yet leased.
    ahead: u64,
}

impl Ahead {
    /// Returns a reader's window over chunks of objects: half of the host budget, so that all paths
    /// have something to read however unequal they are, and one chunk at least.
    pub(super) fn new(
        handle: &Handle,
        chunks: impl IntoIterator<Item = (ObjectRef, Range<u32>)>,
    ) -> Self {
        let window = handle.shared.arena.usage().budget / BUDGET_PART;
        let rest = chunks.into_iter().filter(|(_, chunks)| !chunks.is_empty()).collect();
        Ahead { rest, window, ahead: 0 }
    }

    /// Returns the window over one span; there is nothing ahead of a single chunk.
    pub(super) fn of(handle: &Handle, span: &Span) -> Self {
        if span.indices().len() > 1 { Self::new(handle, [span.chunks()]) } else { Self::default() }
    }

    /// Leases the next chunk, and asks for what the window newly reaches.
    pub(super) fn lease(&mut self, handle: &Handle, chunk: &ChunkRef, mode: Mode) -> Ticket<Hold> {
        let ticket = handle.lease(chunk.name(), mode);
        self.pass(chunk);
        let mut asked = Vec::new();
        while let Some(next) = self.front() {
            if self.ahead > 0 && self.ahead + next.bytes() > self.window {
                break;
            }
            self.ahead += next.bytes();
            self.advance();
            asked.push(next);
        }
        if !asked.is_empty() {
            handle.prefetch(asked);
        }
        ticket
    }

    /// The next chunk is done with, leased or not.
    pub(super) fn pass(&mut self, chunk: &ChunkRef) {
        if self.ahead > 0 {
            self.ahead = self.ahead.saturating_sub(chunk.bytes());
        } else {
            self.advance();
        }
    }

    fn front(&self) -> Option<ChunkRef> {
        let (object, chunks) = self.rest.front()?;
        object.0.chunk(chunks.start).ok()
    }

    fn advance(&mut self) {
        if let Some((_, chunks)) = self.rest.front_mut() {
            chunks.start += 1;
            if chunks.start >= chunks.end {
                self.rest.pop_front();
            }
        }
    }
}
