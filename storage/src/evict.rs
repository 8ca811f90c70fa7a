//! Which chunk leaves memory first when something else needs its place. Pure.

use std::fmt;

/// What a policy knows of a chunk that could leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// How far away its next declared use is; `None` when none is. In bytes accessed before it, or,
    /// with several schedules in force, in nanoseconds at the rates at which they go.
    pub next_use: Option<u64>,
    /// How long ago it was last leased or prefetched, in nanoseconds on the store's clock.
    pub age: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it must be written before it can leave.
    pub dirty: bool,
}

impl Candidate {
    pub(crate) fn new(next_use: Option<u64>, age: u64, bytes: u64, dirty: bool) -> Self {
        Candidate { next_use, age, bytes, dirty }
    }
}

/// A policy: the candidate of the highest rank leaves first.
pub trait EvictionPolicy: Send + fmt::Debug {
    /// Returns the rank of a candidate; equal ranks leave in any order.
    fn rank(&self, candidate: &Candidate) -> u64;
}

/// Exact future knowledge before guesses: what no schedule names leaves first, oldest first; then
/// what is used furthest in the future.
#[derive(Debug, Clone, Copy, Default)]
pub struct FurthestUse;

impl EvictionPolicy for FurthestUse {
    fn rank(&self, candidate: &Candidate) -> u64 {
        const UNDECLARED: u64 = 1 << 63;
        match candidate.next_use {
            None => UNDECLARED | candidate.age.min(UNDECLARED - 1),
            Some(position) => position.min(UNDECLARED - 1),
        }
    }
}

/// Least recently used first, whatever has been declared.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastRecentlyUsed;

impl EvictionPolicy for LeastRecentlyUsed {
    fn rank(&self, candidate: &Candidate) -> u64 {
        candidate.age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_future_decides_then_age() {
        let chunk = |next_use, age| Candidate { next_use, age, bytes: 1, dirty: false };
        let in_order = [chunk(None, 9), chunk(None, 1), chunk(Some(7), 99), chunk(Some(3), 0)];
        let ranks: Vec<_> = in_order.iter().map(|c| FurthestUse.rank(c)).collect();
        assert!(ranks.is_sorted_by(|a, b| a > b), "{ranks:?}");
        assert!(LeastRecentlyUsed.rank(&in_order[2]) > LeastRecentlyUsed.rank(&in_order[0]));
    }
}
