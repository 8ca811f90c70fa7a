//! Runs a model under many schedules.

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Any number would do; a fixed one makes a failure come again.
const SEED: u64 = 2026;
/// How many schedules a model runs under, half of them with few changes at odd places.
const SCHEDULES: usize = 20_000;
/// No schedule of a model that ends takes so many steps.
const MOST_STEPS: usize = 200_000;

/// Runs a model under `SCHEDULES / cost` schedules, or as many as TENSORTIER_SCHEDULES says.
pub(crate) fn check(cost: usize, model: impl Fn() + Send + Sync + 'static) {
    let said = std::env::var("TENSORTIER_SCHEDULES").ok().and_then(|n| n.parse().ok());
    let half = said.unwrap_or(SCHEDULES / cost).div_ceil(2);
    let model = Arc::new(model);
    run(RandomScheduler::new_from_seed(SEED, half), Arc::clone(&model));
    run(PctScheduler::new_from_seed(SEED, 3, half), model);
}

fn run(scheduler: impl Scheduler + 'static, model: Arc<impl Fn() + Send + Sync + 'static>) {
    let mut config = Config::new();
    config.stack_size = 512 << 10;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    Runner::new(scheduler, config).run(move || model());
}

/// Returns one of `0..n`, as the schedule has it.
pub(crate) fn any_of(n: u32) -> u32 {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..n)
}
