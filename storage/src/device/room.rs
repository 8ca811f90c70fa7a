//! Finding memory on the device: what is free, or what a copy leaves that nobody holds.

use std::sync::Arc;

use crate::catalog::ChunkRef;
use crate::error::{Error, Fate};
use crate::id::Class;

use super::memory::Allocation;
use super::under_way::Fetch;
use super::worker::Worker;

/// The answer to a want of memory.
pub(super) enum Room {
    /// Here it is.
    Found(Allocation),
    /// Something under way will free memory, or may be leased and end.
    Coming,
    /// Nothing will.
    Never(Error),
}

impl Worker {
    /// Finds memory for a chunk; the least recently used copies that nobody holds make room, for a
    /// prefetch only those that no other prefetch brought.
    pub(super) fn find_room(&mut self, chunk: &ChunkRef, class: Class) -> Room {
        let shared = &self.shared;
        // Looked at first: what is no longer on its way has come, and is seen below.
        let mut coming = shared.memory.is_ending() || self.fetches.values().any(Fetch::is_copying);
        let mut refused = None;
        loop {
            match shared.memory.allocate(chunk) {
                Ok(Some(allocation)) => return Room::Found(allocation),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
            let victim = shared.copies.lock().take_oldest(class == Class::Demand);
            let Some(victim) = victim else { break };
            shared.counters.evictions.add(1);
            // A lease that ended a moment ago may still have to let go of it.
            coming |= Arc::into_inner(victim).is_none();
        }
        let ahead = class != Class::Demand;
        match refused {
            Some(source) if ahead || !coming => {
                let attempted = "allocate memory for";
                Room::Never(self.failed(attempted, chunk, source, Fate::Kept))
            }
            _ if ahead || coming => Room::Coming,
            _ => Room::Never(shared.memory.exhausted(chunk.bytes())),
        }
    }

    /// Returns whether a prefetch would find memory for a chunk.
    pub(super) fn has_room_ahead(&self, chunk: &ChunkRef) -> bool {
        let memory = &self.shared.memory;
        let free = memory.budget - memory.in_use();
        free + self.shared.copies.lock().unleased_bytes(false) >= chunk.bytes()
    }
}
