//! What each mechanism brings: the same steps in the way of ZeRO-3 with NVMe offload, and then with one
//! mechanism added after the other.

use std::sync::atomic::Ordering;
use std::time::Instant;

use indicatif::ProgressBar;
use tensortier::optimizer::{
    Accumulation, Error, Eviction, GradientPlace, Optimizer, Options, Order, Plan, StatePrecision,
    StepOptions,
};
use tensortier::storage::arena::granules_up;
use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::Store;

use super::limit::{Achieved, Yardstick, moved};
use super::model::{Description, HandedOver, Model, dtype};
use super::run::{CLOSE_GRACE, failed_step, note, options, print, say, stop_on_signals};
use super::{places, progress};
use crate::args::AdamArgs;
use crate::report::{Ablation, AblationRow, ablation_text};
use crate::{Failure, Outcome};

/// Subgroups' gradients that find room in memory while they are written: one taken, one leaving.
const GRADIENTS_IN_MEMORY: u64 = 3;

/// One way of running the steps.
#[derive(Debug, Clone, Copy)]
struct Row {
    name: &'static str,
    order: Order,
    eviction: Eviction,
    read_ahead: Option<u32>,
    /// Whether gradients are written as fp32 in the backward pass and read back.
    gradients_as_fp32: bool,
    all_paths: bool,
    split: bool,
}

/// Each way is the one before it with one mechanism more.
fn rows(paths: usize, can_split: bool) -> Vec<Row> {
    let zero3 = Row {
        name: "as ZeRO-3 with NVMe offload",
        order: Order::Ascending,
        eviction: Eviction::Lru,
        read_ahead: Some(1),
        gradients_as_fp32: true,
        all_paths: false,
        split: false,
    };
    let alternate = Row {
        name: "+ alternating order, cached",
        order: Order::Alternate,
        eviction: Eviction::Schedule,
        ..zero3
    };
    let narrow = Row { name: "+ 16-bit gradients", gradients_as_fp32: false, ..alternate };
    let multi = Row { name: "+ all paths", all_paths: true, ..narrow };
    let last = if paths > 1 { multi } else { narrow };
    let deep = Row { name: "+ deep pipeline", read_ahead: None, ..last };
    let split = Row { name: "+ split master", split: true, ..deep };
    let mut rows = vec![zero3, alternate, narrow];
    rows.extend((paths > 1).then_some(multi));
    rows.push(deep);
    rows.extend(can_split.then_some(split));
    rows
}

/// Runs all ways and prints the table.
pub(super) fn run(args: &AdamArgs) -> Result<Outcome, Failure> {
    let stop = stop_on_signals()?;
    let description = Description::new(args)?;
    let paths = places::paths(args);
    let dtypes = || description.params.iter().map(|param| param.weight_dtype);
    let can_split = dtypes().any(|d| d == DType::BF16) && dtypes().all(|d| d != DType::F16);
    let rows = rows(paths.len(), can_split);
    let elements: u64 = description.params.iter().filter_map(|param| param.elements()).sum();
    let bar = progress::bar(elements * args.steps * rows.len() as u64, "updating");
    let mut done: Vec<AblationRow> = Vec::new();
    let mut sums = Vec::new();
    for row in rows {
        let used = if row.all_paths { &paths[..] } else { &paths[..1] };
        let mut model = description.load(dtype(args.grads))?;
        let stopped = || stop.load(Ordering::Relaxed);
        let outcome = Run::new(args, row, &description, used)?.steps(&mut model, &bar, stopped)?;
        let Some(figures) = outcome else {
            bar.finish_and_clear();
            note("interrupted: the state on the paths was removed");
            return Ok(Outcome::Interrupted);
        };
        sums.push(model.checksum());
        let first = done.first().map_or(figures.seconds, |first| first.seconds);
        let before = done.last().map_or(figures.seconds, |last| last.seconds);
        done.push(AblationRow {
            times_first: first / figures.seconds,
            times_before: before / figures.seconds,
            ..figures
        });
    }
    bar.finish_and_clear();
    let ablation = Ablation {
        format: Ablation::FORMAT,
        parameters: elements,
        host_memory_bytes: args.host_memory.0,
        steps: args.steps,
        paths: paths.iter().map(|path| path.dir.display().to_string()).collect(),
        rows: done,
        same_weights: sums.windows(2).all(|pair| pair[0] == pair[1]),
    };
    say(args, &ablation_text(&ablation));
    if args.json {
        print(&ablation.to_json()?);
        print("\n");
    }
    Ok(if ablation.same_weights { Outcome::Done } else { Outcome::Different })
}

