//! The run from its options to its exit code.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use tensortier::optimizer::{
    Error, Eviction, Hyper, Optimizer, Options, Order, Plan, StatePrecision, StepOptions,
    StepReport,
};
use tensortier::storage::error::Error as StorageError;
use tensortier::storage::source::TensorFileWriter;
use tensortier::storage::store::Store;

use super::limit::{Achieved, Yardstick};
use super::model::{Description, Model, dtype};
use super::verify::{Verdict, Verification};
use super::{figures, places, progress, save};
use crate::args::{AdamArgs, EvictArg, OrderArg, StateArg, Subgroup};
use crate::memory::PeakTracker;
use crate::report::{self, MemoryReport, Report, Summary, plan_text, steps_text, summary_text};
use crate::{Failure, Outcome};

/// How often the memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_millis(10);

/// How long the paths may take to finish what is under way at the end.
pub(super) const CLOSE_GRACE: Duration = Duration::from_secs(30);

/// What a run may hold beside the host memory, weights and gradients.
const ALLOWANCE_BYTES: u64 = 64 << 20;

/// Runs the steps and prints the plan, the steps and the summary.
pub(super) fn run(args: &AdamArgs) -> Result<Outcome, Failure> {
    let tracker = PeakTracker::start(MEMORY_INTERVAL)?;
    let stop = stop_on_signals()?;
    let description = Description::new(args)?;
    let plan = Plan::new(description.params.clone(), options(args), args.host_memory.0)?;
    let paths = places::paths(args);
    places::check_quotas(&paths, &plan)?;
    // Before anything is probed: a name that cannot be written is known at once.
    let writer = args.save.as_ref().map(|path| save::create(path, &description)).transpose()?;
    let warnings = places::left_behind(&paths);
    let store = places::open(args, &paths)?;
    let optimizer = Optimizer::open(store.clone(), plan)?;
    let explanation = store.explain();
    let plan = figures::plan(args, &description, &optimizer, (&paths, &explanation), warnings)?;
    say(args, &plan_text(&plan));

    let mut job = Job { args, description, optimizer, stop, writer, steps: Vec::new() };
    let mut model = job.description.load(dtype(args.grads))?;
    let mut yardstick = Yardstick::default();
    let interrupted = job.steps(&mut model, (&store, &mut yardstick))?;
    let steps: Vec<_> = job.steps.iter().map(figures::step).collect();
    say(args, &format!("\n{}\n", steps_text(&steps)));
    let memory = memory(args, &tracker, &job.description);
    let mut summary = Summary {
        steps: steps.len() as u64,
        seconds: steps.iter().map(|step| step.seconds).sum(),
        parameters_per_second: 0.0,
        predicted: figures::predicted(&job.optimizer, &store.explain())?,
        limit: achieved(&steps).filter(|_| !interrupted).and_then(|it| yardstick.limit(it)),
        as_expected: figures::as_expected(job.optimizer.plan(), &job.steps),
        paths: figures::paths(&steps),
        waited_for_processes_seconds: figures::waited_for_processes(&store.stats()),
        memory,
        verified: None,
        difference: None,
        saved: None,
        interrupted,
    };
    let elements: u64 = job.steps.iter().map(|step| step.elements).sum();
    summary.parameters_per_second = elements as f64 / summary.seconds.max(1e-9);
    if !interrupted {
        job.check_and_save(&model, &mut summary)?;
    }
    drop(job);
    store.close(CLOSE_GRACE)?;
    say(args, &summary_text(&plan, &summary));
    let outcome = outcome(&summary);
    if summary.interrupted {
        note("interrupted: the state on the paths was removed");
    }
    if args.json {
        print(&Report { format: Report::FORMAT, plan, steps, summary }.to_json()?);
        print("\n");
    }
    Ok(outcome)
}

fn outcome(summary: &Summary) -> Outcome {
    match (summary.verified, summary.interrupted) {
        (Some(false), _) => Outcome::Different,
        (_, true) => Outcome::Interrupted,
        _ => Outcome::Done,
    }
}

/// Text for people goes to standard output unless a program is to read it.
pub(super) fn say(args: &AdamArgs, text: &str) {
    if !args.json {
        print(text);
    }
}

pub(super) fn print(text: &str) {
    // A reader that went away (`| head`) is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

pub(super) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "tensortier: {line}");
}

/// The first signal asks the run to stop, a second one ends the process at once.
pub(super) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

pub(super) fn options(args: &AdamArgs) -> Options {
    Options {
        groups: vec![hyper(args)],
        precision: match args.state {
            StateArg::Auto => None,
            StateArg::Weights => Some(StatePrecision::Weights),
            StateArg::Fp32 => Some(StatePrecision::Fp32),
            StateArg::Split => Some(StatePrecision::SplitMaster),
        },
        subgroup_elems: match args.subgroup {
            Subgroup::Auto => None,
            Subgroup::Of(count) => Some(count.0),
        },
        order: match args.order {
            OrderArg::Alternate => Order::Alternate,
            OrderArg::Ascending => Order::Ascending,
            OrderArg::Descending => Order::Descending,
        },
        eviction: match args.evict {
            EvictArg::Schedule => Eviction::Schedule,
            EvictArg::Lru => Eviction::Lru,
        },
        resident: args.resident,
        read_ahead: args.read_ahead,
        threads: args.threads.map(|threads| threads as usize),
        ..Options::default()
    }
}

