//! What no program could beat: the bytes that must move over what the paths carry, measured between
//! the steps with nothing but the raw paths.

use std::time::Duration;

use tensortier::storage::store::{Stats, Store};

use crate::Failure;
use crate::report::Limit;

/// The paths are measured for this part of the time of the step before.
const PART: f64 = 0.25;

/// The shortest and the longest time of one measurement.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// What the paths carried between the steps. A drive that others use as well is never the same for
/// long: one measurement at the end says little of the steps before it.
#[derive(Debug, Default)]
pub(super) struct Yardstick {
    /// Bytes per second that all paths carried both ways together, each time they were measured.
    carried: Vec<f64>,
}

/// What the steps took and moved, in the mean of those from the second on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Achieved {
    /// Seconds of a step.
    pub(super) seconds: f64,
    /// Bytes read and written.
    pub(super) bytes: f64,
}

impl Yardstick {
    /// Measures the paths after a step that took `step`.
    pub(super) fn measure(&mut self, store: &Store, step: Duration) -> Result<(), Failure> {
        let rates = store.measure_paths(step.mul_f64(PART).clamp(SHORTEST, LONGEST))?;
        self.carried.push(rates.iter().map(|rate| rate.read_bps + rate.write_bps).sum());
        Ok(())
    }

    /// Returns the limit and how near the steps came; none if nothing had to move.
    pub(super) fn limit(&self, achieved: Achieved) -> Option<Limit> {
        let carried = self.carried.iter().sum::<f64>() / self.carried.len() as f64;
        if self.carried.is_empty() || achieved.bytes <= 0.0 || carried <= 0.0 {
            return None;
        }
        let seconds_per_step = achieved.bytes / carried;
        Some(Limit {
            bytes_per_second: carried,
            seconds_per_step,
            achieved_seconds_per_step: achieved.seconds,
            achieved: seconds_per_step / achieved.seconds,
        })
    }
}

/// Returns the bytes that all paths read and wrote between two moments.
pub(super) fn moved(before: &Stats, after: &Stats) -> (u64, u64) {
    let sum = |of: fn(&tensortier::storage::path::PathCounters) -> u64| {
        let all = |stats: &Stats| stats.paths.iter().map(of).sum::<u64>();
        all(after) - all(before)
    };
    (sum(|path| path.read_bytes), sum(|path| path.written_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_bytes_over_the_mean_of_what_was_carried() {
        let yardstick = Yardstick { carried: vec![1e9, 3e9] };
        let limit = yardstick.limit(Achieved { seconds: 2.0, bytes: 3e9 }).unwrap();
        assert_eq!(limit.bytes_per_second, 2e9);
        assert_eq!(limit.seconds_per_step, 1.5);
        assert_eq!(limit.achieved, 0.75);
    }

    #[test]
    fn there_is_no_limit_where_nothing_moved_or_nothing_was_measured() {
        let carried = Yardstick { carried: vec![1e9] };
        assert!(carried.limit(Achieved { seconds: 2.0, bytes: 0.0 }).is_none());
        let at = Achieved { seconds: 2.0, bytes: 1.0 };
        assert!(Yardstick::default().limit(at).is_none());
        assert!(Yardstick { carried: vec![0.0] }.limit(at).is_none());
    }
}
