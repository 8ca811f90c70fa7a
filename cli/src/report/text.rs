//! The report for people: the plan before the run, a table of its steps, and the summary.

use std::fmt::Write;

use tensortier::storage::units::{Bytes, BytesPerSecond, Count};

use super::table::Table;
use super::{MemoryReport, PathPlan, Plan, Predicted, StepReport, Summary};

/// Returns the plan as a block of text.
pub(crate) fn plan_text(plan: &Plan) -> String {
    let mut block = Block::default();
    block.line(
        "model",
        format!(
            "{}: {} parameters in {} tensors, {} weights; {} gradients, seed {}",
            plan.model,
            Count(plan.parameters),
            plan.tensors,
            plan.weights_dtype,
            plan.gradients_dtype,
            plan.seed
        ),
    );
    if let Some(source) = &plan.source {
        block.line("", source.clone());
    }
    block.line(
        "state",
        format!(
            "{} ({} B per parameter): {} in n = {} subgroups of at most {} parameters",
            match plan.state.as_str() {
                "weights" => "the weights are the master",
                "split" => "the weights are half of the master",
                "mixed" => "several precisions, mean",
                _ => "fp32 master beside the weights",
            },
            plan.state_bytes_per_parameter,
            Bytes(plan.state_bytes),
            plan.subgroups,
            plan.subgroup_parameters
        ),
    );
    block.line(
        "memory",
        format!(
            "{} for state: c = {} subgroups stay from step to step, {} in reserve",
            Bytes(plan.host_memory_bytes),
            plan.cached_subgroups,
            Bytes(plan.reserve_bytes)
        ),
    );
    block.line(
        "",
        format!(
            "beside it {} weights and {} gradients",
            Bytes(plan.weights_bytes),
            Bytes(plan.gradients_bytes)
        ),
    );
    block.line(
        "order",
        format!("{}, evict by {}: {}", plan.order, plan.evict, expected_moves(plan)),
    );
    block.line("kernel", format!("{}, {} threads", plan.kernel, plan.threads));
    let Predicted { seconds_per_step, paths_seconds, kernels_seconds } = plan.predicted;
    block.line(
        "time",
        format!(
            "predicted {} s per step from the second on: paths {} s, kernels {} s",
            seconds(seconds_per_step),
            seconds(paths_seconds),
            seconds(kernels_seconds)
        ),
    );
    for (index, path) in plan.paths.iter().enumerate() {
        path_lines(&mut block, index, path);
    }
    for warning in &plan.warnings {
        block.line("warning", warning.clone());
    }
    block.text
}

/// Subgroups of unequal size leave other numbers of them in memory at the two ends.
fn expected_moves(plan: &Plan) -> String {
    let Plan { expected_reads: reads, expected_writes: writes, .. } = plan;
    if reads == writes {
        return format!("{reads} reads and {writes} writes per step from the second on");
    }
    format!("{reads} reads and {writes} writes in even steps, {writes} and {reads} in odd ones")
}

fn path_lines(block: &mut Block, index: usize, path: &PathPlan) {
    let PathPlan { directory, kind, engine, engine_why, direct_why, .. } = path;
    block.line(
        &format!("path {index}"),
        format!(
            "{directory} ({kind}): {:.1} % of the state, {}",
            path.share * 100.0,
            Bytes(path.placed_bytes)
        ),
    );
    let direct = if path.direct { "direct" } else { "buffered" };
    block.line("", format!("{engine}: {engine_why}"));
    block.line("", format!("{direct}: {direct_why}"));
    if let Some(most) = path.max_processes {
        let processes = if most == 1 { "process" } else { "processes" };
        let why = &path.max_processes_why;
        block.line("", format!("at most {most} {processes} at a time: {why}"));
    }
    let rate = |rate: Option<f64>| match rate {
        Some(rate) => BytesPerSecond(rate).to_string(),
        None => "at a rate not known".into(),
    };
    let (read, write) = (rate(path.read_bytes_per_second), rate(path.write_bytes_per_second));
    let quota =
        path.quota_bytes.map_or("no quota".into(), |quota| format!("quota {}", Bytes(quota)));
    block.line("", format!("read {read}, write {write}, {quota}"));
}

/// Returns the steps as two tables: what each took and moved, and the bytes of each path.
pub(crate) fn steps_text(steps: &[StepReport]) -> String {
    let mut table = Table::default();
    table.group("", &["step", "seconds", "Mparam/s"]);
    for name in ["reads", "writes", "hits"] {
        table.group(name, &["n", "bytes"]);
    }
    table.group("seconds", &["wait read", "compute", "wait write"]);
    for step in steps {
        let mut row = vec![
            step.step.to_string(),
            seconds(step.seconds),
            format!("{:.1}", step.parameters_per_second / 1e6),
        ];
        for moved in [step.reads, step.writes, step.hits] {
            row.extend([moved.subgroups.to_string(), Bytes(moved.bytes).to_string()]);
        }
        row.extend([
            seconds(step.waiting_on_reads_seconds),
            seconds(step.computing_seconds),
            seconds(step.waiting_on_writes_seconds),
        ]);
        table.row(row);
    }
    let paths = steps.iter().map(|step| step.paths.len()).max().unwrap_or(0);
    let mut text = table.render();
    for first in (0..paths).step_by(PATHS_PER_TABLE) {
        let _ = write!(text, "\n{}", paths_table(steps, first).render());
    }
    text
}

