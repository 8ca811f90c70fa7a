//! Prefetching to the device: one chunk is copied while the next ones come from their paths.

use crate::catalog::ChunkRef;
use crate::id::Class;

use super::room::Room;
use super::under_way::{Fetch, Whom};
use super::worker::Worker;

/// How many chunks are on their way ahead of need: one that is copied, and two that the host loads, so
/// that a path never waits for the device.
const AHEAD: usize = 3;

impl Worker {
    /// Begins what was said to be wanted, as memory goes; returns whether all of it is begun.
    pub(super) fn pump_hints(&mut self) -> bool {
        while let Some(chunk) = self.hints.pop_front() {
            if !self.is_needed(&chunk) {
                continue;
            }
            let ahead = |fetch: &&Fetch| fetch.class == Class::Prefetch;
            let under_way = self.fetches.values().filter(ahead).count();
            if under_way >= AHEAD || !self.has_room_ahead(&chunk) {
                self.hints.push_front(chunk);
                return false;
            }
            self.begin(&chunk, Class::Prefetch, Whom::Readers(Vec::new()));
        }
        true
    }

    /// Returns whether a chunk has to be fetched. One that somebody is changing is left alone: what
    /// would come is old before it is used.
    fn is_needed(&self, chunk: &ChunkRef) -> bool {
        if self.shared.copies.lock().expect(chunk) || self.reading.contains_key(&chunk.id()) {
            return false;
        }
        let residency = &chunk.cell.lock().residency;
        !residency.deleted && !residency.writer && chunk.bytes() <= self.shared.memory.budget
    }

    /// A prefetch has its lease on the host. It takes memory that is there, or lets the host go and is
    /// begun again later.
    pub(super) fn find_room_ahead(&mut self, id: u64) {
        let Some(fetch) = self.fetches.get(&id) else { return };
        let chunk = fetch.chunk.clone();
        match self.find_room(&chunk, Class::Prefetch) {
            Room::Found(allocation) => self.start_copy(id, allocation),
            Room::Coming => {
                drop(self.take(id));
                self.hints.push_front(chunk);
            }
            Room::Never(_) => drop(self.take(id)),
        }
    }
}