/// One way under way.
struct Run<'a> {
    args: &'a AdamArgs,
    row: Row,
    store: Store,
    optimizer: Optimizer,
    elements: u64,
}

impl<'a> Run<'a> {
    fn new(
        args: &'a AdamArgs,
        row: Row,
        description: &Description,
        paths: &[Path],
    ) -> Result<Self, Failure> {
        let options = Options {
            order: row.order,
            eviction: row.eviction,
            read_ahead: row.read_ahead,
            precision: row.split.then_some(StatePrecision::SplitMaster),
            gradients: Accumulation { dtype: DType::F32, place: GradientPlace::Store },
            ..options(args)
        };
        let plan = Plan::new(description.params.clone(), options.clone(), args.host_memory.0)?;
        let plan = if row.gradients_as_fp32 {
            // Of the same memory, some goes to gradients on their way.
            let largest = plan.subgroups.iter().map(|group| granules_up(group.elems * 4)).max();
            let own = args.host_memory.0.saturating_sub(GRADIENTS_IN_MEMORY * largest.unwrap_or(0));
            let subgroup_elems = Some(plan.subgroup_elems);
            Plan::new(description.params.clone(), Options { subgroup_elems, ..options }, own)?
        } else {
            plan
        };
        places::check_quotas(paths, &plan)?;
        let store = places::open(args, paths)?;
        let elements = plan.elements();
        Ok(Run { args, row, optimizer: Optimizer::open(store.clone(), plan)?, store, elements })
    }

    /// Runs all steps and returns the means from the second on; none if a signal ended them.
    fn steps(
        mut self,
        model: &mut Model,
        bar: &ProgressBar,
        stopped: impl Fn() -> bool,
    ) -> Result<Option<AblationRow>, Failure> {
        let (mut seconds, mut read, mut written) = (0.0, 0, 0);
        let mut yardstick = Yardstick::default();
        for step in 1..=self.args.steps {
            model.make_gradients(self.args.seed, step, self.optimizer.threads());
            let (before, begin) = (self.store.stats(), Instant::now());
            match self.step(model, &stopped) {
                Ok(()) => {}
                Err(Error::Interrupted { cause: None, .. }) => return Ok(None),
                Err(error) => {
                    bar.finish_and_clear();
                    return Err(failed_step(error));
                }
            }
            let elapsed = begin.elapsed();
            if stopped() {
                return Ok(None);
            }
            if step > 1 {
                let moved = moved(&before, &self.store.stats());
                (read, written) = (read + moved.0, written + moved.1);
                seconds += elapsed.as_secs_f64();
            }
            yardstick.measure(&self.store, elapsed)?;
            bar.inc(self.elements);
        }
        let counted = (self.args.steps - 1) as f64;
        let seconds = seconds / counted;
        let (read_bytes, written_bytes) = (read as f64 / counted, written as f64 / counted);
        let bytes = read_bytes + written_bytes;
        drop(self.optimizer);
        self.store.close(CLOSE_GRACE)?;
        Ok(Some(AblationRow {
            name: self.row.name.to_owned(),
            seconds,
            read_bytes: read_bytes as u64,
            written_bytes: written_bytes as u64,
            bytes_per_second: bytes / seconds,
            achieved: yardstick.limit(Achieved { seconds, bytes }).map_or(1.0, |it| it.achieved),
            times_first: 1.0,
            times_before: 1.0,
        }))
    }

    /// Makes one step: the hand-over as a backward pass does it, and the update.
    fn step(&mut self, model: &mut Model, stopped: &impl Fn() -> bool) -> Result<(), Error> {
        let options = StepOptions { max_norm: self.args.max_norm, ..StepOptions::default() };
        if !self.row.gradients_as_fp32 {
            return self.optimizer.step_with(model, &options).map(|_| ());
        }
        // Gradients of the last parameters come first.
        for param in (0..model.params.len()).rev() {
            if stopped() {
                return Ok(());
            }
            let elems = model.params[param].elements().unwrap_or(0);
            self.optimizer.accumulate(param, 0..elems, model.gradient(param), true)?;
        }
        self.optimizer.step_with(&mut HandedOver(model), &options).map(|_| ())
    }
}
