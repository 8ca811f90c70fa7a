//! What no program could beat: the bytes that must move each way over what the paths carry.

use tensortier::storage::store::PathExplanation;

use crate::report::{Limit, StepReport};

/// Returns the limit of a step that reads and writes this much, and how near the steps from the
/// second on came. The rates are those the paths showed in this run while their queues were full
/// (a cap, where one is set). None if nothing had to move or there was no second step.
pub(super) fn limit(steps: &[StepReport], paths: &[PathExplanation]) -> Option<Limit> {
    let later = steps.get(1..).filter(|later| !later.is_empty())?;
    let count = later.len() as f64;
    let mean = |of: fn(&StepReport) -> f64| later.iter().map(of).sum::<f64>() / count;
    let (reads, writes) = (mean(|s| s.reads.bytes as f64), mean(|s| s.writes.bytes as f64));
    let total: f64 = paths.iter().map(|path| path.profile.share()).sum();
    let busy = |path: &PathExplanation| {
        let part = path.profile.share() / total;
        path.profile.busy_time(reads * part, writes * part).as_secs_f64()
    };
    let seconds_per_step = paths.iter().map(busy).fold(0.0, f64::max);
    if seconds_per_step <= 0.0 {
        return None;
    }
    let achieved = mean(|step| step.seconds);
    Some(Limit {
        seconds_per_step,
        achieved_seconds_per_step: achieved,
        achieved: seconds_per_step / achieved,
        set_by: String::from("paths"),
    })
}
