//! The cost model: what a step will move over each path and how long it will take, from the plan and
//! the speeds of a machine, before anything is allocated.

use std::time::{Duration, Instant};

use tensortier_storage::path::PathProfile;

use crate::error::Result;
use crate::hyper::Hyper;
use crate::job::WithMaster;
use crate::kernel::{Input, Output, Planes, Scalars};
use crate::optimizer::Optimizer;
use crate::plan::Plan;
use crate::report::Moved;

/// How fast the parts of a machine are.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Each path's speed.
    pub paths: Vec<PathProfile>,
    /// Elements per second that the kernels update when all is in memory.
    pub elements_per_second: f64,
}

/// What a step will do on a machine.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// Subgroups and their bytes that are read.
    pub reads: Moved,
    /// Subgroups and their bytes that are written.
    pub writes: Moved,
    /// What each path does, in the order of [`Machine::paths`].
    pub paths: Vec<PathPrediction>,
    /// Updating.
    pub computing: Duration,
    /// The step: the slowest path or the kernels, whichever takes longer, and the update of the last
    /// subgroup, which nothing overlaps.
    pub elapsed: Duration,
}

/// What a path will do in a step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PathPrediction {
    /// Its share of what is written, 0 to 1.
    pub share: f64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How long that keeps it busy.
    pub busy: Duration,
}

/// Elements of the trial of [`Optimizer::measure_kernels`]: more than the inner caches hold.
const TRIAL_ELEMS: usize = 1 << 20;

/// The best of so many passes counts.
const TRIAL_PASSES: usize = 3;

impl Plan {
    /// Predicts step `t` (counted from 1; from the second on they are alike) on a machine, with every
    /// subgroup updated. Each path gets what its share is of the bytes: the rate it sustains when it
    /// reads as much as it writes, over that of all.
    pub fn predict(&self, machine: &Machine, t: u64) -> Prediction {
        let (n, all) = (self.subgroups.len() as u64, self.state_bytes());
        let before = if t < 2 { None } else { Some(self.kept_after(t - 1)) };
        let after = self.kept_after(t);
        // Moments that were never written are zero, and not read.
        let reads = before.map_or(Moved::default(), |kept| Moved {
            subgroups: n - kept.subgroups,
            bytes: all - kept.bytes,
        });
        let writes = Moved { subgroups: n - after.subgroups, bytes: all - after.bytes };
        let total: f64 = machine.paths.iter().map(PathProfile::share).sum();
        let paths: Vec<_> = machine
            .paths
            .iter()
            .map(|path| {
                let share = path.share() / total;
                let (read, written) = (reads.bytes as f64 * share, writes.bytes as f64 * share);
                PathPrediction {
                    share,
                    read_bytes: read as u64,
                    written_bytes: written as u64,
                    busy: path.busy_time(read, written),
                }
            })
            .collect();
        let update = |elems: u64| {
            let seconds = elems as f64 / machine.elements_per_second.max(1.0);
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        };
        let computing = update(self.elements());
        let slowest = paths.iter().map(|path| path.busy).max().unwrap_or_default();
        let last = self.subgroups.iter().map(|group| group.elems).max().unwrap_or(0);
        let elapsed = computing.max(slowest.saturating_add(update(last)));
        Prediction { reads, writes, paths, computing, elapsed }
    }
}

impl Optimizer {
    /// Measures how many elements per second the kernels update, with 14 MiB of memory of its own and
    /// in some milliseconds: what [`Machine::elements_per_second`] asks for.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`].
    pub fn measure_kernels(&self) -> Result<f64> {
        let n = TRIAL_ELEMS;
        let (mut p, mut m, mut v) = (vec![0.5; n], vec![1e-3; n], vec![1e-6; n]);
        let mut out = vec![0; n];
        let gradient = vec![0x3C00; n];
        let k = Scalars::at(&Hyper::default(), 10, 1.0);
        let mut best = Duration::MAX;
        for _ in 0..TRIAL_PASSES {
            let begin = Instant::now();
            let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax: None };
            let (gradient, out) = (Input::Bf16(&gradient), Output::Bf16(&mut out));
            self.team.update(&k, WithMaster { planes, gradient, out })?;
            best = best.min(begin.elapsed());
        }
        Ok(n as f64 / best.as_secs_f64().max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::param::Param;
    use tensortier_storage::dtype::DType;

    #[test]
    fn a_step_takes_what_its_slowest_path_takes() {
        let params = vec![Param::new("w", [268_435_456], DType::BF16)];
        let plan = Plan::new(params, Options::default(), 805_306_368).unwrap();
        let machine = Machine {
            paths: vec![PathProfile::new(600e6, 600e6, 0.0), PathProfile::new(350e6, 350e6, 0.0)],
            elements_per_second: 500e6,
        };
        let step = plan.predict(&machine, 2);
        let moved = plan.state_bytes() - plan.kept_after(1).bytes;
        assert_eq!(step.reads.bytes, moved);
        let seconds = moved as f64 / 950e6 + plan.subgroup_elems as f64 / 500e6;
        assert!((step.elapsed.as_secs_f64() - seconds).abs() < 1e-3 * seconds);
        assert!((step.paths[0].share - 600.0 / 950.0).abs() < 1e-9);
        // Half duplex takes twice as long; a first step reads nothing.
        let half = Machine { paths: vec![PathProfile::new(950e6, 950e6, 1.0)], ..machine.clone() };
        let ratio = plan.predict(&half, 2).paths[0].busy.as_secs_f64() * 950e6 / moved as f64;
        assert!((ratio - 2.0).abs() < 1e-6, "{ratio}");
        assert_eq!(plan.predict(&machine, 1).reads, Moved::default());
        // Where all stays in memory the kernels are what takes time.
        let params = vec![Param::new("w", [1_000_000], DType::BF16)];
        let small = Plan::new(params, Options::default(), 1 << 30).unwrap();
        let step = small.predict(&machine, 3);
        assert_eq!((step.reads, step.writes), (Moved::default(), Moved::default()));
        assert_eq!(step.elapsed, Duration::from_millis(2));
    }
}
