//! What a step did: counts from the store, so that they are what really moved, and where time went.

use std::time::Duration;

use tensortier_storage::store::Stats;

use crate::step_options::Norm;

/// What a step did. Its counts are of the store, so they are what really moved.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// Whether it was applied, or skipped for gradients that are not finite; a skipped step does not
    /// count, and the next has its number.
    pub outcome: Outcome,
    /// The norm of all gradients, still multiplied by the loss scale, if the step asked for it.
    pub norm: Option<Norm>,
    /// What the gradients were multiplied with: the clip factor over the loss scale.
    pub gradient_factor: f64,
    /// How long the calls took that made the step.
    pub elapsed: Duration,
    /// Elements that were updated: those of parameters that had a gradient.
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
    /// Looking at the gradients and weights before the first change.
    pub looking: Duration,
    /// Waiting for subgroups to arrive.
    pub waiting_on_reads: Duration,
    /// Updating.
    pub computing: Duration,
    /// Waiting for memory that write-backs free.
    pub waiting_on_writes: Duration,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It was applied.
    Applied,
    /// Nothing was changed: gradients are not finite.
    Skipped {
        /// The first parameter with such a gradient, if it is one of this rank.
        param: Option<String>,
    },
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
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) looking: Duration,
    pub(crate) reads: Duration,
    pub(crate) computing: Duration,
    pub(crate) writes: Duration,
    /// All of it.
    pub(crate) elapsed: Duration,
}

/// What is counted of a step from its announcement on.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) before: Stats,
    pub(crate) times: Times,
}

/// What a step updated: elements, subgroups and their bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Updated {
    pub(crate) elements: u64,
    pub(crate) moved: Moved,
}

impl StepReport {
    /// Makes the report of a step that came to its end.
    pub(crate) fn new(
        step: u64,
        (outcome, norm, gradient_factor): (Outcome, Option<Norm>, f64),
        updated: Updated,
        (begun, after): (&Begun, &Stats),
    ) -> Self {
        let Begun { before, times } = begun;
        let counted = after.counters.since(&before.counters);
        let reads = Moved { subgroups: counted.loads, bytes: counted.load_bytes };
        let writes = Moved { subgroups: counted.write_backs, bytes: counted.write_back_bytes };
        let fresh = Moved { subgroups: counted.zero_fills, bytes: counted.zero_fill_bytes };
        let Updated { elements, moved: updated } = updated;
        let hits = Moved {
            subgroups: updated.subgroups.saturating_sub(reads.subgroups + fresh.subgroups),
            bytes: updated.bytes.saturating_sub(reads.bytes + fresh.bytes),
        };
        let paths = before.paths.iter().zip(&after.paths);
        StepReport {
            step,
            outcome,
            norm,
            gradient_factor,
            elapsed: times.elapsed,
            elements,
            updated,
            reads,
            writes,
            hits,
            paths: paths
                .map(|(b, a)| (a.read_bytes - b.read_bytes, a.written_bytes - b.written_bytes))
                .collect(),
            looking: times.looking,
            waiting_on_reads: times.reads,
            computing: times.computing,
            waiting_on_writes: times.writes,
        }
    }
}
