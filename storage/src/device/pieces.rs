//! Copying chunks to the device piece by piece, so that what somebody waits for passes what was only
//! prefetched.

use std::sync::Arc;

use tensortier_gpu::HostSource;

use crate::id::Class;

use super::Msg;
use super::memory::Allocation;
use super::under_way::{Copying, Fetch, Stage};
use super::worker::Worker;

/// Large enough that the start of a copy costs little beside it, some 10 us to 0.3 ms.
const PIECE_BYTES: u64 = 8 << 20;

/// One is copied while the next is queued; more would only keep a demand waiting.
const PIECES_IN_FLIGHT: usize = 2;

impl Worker {
    /// A fetch that waited for memory has it.
    pub(super) fn start_copy(&mut self, id: u64, allocation: Allocation) {
        let Some(mut fetch) = self.fetches.remove(&id) else { return };
        let Stage::Memory { hold, version } = fetch.stage else { return };
        self.page_locks.lock_committed();
        let hold = Arc::new(hold);
        let copying = Copying { hold, allocation, version, queued: 0, pieces: 0, failed: None };
        fetch.stage = Stage::Copying(copying);
        self.fetches.insert(id, fetch);
        self.copying.push_back(id);
    }

    /// Queues pieces, those that somebody waits for first.
    pub(super) fn pump_copies(&mut self) {
        while self.in_flight < PIECES_IN_FLIGHT {
            let demanded =
                |id: &&u64| self.fetches.get(*id).is_some_and(|f| f.class == Class::Demand);
            let next = self.copying.iter().find(demanded).or(self.copying.front());
            let Some(id) = next.copied() else { break };
            self.queue_piece(id);
        }
    }

    fn queue_piece(&mut self, id: u64) {
        let Some(Fetch { chunk, stage: Stage::Copying(copying), .. }) = self.fetches.get_mut(&id)
        else {
            return self.copying.retain(|other| *other != id);
        };
        let (start, end) = (copying.queued, chunk.bytes().min(copying.queued + PIECE_BYTES));
        let source: HostSource = Arc::clone(&copying.hold) as HostSource;
        let (device, buffer) = (&self.shared.memory.device, &mut copying.allocation.buffer);
        match device.copy_in(&self.into, source, start as usize..end as usize, buffer, start) {
            Ok(copied) => {
                copying.queued = end;
                copying.pieces += 1;
                self.in_flight += 1;
                let inbox = self.shared.inbox.clone();
                copied.then(move |result| drop(inbox.send(Msg::Piece { fetch: id, result })));
            }
            Err(error) => copying.failed = Some(error),
        }
        let all = copying.failed.is_some() || end == chunk.bytes();
        let over = all && copying.pieces == 0;
        if all {
            self.copying.retain(|other| *other != id);
        }
        if over {
            self.finish(id);
        }
    }

    /// A piece was copied, or not.
    pub(super) fn piece_done(&mut self, id: u64, result: tensortier_gpu::Result<()>) {
        self.in_flight -= 1;
        let Some(Fetch { chunk, stage: Stage::Copying(copying), .. }) = self.fetches.get_mut(&id)
        else {
            return;
        };
        copying.pieces -= 1;
        if let Err(error) = result {
            copying.failed.get_or_insert(error);
            self.copying.retain(|other| *other != id);
        }
        let all = copying.failed.is_some() || copying.queued == chunk.bytes();
        if copying.pieces == 0 && (all || self.closing.is_some()) {
            self.finish(id);
        }
    }
}