/// More would make lines of over 100 characters.
const PATHS_PER_TABLE: usize = 4;

/// Returns what each step moved on a few paths from the `first` on.
fn paths_table(steps: &[StepReport], first: usize) -> Table {
    let mut table = Table::default();
    table.group("", &["step"]);
    let shown = |step: &StepReport| {
        let end = step.paths.len().min(first + PATHS_PER_TABLE);
        step.paths.get(first..end).unwrap_or_default().to_vec()
    };
    for index in 0..steps.iter().map(|step| shown(step).len()).max().unwrap_or(0) {
        table.group(&format!("path {}", first + index), &["read", "written"]);
    }
    for step in steps {
        let mut row = vec![step.step.to_string()];
        for path in shown(step) {
            row.extend([path.read_bytes, path.written_bytes].map(|bytes| Bytes(bytes).to_string()));
        }
        table.row(row);
    }
    table
}

/// Returns the summary; its last line is the verdict of the verification, if there was one.
pub(crate) fn summary_text(plan: &Plan, summary: &Summary) -> String {
    let mut block = Block::default();
    let rate = summary.parameters_per_second / 1e6;
    let ended = if summary.interrupted { " before it was interrupted" } else { "" };
    let time = seconds(summary.seconds);
    block.line("steps", format!("{} in {time} s{ended}: {rate:.1} Mparam/s", summary.steps));
    if let Some(limit) = &summary.limit {
        block.line(
            "limit",
            format!(
                "{} s per step at the {} the paths carried between the steps; achieved {} s",
                seconds(limit.seconds_per_step),
                BytesPerSecond(limit.bytes_per_second),
                seconds(limit.achieved_seconds_per_step),
            ),
        );
        block.line("", format!("achieved / limit = {:.0} %", limit.achieved * 100.0));
        block.line(
            "",
            format!(
                "predicted {} s, and {} s with the speeds learned since",
                seconds(plan.predicted.seconds_per_step),
                seconds(summary.predicted.seconds_per_step)
            ),
        );
    }
    if let Some(expected) = summary.as_expected {
        let are = if expected { "equal" } else { "DIFFER from" };
        let (reads, writes) = (plan.expected_reads, plan.expected_writes);
        let plan = if reads == writes {
            format!("the plan's {reads} reads and {writes} writes")
        } else {
            format!("the plan's {reads} and {writes} in turn")
        };
        block.line("moved", format!("reads and writes {are} {plan} from the second step on"));
    }
    for (index, (path, moved)) in plan.paths.iter().zip(&summary.paths).enumerate() {
        let (read, written) = (Bytes(moved.read_bytes), Bytes(moved.written_bytes));
        let waited = match summary.waited_for_processes_seconds.get(index) {
            Some(waited) if *waited > 0.0 => {
                format!(", waited {} s for other processes", seconds(*waited))
            }
            _ => String::new(),
        };
        let moved = format!("{}: read {read}, written {written}{waited}", path.directory);
        block.line(&format!("path {index}"), moved);
    }
    memory_lines(&mut block, plan, &summary.memory);
    if let Some(saved) = &summary.saved {
        block.line("saved", saved.clone());
    }
    match summary.verified {
        Some(true) => block.text.push_str("verified: bit-identical\n"),
        Some(false) => {
            let difference = summary.difference.as_deref().unwrap_or("an unnamed difference");
            let _ = writeln!(block.text, "verification FAILED: {difference}");
        }
        None => {}
    }
    block.text
}

fn memory_lines(block: &mut Block, plan: &Plan, memory: &MemoryReport) {
    let above = Bytes(memory.peak_above_start_bytes);
    let peak = format!("peak {above} above the start ({})", Bytes(memory.start_bytes));
    let Some(allowed) = memory.allowed_above_start_bytes else {
        block.line("memory", format!("{peak}, the verification's copy included"));
        return;
    };
    let ok = if memory.peak_above_start_bytes <= allowed { "within" } else { "ABOVE" };
    block.line("memory", format!("{peak}, {ok} the allowed {}", Bytes(allowed)));
    block.line(
        "",
        format!(
            "allowed: {} for state + 64.0 MiB + {} weights + {} gradients",
            Bytes(plan.host_memory_bytes),
            Bytes(plan.weights_bytes),
            Bytes(plan.gradients_bytes)
        ),
    );
}

/// Writes a time with three digits that matter.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0}"),
        s if s >= 10.0 => format!("{s:.1}"),
        s if s >= 1.0 => format!("{s:.2}"),
        s => format!("{s:.3}"),
    }
}

/// Lines under a left margin of names.
#[derive(Debug, Default)]
struct Block {
    text: String,
}

impl Block {
    fn line(&mut self, name: &str, value: String) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{name:<9}{value}");
    }
}

#[cfg(test)]
#[path = "sample.rs"]
mod sample;
