//! From what the libraries report to the figures under their documented names.

use tensortier::optimizer::{Eviction, Machine, Optimizer, Plan, StepReport as Step};
use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::{Explanation, Stats};

use super::model::{Description, Source, dtype};
use crate::Failure;
use crate::args::AdamArgs;
use crate::report::{self, Moved, PathMoved, PathPlan, Predicted, StepReport};

/// Returns the name of an element type as it is written on the command line.
fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "fp32",
        DType::F16 => "fp16",
        DType::BF16 => "bf16",
        _ => "other",
    }
}

/// Returns the plan of a run before its first step.
pub(super) fn plan(
    args: &AdamArgs,
    description: &Description,
    optimizer: &Optimizer,
    places: (&[Path], &Explanation),
    mut warnings: Vec<String>,
) -> Result<report::Plan, Failure> {
    let plan = optimizer.plan();
    let (paths, explanation) = places;
    let predicted = predicted(optimizer, explanation)?;
    warnings.extend(explanation.notes.iter().cloned());
    let n = plan.subgroups.len() as u64;
    let first = description.params.first().map_or(DType::F32, |param| param.weight_dtype);
    let same = description.params.iter().all(|param| param.weight_dtype == first);
    let (model, source) = match &description.source {
        Source::File { file, .. } => (
            file.path().display().to_string(),
            Some(source_text(file.how(), &description.untrained)),
        ),
        Source::MadeUp { .. } => (String::from("made up"), None),
    };
    Ok(report::Plan {
        model,
        source,
        parameters: plan.elements(),
        tensors: description.params.len() as u64,
        weights_dtype: String::from(if same { name(first) } else { "mixed" }),
        gradients_dtype: String::from(name(dtype(args.grads))),
        seed: args.seed,
        steps: args.steps,
        state: state(plan),
        state_bytes_per_parameter: state_bytes_per_parameter(plan),
        state_bytes: plan.state_bytes(),
        subgroup_parameters: plan.subgroup_elems,
        subgroups: n,
        cached_subgroups: plan.kept_after(1).subgroups,
        host_memory_bytes: args.host_memory.0,
        reserve_bytes: plan.reserve_bytes,
        weights_bytes: description.weight_bytes(),
        gradients_bytes: description.gradient_bytes(dtype(args.grads)),
        order: plan.options.order.to_string(),
        evict: plan.options.eviction.to_string(),
        expected_reads: n - plan.kept_after(1).subgroups,
        expected_writes: n - plan.kept_after(2).subgroups,
        kernel: optimizer.isa().to_string(),
        threads: optimizer.threads() as u64,
        predicted,
        paths: path_plans(plan, paths, explanation),
        warnings,
    })
}

/// Returns what the cost model says of the second step and those after it, with the speeds known now.
pub(super) fn predicted(
    optimizer: &Optimizer,
    explanation: &Explanation,
) -> Result<Predicted, Failure> {
    let machine = Machine {
        paths: explanation.paths.iter().map(|path| path.profile).collect(),
        elements_per_second: optimizer.measure_kernels()?,
    };
    let step = optimizer.plan().predict(&machine, 2);
    let slowest = step.paths.iter().map(|path| path.busy).max().unwrap_or_default();
    Ok(Predicted {
        seconds_per_step: step.elapsed.as_secs_f64(),
        paths_seconds: slowest.as_secs_f64(),
        kernels_seconds: step.computing.as_secs_f64(),
    })
}

/// Returns the state precision of all parameters, or that they have several.
fn state(plan: &Plan) -> String {
    let mut forms = plan.forms.iter().map(|form| form.precision);
    let first = forms.next();
    match first {
        Some(first) if forms.all(|precision| precision == first) => first.to_string(),
        _ => String::from("mixed"),
    }
}

/// Returns the bytes per parameter, their mean if there are several precisions.
fn state_bytes_per_parameter(plan: &Plan) -> u64 {
    let sizes = plan.params.iter().map(|param| param.elements().unwrap_or(0));
    let (bytes, elems) = sizes.zip(&plan.forms).fold((0, 0), |(bytes, all), (elems, form)| {
        (bytes + elems * form.bytes_per_element(), all + elems)
    });
    bytes.div_ceil(elems.max(1))
}

