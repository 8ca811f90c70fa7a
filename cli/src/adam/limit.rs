//! What no program could beat: the bytes that must move over what the paths carry, measured beside
//! the run with nothing but the raw paths.

use std::time::Duration;

use tensortier::storage::store::Store;

use crate::Failure;
use crate::report::{Limit, StepReport};

/// How long the paths are measured.
const MEASURE: Duration = Duration::from_secs(1);

/// Returns the limit of the steps from the second on and how near they came; none if there was no
/// second step or nothing had to move. Takes about a second.
pub(super) fn limit(steps: &[StepReport], store: &Store) -> Result<Option<Limit>, Failure> {
    let Some(later) = steps.get(1..).filter(|later| !later.is_empty()) else { return Ok(None) };
    let mean = |of: fn(&StepReport) -> f64| later.iter().map(of).sum::<f64>() / later.len() as f64;
    let bytes = mean(|step| (step.reads.bytes + step.writes.bytes) as f64);
    if bytes <= 0.0 {
        return Ok(None);
    }
    let rates = store.measure_paths(MEASURE)?;
    let carried: f64 = rates.iter().map(|rate| rate.read_bps + rate.write_bps).sum();
    let seconds_per_step = bytes / carried.max(1.0);
    let achieved = mean(|step| step.seconds);
    Ok(Some(Limit {
        bytes_per_second: carried,
        seconds_per_step,
        achieved_seconds_per_step: achieved,
        achieved: seconds_per_step / achieved,
    }))
}
