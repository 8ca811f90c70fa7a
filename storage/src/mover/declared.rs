//! One declared schedule in force: its plan, its chunks, what was not yet read ahead, and how fast
//! it goes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::arena::granules_up;
use crate::catalog::ChunkRef;
use crate::id::ChunkId;
use crate::schedule::{Access, Fate, Schedule};

/// How much of a schedule's rate the accesses of the last while make out, per access.
const NEWS: f64 = 0.1;

/// A declared access that was not yet read ahead for, with its position.
pub(super) type Ahead = (u32, ChunkRef);

/// A schedule in force.
pub(super) struct Declared {
    schedule: Schedule,
    chunks: HashMap<ChunkId, ChunkRef>,
    /// Accesses of this pass that were not yet read ahead, by their positions.
    ahead: VecDeque<Ahead>,
    /// Memory for what is on its way in and out, in bytes.
    reserve: u64,
    /// How many accesses are read ahead of the one that is made at most, if that is limited.
    read_ahead: Option<u32>,
    /// Bytes per nanosecond, once two accesses have ended.
    rate: Option<f64>,
    last_used: Option<Duration>,
}

impl Declared {
    /// Plans two passes within `capacity` bytes, of which `reserve` are left to what is on its way in
    /// and out, given what is in memory to stay.
    pub(super) fn new(
        this: Vec<ChunkRef>,
        next: &[ChunkRef],
        (capacity, reserve): (u64, u64),
        stays: impl Fn(ChunkId) -> bool,
    ) -> Self {
        let access = |chunk: &ChunkRef| Access {
            chunk: chunk.id(),
            bytes: granules_up(chunk.bytes().max(1)),
        };
        let schedule = Schedule::new(
            this.iter().map(access).collect(),
            next.iter().map(access).collect(),
            capacity.saturating_sub(reserve),
            stays,
        );
        let chunks = this.iter().chain(next).map(|chunk| (chunk.id(), chunk.clone())).collect();
        let ahead = (0..).zip(this).collect();
        Declared { schedule, chunks, ahead, reserve, read_ahead: None, rate: None, last_used: None }
    }

    /// Returns it with at most so many accesses read ahead of the one that is made.
    pub(super) fn reading_ahead(self, read_ahead: Option<u32>) -> Self {
        Declared { read_ahead, ..self }
    }

    /// Returns the chunks in memory that do not survive to their first use.
    pub(super) fn surplus(&self) -> Vec<ChunkRef> {
        self.schedule.surplus().iter().filter_map(|id| self.chunks.get(id).cloned()).collect()
    }

    /// Returns how many bytes are accessed before the chunk is, or `None` if it is not.
    pub(super) fn bytes_ahead(&self, chunk: ChunkId) -> Option<u64> {
        self.schedule.bytes_ahead(chunk)
    }

    /// Returns whether what is so many bytes ahead is to be on its way now.
    pub(super) fn is_near(&self, bytes_ahead: u64) -> bool {
        bytes_ahead <= self.reserve
    }

    /// Returns in how many nanoseconds so many bytes are accessed at the present rate; a schedule
    /// that has just begun is taken to go at one byte each.
    pub(super) fn nanoseconds(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.rate.unwrap_or(1.0)) as u64
    }

    /// Notes that an access ended and returns what becomes of the chunk.
    pub(super) fn used(&mut self, chunk: ChunkId, now: Duration) -> Fate {
        let bytes = self.chunks.get(&chunk).map_or(0, ChunkRef::bytes) as f64;
        if let Some(last) = self.last_used.replace(now) {
            let took = now.saturating_sub(last).as_nanos().max(1) as f64;
            let rate = bytes / took;
            self.rate = Some(self.rate.map_or(rate, |old| old + NEWS * (rate - old)));
        }
        self.schedule.used(chunk)
    }

    /// Returns the next access to read ahead for, passing over those that leases overtook.
    pub(super) fn next_ahead(&mut self) -> Option<&Ahead> {
        let schedule = &self.schedule;
        while self.ahead.pop_front_if(|(at, chunk)| schedule.is_past(chunk.id(), *at)).is_some() {}
        let limit = self.read_ahead.map(|accesses| schedule.cursor().saturating_add(accesses));
        self.ahead.front().filter(|(at, _)| limit.is_none_or(|limit| *at <= limit))
    }

    /// That access was read ahead for.
    pub(super) fn took_ahead(&mut self) {
        self.ahead.pop_front();
    }
}
