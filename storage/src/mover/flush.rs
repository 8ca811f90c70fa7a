//! Evicting and flushing on request, and answering when that is done.

use std::collections::HashSet;

use crate::catalog::ChunkRef;
use crate::error::Error;
use crate::id::ChunkId;
use crate::residency::{Evict, Leaving};
use crate::ticket::Completer;

use super::settle::Settle;
use super::state::Mover;

impl Mover {
    /// Evicts chunks; those that leases hold stay.
    pub(super) fn evict_all(&mut self, chunks: &[ChunkRef], reply: Completer<()>) {
        let mut waiting = HashSet::new();
        for chunk in chunks {
            match self.evict(chunk, Leaving::IfUnused) {
                Evict::WriteBack | Evict::UnderWay => {
                    waiting.insert(chunk.id());
                }
                Evict::Dropped | Evict::Held | Evict::Nothing => {}
            }
        }
        self.settle(waiting, reply);
    }

    /// Writes every dirty chunk that no exclusive lease holds.
    pub(super) fn flush(&mut self, reply: Completer<()>) {
        // Whoever asks for it may have made room: every path is offered the chunks afresh.
        self.forgive_paths();
        let mut waiting = HashSet::new();
        let mut chunks: Vec<_> =
            self.resident.values().map(|chunk| ChunkRef::clone(chunk)).collect();
        // Neighbours one after the other, so that they come to lie on different paths.
        chunks.sort_unstable_by_key(|chunk| chunk.id());
        for chunk in chunks {
            let answer = chunk.cell.lock().residency.flush();
            match answer {
                Evict::WriteBack => {
                    self.queue_write_back(&chunk);
                    waiting.insert(chunk.id());
                }
                Evict::UnderWay => {
                    waiting.insert(chunk.id());
                }
                Evict::Dropped | Evict::Held | Evict::Nothing => {}
            }
        }
        self.settle(waiting, reply);
    }

    fn settle(&mut self, waiting: HashSet<ChunkId>, reply: Completer<()>) {
        self.settles.push(Settle::new(waiting, reply));
        self.end_settles();
    }

    /// A chunk's write-back ended, was taken back, or failed.
    pub(super) fn settled(&mut self, chunk: &ChunkRef, error: Option<&Error>) {
        for settle in &mut self.settles {
            settle.settled(chunk.id(), error);
        }
        self.end_settles();
    }

    fn end_settles(&mut self) {
        self.settles.extract_if(.., |settle| settle.is_over()).for_each(Settle::end);
    }
}
