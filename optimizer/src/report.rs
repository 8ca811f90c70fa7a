//! What a step did: counts from the store, so that they are what really moved, and where time went.

use std::time::Duration;

use tensortier_storage::store::Stats;

use crate::plan::Plan;

/// What a step did. Its counts are of the store, so they are what really moved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Elements that were updated.
    pub elements: u64,
    /// Subgroups that were updated and their stored bytes.
    pub updated: Moved,
    /// Read from paths.
    pub reads: Moved,
    /// Given to write-back.
    pub writes: Moved,
    /// In memory when their turn came.
    pub hits: Moved,
    /// Bytes read from and written to each path meanwhile, padding included.
    pub paths: Vec<(u64, u64)>,
    /// Waiting for subgroups to arrive.
    pub waiting_on_reads: Duration,
    /// Updating.
    pub computing: Duration,
    /// Waiting for memory that write-backs free.
    pub waiting_on_writes: Duration,
}

/// A number of subgroups and their stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Moved {
    /// Subgroups.
    pub subgroups: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Times that are added up over a step.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) reads: Duration,
    pub(crate) computing: Duration,
    pub(crate) writes: Duration,
}

impl StepReport {
    /// Makes the report of a step that updated the subgroups `todo`.
    pub(crate) fn new(
        step: u64,
        elapsed: Duration,
        (plan, todo): (&Plan, &[usize]),
        (before, after): (&Stats, &Stats),
        times: &Times,
    ) -> Self {
        let counted = after.counters.since(&before.counters);
        let updated = Moved {
            subgroups: todo.len() as u64,
            bytes: todo.iter().map(|index| plan.subgroup_bytes[*index]).sum(),
        };
        let reads = Moved { subgroups: counted.loads, bytes: counted.load_bytes };
        let writes = Moved { subgroups: counted.write_backs, bytes: counted.write_back_bytes };
        let fresh = Moved { subgroups: counted.zero_fills, bytes: counted.zero_fill_bytes };
        let hits = Moved {
            subgroups: updated.subgroups.saturating_sub(reads.subgroups + fresh.subgroups),
            bytes: updated.bytes.saturating_sub(reads.bytes + fresh.bytes),
        };
        let paths = before.paths.iter().zip(&after.paths);
        StepReport {
            step,
            elapsed,
            elements: todo.iter().map(|index| plan.subgroups[*index].elems).sum(),
            updated,
            reads,
            writes,
            hits,
            paths: paths
                .map(|(b, a)| (a.read_bytes - b.read_bytes, a.written_bytes - b.written_bytes))
                .collect(),
            waiting_on_reads: times.reads,
            computing: times.computing,
            waiting_on_writes: times.writes,
        }
    }
}
