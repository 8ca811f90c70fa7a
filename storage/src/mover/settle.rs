//! Waiting for write-backs: somebody is answered when the last of some chunks has settled.

use std::collections::HashSet;

use crate::error::Error;
use crate::id::ChunkId;
use crate::ticket::Completer;

/// Somebody who waits for chunks to be written.
pub(super) struct Settle {
    waiting: HashSet<ChunkId>,
    error: Option<Error>,
    reply: Completer<()>,
}

impl Settle {
    pub(super) fn new(waiting: HashSet<ChunkId>, reply: Completer<()>) -> Self {
        Settle { waiting, error: None, reply }
    }

    /// Notes how a chunk's write-back ended; the first error counts.
    pub(super) fn settled(&mut self, chunk: ChunkId, error: Option<&Error>) {
        if self.waiting.remove(&chunk) && self.error.is_none() {
            self.error = error.cloned();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Answers.
    pub(super) fn end(self) {
        self.reply.complete(self.error.map_or(Ok(()), Err));
    }
}
