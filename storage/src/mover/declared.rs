//! The declared schedule in force: its plan, its chunks, and what was not yet read ahead.

use std::collections::{HashMap, VecDeque};

use crate::arena::granules_up;
use crate::catalog::ChunkRef;
use crate::id::ChunkId;
use crate::schedule::{Access, Fate, Schedule};

/// The schedule in force.
pub(super) struct Declared {
    schedule: Schedule,
    chunks: HashMap<ChunkId, ChunkRef>,
    /// Accesses of this pass that were not yet read ahead, by their positions.
    ahead: VecDeque<(u32, ChunkRef)>,
}

impl Declared {
    /// Plans two passes within `capacity` bytes, given what is in memory to stay.
    pub(super) fn new(
        this: Vec<ChunkRef>,
        next: &[ChunkRef],
        capacity: u64,
        stays: impl Fn(ChunkId) -> bool,
    ) -> Self {
        let access = |chunk: &ChunkRef| Access {
            chunk: chunk.id(),
            bytes: granules_up(chunk.bytes().max(1)),
        };
        let schedule = Schedule::new(
            this.iter().map(access).collect(),
            next.iter().map(access).collect(),
            capacity,
            stays,
        );
        let chunks = this.iter().chain(next).map(|chunk| (chunk.id(), chunk.clone())).collect();
        Declared { schedule, chunks, ahead: (0..).zip(this).collect() }
    }

    /// Returns the chunks in memory that do not survive to their first use.
    pub(super) fn surplus(&self) -> Vec<ChunkRef> {
        self.schedule.surplus().iter().filter_map(|id| self.chunks.get(id).cloned()).collect()
    }

    pub(super) fn next_use(&self, chunk: ChunkId) -> Option<u64> {
        self.schedule.next_use(chunk)
    }

    /// Notes that an access ended and returns what becomes of the chunk.
    pub(super) fn used(&mut self, chunk: ChunkId) -> Fate {
        self.schedule.used(chunk)
    }

    /// Takes the next access to read ahead for, passing over those that leases overtook.
    pub(super) fn next_ahead(&mut self) -> Option<(u32, ChunkRef)> {
        let schedule = &self.schedule;
        while self.ahead.pop_front_if(|(at, chunk)| schedule.is_past(chunk.id(), *at)).is_some() {}
        self.ahead.pop_front()
    }

    /// Gives an access back that could not be read ahead for yet.
    pub(super) fn put_back(&mut self, access: (u32, ChunkRef)) {
        self.ahead.push_front(access);
    }
}