fn source_text(how: &str, untrained: &[String]) -> String {
    match untrained {
        [] => how.to_owned(),
        [one] => format!("{how}; {one} is no parameter and is kept as it is"),
        many => format!("{how}; {} tensors are no parameters and are kept as they are", many.len()),
    }
}

fn path_plans(plan: &Plan, paths: &[Path], explanation: &Explanation) -> Vec<PathPlan> {
    let one = |(path, known): (&Path, &tensortier::storage::store::PathExplanation)| PathPlan {
        directory: path.dir.display().to_string(),
        kind: path.kind.to_string(),
        engine: known.capabilities.engine.to_string(),
        engine_why: known.capabilities.engine_why.clone(),
        direct: known.capabilities.direct,
        direct_why: known.capabilities.direct_why.clone(),
        max_processes: known.capabilities.max_processes,
        max_processes_why: known.capabilities.max_processes_why.clone(),
        share: known.share,
        read_bytes_per_second: Some(known.profile.read_bps),
        write_bytes_per_second: Some(known.profile.write_bps),
        quota_bytes: path.quota.map(|quota| quota.0),
        placed_bytes: (plan.state_bytes() as f64 * known.share) as u64,
    };
    paths.iter().zip(&explanation.paths).map(one).collect()
}

/// Returns a step's figures.
pub(super) fn step(step: &Step) -> StepReport {
    let seconds = step.elapsed.as_secs_f64();
    let moved = |m: tensortier::optimizer::Moved| Moved { subgroups: m.subgroups, bytes: m.bytes };
    let path = |(read_bytes, written_bytes): &(u64, u64)| PathMoved {
        read_bytes: *read_bytes,
        written_bytes: *written_bytes,
    };
    StepReport {
        step: step.step,
        seconds,
        parameters_per_second: step.elements as f64 / seconds.max(1e-9),
        reads: moved(step.reads),
        writes: moved(step.writes),
        hits: moved(step.hits),
        paths: step.paths.iter().map(path).collect(),
        looking_seconds: step.looking.as_secs_f64(),
        waiting_on_reads_seconds: step.waiting_on_reads.as_secs_f64(),
        computing_seconds: step.computing.as_secs_f64(),
        waiting_on_writes_seconds: step.waiting_on_writes.as_secs_f64(),
    }
}

/// Returns how long each path has waited for other processes, in seconds.
pub(super) fn waited_for_processes(stats: &Stats) -> Vec<f64> {
    stats.paths.iter().map(|path| path.waited_for_processes.as_secs_f64()).collect()
}

/// Returns what the steps moved on each path.
pub(super) fn paths(steps: &[StepReport]) -> Vec<PathMoved> {
    let mut paths: Vec<PathMoved> = Vec::new();
    for step in steps {
        paths.resize_with(paths.len().max(step.paths.len()), PathMoved::default);
        for (sum, moved) in paths.iter_mut().zip(&step.paths) {
            sum.read_bytes += moved.read_bytes;
            sum.written_bytes += moved.written_bytes;
        }
    }
    paths
}

/// Returns whether the steps from the second on read and wrote what the closed form says, in
/// subgroups and in bytes; none if there is no second step, and without a declared schedule, where it
/// depends on how far ahead memory was freed.
pub(super) fn as_expected(plan: &Plan, steps: &[Step]) -> Option<bool> {
    let (n, all) = (plan.subgroups.len() as u64, plan.state_bytes());
    let expected = |step: &Step| {
        let (before, after) = (plan.kept_after(step.step - 1), plan.kept_after(step.step));
        step.reads.subgroups == n - before.subgroups
            && step.reads.bytes == all - before.bytes
            && step.writes.subgroups == n - after.subgroups
            && step.writes.bytes == all - after.bytes
    };
    let scheduled = plan.options.eviction == Eviction::Schedule;
    let later = steps.get(1..).filter(|later| scheduled && !later.is_empty())?;
    Some(later.iter().all(expected))
}