/// Returns the means of the steps from the second on; none if there is no second step.
fn achieved(steps: &[report::StepReport]) -> Option<Achieved> {
    let later = steps.get(1..).filter(|later| !later.is_empty())?;
    let mean =
        |of: fn(&report::StepReport) -> f64| later.iter().map(of).sum::<f64>() / later.len() as f64;
    let bytes = mean(|step| (step.reads.bytes + step.writes.bytes) as f64);
    Some(Achieved { seconds: mean(|step| step.seconds), bytes })
}

fn hyper(args: &AdamArgs) -> Hyper {
    Hyper {
        lr: args.lr,
        beta1: args.beta1,
        beta2: args.beta2,
        eps: args.eps,
        weight_decay: args.weight_decay,
        ..Hyper::default()
    }
}

fn memory(args: &AdamArgs, tracker: &PeakTracker, description: &Description) -> MemoryReport {
    let start_bytes = tracker.start_bytes();
    let held = description.weight_bytes() + description.gradient_bytes(dtype(args.grads));
    MemoryReport {
        start_bytes,
        peak_above_start_bytes: tracker.peak_bytes().saturating_sub(start_bytes),
        allowed_above_start_bytes: Some(args.host_memory.0 + ALLOWANCE_BYTES + held),
    }
}

/// Words a failed step for somebody who runs the program: the library's advice to call it again is
/// of no use to him.
pub(super) fn failed_step(error: Error) -> Failure {
    match error {
        Error::Interrupted { step, done, subgroups, cause: Some(cause) } => {
            let why = match *cause {
                Error::Storage(StorageError::NoSpace { tried, .. }) => format!(
                    "no path has room ({}); free space, raise a quota or --host-memory, or add a \
                     path",
                    tried.join("; ")
                ),
                cause => cause.to_string(),
            };
            format!("step {step} failed after {done} of {subgroups} subgroups: {why}").into()
        }
        other => other.into(),
    }
}

/// A run under way.
struct Job<'a> {
    args: &'a AdamArgs,
    description: Description,
    optimizer: Optimizer,
    stop: Arc<AtomicBool>,
    writer: Option<TensorFileWriter>,
    steps: Vec<StepReport>,
}

impl Job<'_> {
    /// Runs all steps, and measures the paths after each; returns whether a signal ended them early.
    fn steps(
        &mut self,
        model: &mut Model,
        (store, yardstick): (&Store, &mut Yardstick),
    ) -> Result<bool, Failure> {
        let elements = self.optimizer.plan().elements();
        let bar = progress::bar(elements * self.args.steps, "updating");
        let threads = self.optimizer.threads();
        for step in 1..=self.args.steps {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            model.make_gradients(self.args.seed, step, threads);
            let (stop, bar_of_step) = (Arc::clone(&self.stop), bar.clone());
            model.after_subgroup = Box::new(move |done, of| {
                let here = (elements as u128 * u128::from(done) / u128::from(of.max(1))) as u64;
                bar_of_step.set_position((step - 1) * elements + here);
                !stop.load(Ordering::Relaxed)
            });
            let options = StepOptions { max_norm: self.args.max_norm, ..StepOptions::default() };
            match self.optimizer.step_with(model, &options) {
                Ok(report) => {
                    if self.args.steps > 1 && !self.stop.load(Ordering::Relaxed) {
                        yardstick.measure(store, report.elapsed)?;
                    }
                    self.steps.push(report);
                }
                Err(Error::Interrupted { cause: None, done, subgroups, .. }) => {
                    bar.finish_and_clear();
                    note(&format!("stopped in step {step} after {done} of {subgroups} subgroups"));
                    return Ok(true);
                }
                Err(error) => {
                    bar.finish_and_clear();
                    return Err(failed_step(error));
                }
            }
        }
        bar.finish_and_clear();
        Ok(false)
    }

    /// Verifies and saves, as far as that was asked for.
    fn check_and_save(&mut self, model: &Model, summary: &mut Summary) -> Result<(), Failure> {
        if self.args.verify {
            let bar =
                progress::bar(self.optimizer.plan().elements() * self.args.steps, "verifying");
            let verdict = Verification {
                description: &self.description,
                model,
                optimizer: &self.optimizer,
                hyper: hyper(self.args),
                factors: self.steps.iter().map(|step| step.gradient_factor).collect(),
                seed: self.args.seed,
                steps: self.args.steps,
                grad_dtype: dtype(self.args.grads),
                stop: &self.stop,
            }
            .run(self.optimizer.threads(), &bar)?;
            bar.finish_and_clear();
            match verdict {
                Verdict::Same => summary.verified = Some(true),
                Verdict::Different(what) => {
                    summary.verified = Some(false);
                    summary.difference = Some(what);
                    return Ok(());
                }
                Verdict::Interrupted => {
                    summary.interrupted = true;
                    return Ok(());
                }
            }
        }
        if let (Some(writer), Some(path)) = (self.writer.take(), &self.args.save) {
            save::finish(writer, &self.description, model)?;
            summary.saved = Some(path.display().to_string());
        }
        Ok(())
    }
}
