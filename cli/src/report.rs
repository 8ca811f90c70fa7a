//! What a run of `tensortier adam` says of itself: the figures, under the names docs/json.md has.

mod ablation;
mod table;
mod text;

use serde::Serialize;

pub(crate) use ablation::{Ablation, AblationRow, ablation_text};
pub(crate) use text::{plan_text, steps_text, summary_text};

/// All figures of a run; the one object that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Version of these names; grows when one changes its meaning or goes.
    pub(crate) format: u32,
    pub(crate) plan: Plan,
    pub(crate) steps: Vec<StepReport>,
    pub(crate) summary: Summary,
}

impl Report {
    /// The version that this program writes.
    pub(crate) const FORMAT: u32 = 1;

    /// Returns the object as text, one field a line.
    ///
    /// # Errors
    /// If a figure is no number JSON can hold.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// What was decided before the first step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// The file, or what was made up.
    pub(crate) model: String,
    /// How the file is read and why; none for a made-up model.
    pub(crate) source: Option<String>,
    pub(crate) parameters: u64,
    pub(crate) tensors: u64,
    pub(crate) weights_dtype: String,
    pub(crate) gradients_dtype: String,
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    /// `weights` or `fp32`.
    pub(crate) state: String,
    pub(crate) state_bytes_per_parameter: u64,
    pub(crate) state_bytes: u64,
    pub(crate) subgroup_parameters: u64,
    /// n of the closed form.
    pub(crate) subgroups: u64,
    /// c of the closed form: how many stay in memory from one step to the next.
    pub(crate) cached_subgroups: u64,
    pub(crate) host_memory_bytes: u64,
    /// The part of the host memory that is kept for subgroups on their way.
    pub(crate) reserve_bytes: u64,
    /// Memory beside the host memory.
    pub(crate) weights_bytes: u64,
    pub(crate) gradients_bytes: u64,
    pub(crate) order: String,
    pub(crate) evict: String,
    /// Reads and writes per step that the closed form says, from the second step on.
    pub(crate) expected_reads: u64,
    pub(crate) expected_writes: u64,
    pub(crate) kernel: String,
    pub(crate) threads: u64,
    pub(crate) predicted: Predicted,
    pub(crate) paths: Vec<PathPlan>,
    /// What the user should know and may want to change.
    pub(crate) warnings: Vec<String>,
}

/// What the cost model says of a step from the second on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Predicted {
    pub(crate) seconds_per_step: f64,
    /// Of it, how long the slowest path is busy.
    pub(crate) paths_seconds: f64,
    /// How long the kernels take; what is shorter hides behind what is longer.
    pub(crate) kernels_seconds: f64,
}

/// What was decided about one storage path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PathPlan {
    pub(crate) directory: String,
    /// `nvme` or `remote`.
    pub(crate) kind: String,
    /// `uring` or `threads`.
    pub(crate) engine: String,
    pub(crate) engine_why: String,
    /// Whether the page cache is bypassed.
    pub(crate) direct: bool,
    pub(crate) direct_why: String,
    /// How many processes use its device at one time, to start with; none for any number.
    pub(crate) max_processes: Option<u32>,
    pub(crate) max_processes_why: String,
    /// Its part of all subgroups, from 0 to 1.
    pub(crate) share: f64,
    pub(crate) read_bytes_per_second: Option<f64>,
    pub(crate) write_bytes_per_second: Option<f64>,
    pub(crate) quota_bytes: Option<u64>,
    /// Bytes of state that are to lie there.
    pub(crate) placed_bytes: u64,
}

/// A number of subgroups and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Moved {
    pub(crate) subgroups: u64,
    pub(crate) bytes: u64,
}

/// Bytes read from and written to one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct PathMoved {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

/// One step as measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct StepReport {
    /// Counted from 1.
    pub(crate) step: u64,
    pub(crate) seconds: f64,
    pub(crate) parameters_per_second: f64,
    pub(crate) reads: Moved,
    pub(crate) writes: Moved,
    /// Subgroups that were in memory when their turn came.
    pub(crate) hits: Moved,
    /// In the order of the plan's paths.
    pub(crate) paths: Vec<PathMoved>,
    pub(crate) looking_seconds: f64,
    pub(crate) waiting_on_reads_seconds: f64,
    pub(crate) computing_seconds: f64,
    pub(crate) waiting_on_writes_seconds: f64,
}

/// The run as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) steps: u64,
    /// Of all steps together.
    pub(crate) seconds: f64,
    pub(crate) parameters_per_second: f64,
    pub(crate) limit: Option<Limit>,
    /// What the cost model says with the speeds that were learned by the end of the run.
    pub(crate) predicted: Predicted,
    /// Whether reads and writes were those of the plan from the second step on; none if there was
    /// no second step.
    pub(crate) as_expected: Option<bool>,
    /// In the order of the plan's paths.
    pub(crate) paths: Vec<PathMoved>,
    /// How long each path has waited for other processes, in the same order.
    pub(crate) waited_for_processes_seconds: Vec<f64>,
    pub(crate) memory: MemoryReport,
    /// Whether every bit was that of the run in memory; none if that was not asked for.
    pub(crate) verified: Option<bool>,
    /// The first difference.
    pub(crate) difference: Option<String>,
    /// The file that was written.
    pub(crate) saved: Option<String>,
    /// Whether a signal ended the run early.
    pub(crate) interrupted: bool,
}

/// What no program could beat on this machine, and how near this run came.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Limit {
    /// What all paths carried, both ways together, in the mean of measurements after each step.
    pub(crate) bytes_per_second: f64,
    /// The bytes of a step over that.
    pub(crate) seconds_per_step: f64,
    /// The mean of the steps from the second on.
    pub(crate) achieved_seconds_per_step: f64,
    /// Achieved rate over the limit's, 1 is perfect.
    pub(crate) achieved: f64,
}

/// Anonymous and shared memory, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryReport {
    pub(crate) start_bytes: u64,
    pub(crate) peak_above_start_bytes: u64,
    /// Host memory + 64 MiB + weights + gradients; none if the verification held more.
    pub(crate) allowed_above_start_bytes: Option<u64>,
}
