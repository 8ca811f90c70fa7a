//! Reading ahead of somebody who goes through an object in order.

use super::{ObjectRef, Store};

/// The part of the host budget that one reader has read ahead for him.
const BUDGET_PART: u64 = 2;

/// How far an object's chunks have been asked for ahead of their reader.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Chunks that may be on their way or in memory before they are read.
    window: u32,
    /// The first chunk not asked for.
    next: u32,
    end: u32,
}

impl Ahead {
    /// Returns a reader's window over the chunks before `end`: half of the host budget, so that all
    /// paths have something to read however unequal they are, and one chunk at least.
    pub(super) fn new(store: &Store, object: &ObjectRef, end: u32) -> Self {
        let budget = store.0.handle.shared.arena.usage().budget;
        let window = (budget / BUDGET_PART / object.0.chunk_bytes().max(1)).max(1);
        Ahead { window: u32::try_from(window).unwrap_or(u32::MAX), next: 0, end }
    }

    /// Asks for what the window newly reaches, now that chunk `at` is being leased.
    pub(super) fn follow(&mut self, store: &Store, object: &ObjectRef, at: u32) {
        let from = self.next.max(at.saturating_add(1));
        let to = at.saturating_add(1).saturating_add(self.window).min(self.end);
        let chunks: Vec<_> = (from..to).map_while(|index| object.0.chunk(index).ok()).collect();
        if !chunks.is_empty() {
            store.0.handle.prefetch(chunks);
            self.next = to;
        }
    }
}
