//! The exact text and JSON of a sample run: what people read and programs parse does not drift.

use super::super::{Limit, Moved, PathMoved, Report};
use super::*;

fn plan() -> Plan {
    let path = PathPlan {
        directory: "/nvme".into(),
        kind: "nvme".into(),
        engine: "uring".into(),
        engine_why: "io_uring works here".into(),
        direct: true,
        direct_why: "O_DIRECT works with 4096-byte alignment".into(),
        max_processes: None,
        max_processes_why: "a fast local drive".into(),
        share: 0.7143,
        read_bytes_per_second: Some(1.5e9),
        write_bytes_per_second: None,
        quota_bytes: Some(8 << 30),
        placed_bytes: 124 << 20,
    };
    let remote = PathPlan {
        directory: "/shared/scratch".into(),
        kind: "remote".into(),
        engine: "threads".into(),
        engine_why: "io_uring was refused (Operation not permitted)".into(),
        direct: false,
        direct_why: "the file system refuses O_DIRECT (Invalid argument)".into(),
        max_processes: Some(1),
        max_processes_why: "remote: one to start with, then as many as pay".into(),
        share: 0.2857,
        read_bytes_per_second: None,
        quota_bytes: None,
        placed_bytes: 50 << 20,
        ..path.clone()
    };
    Plan {
        model: "model.safetensors".into(),
        source: Some("direct reads (O_DIRECT), past the page cache".into()),
        parameters: 22_713_216,
        tensors: 101,
        weights_dtype: "fp32".into(),
        gradients_dtype: "bf16".into(),
        seed: 0,
        steps: 2,
        state: "weights".into(),
        state_bytes_per_parameter: 8,
        state_bytes: 181_705_728,
        subgroup_parameters: 262_144,
        subgroups: 87,
        cached_subgroups: 22,
        host_memory_bytes: 48 << 20,
        reserve_bytes: 4 << 20,
        weights_bytes: 90_852_864,
        gradients_bytes: 45_426_432,
        order: "alternate".into(),
        evict: "schedule".into(),
        expected_reads: 65,
        expected_writes: 65,
        kernel: "avx512".into(),
        threads: 2,
        predicted: Predicted { seconds_per_step: 1.3, paths_seconds: 1.25, kernels_seconds: 0.05 },
        paths: vec![path, remote],
        warnings: vec!["path 1 is on tmpfs: its bytes take memory; name a disk".into()],
    }
}

fn steps() -> Vec<StepReport> {
    let step = |step, seconds, reads: u64, hits: u64| StepReport {
        step,
        seconds,
        parameters_per_second: 22_713_216.0 / seconds,
        reads: Moved { subgroups: reads, bytes: reads << 21 },
        writes: Moved { subgroups: 65, bytes: 65 << 21 },
        hits: Moved { subgroups: hits, bytes: hits << 21 },
        paths: vec![
            PathMoved { read_bytes: reads << 20, written_bytes: 80 << 20 },
            PathMoved { read_bytes: reads << 20, written_bytes: 50 << 20 },
        ],
        looking_seconds: 0.02,
        waiting_on_reads_seconds: 0.1,
        computing_seconds: 0.05,
        waiting_on_writes_seconds: 0.0123,
    };
    vec![step(1, 0.25, 0, 0), step(2, 1.5, 65, 22)]
}

fn summary() -> Summary {
    Summary {
        steps: 2,
        seconds: 1.75,
        parameters_per_second: 2.0 * 22_713_216.0 / 1.75,
        predicted: Predicted { seconds_per_step: 1.4, paths_seconds: 1.35, kernels_seconds: 0.05 },
        limit: Some(Limit {
            seconds_per_step: 1.2,
            achieved_seconds_per_step: 1.5,
            achieved: 0.8,
            bytes_per_second: 2.5e9,
        }),
        as_expected: Some(true),
        paths: vec![PathMoved { read_bytes: 65 << 20, written_bytes: 160 << 20 }; 2],
        waited_for_processes_seconds: vec![0.0, 0.75],
        memory: MemoryReport {
            start_bytes: 3 << 20,
            peak_above_start_bytes: 200 << 20,
            allowed_above_start_bytes: Some((112 << 20) + 136_279_296),
        },
        verified: Some(true),
        difference: None,
        saved: Some("out.safetensors".into()),
        interrupted: false,
    }
}

#[track_caller]
fn same(text: &str, expected: &str) {
    assert_eq!(text, expected.trim_start_matches('\n'), "\n{text}");
    assert!(text.lines().all(|line| line.len() <= 120), "{text}");
}

#[test]
fn the_plan() {
    same(&plan_text(&plan()), PLAN);
}

const PLAN: &str = "
model    model.safetensors: 22.7M parameters in 101 tensors, fp32 weights; bf16 gradients, seed 0
         direct reads (O_DIRECT), past the page cache
state    the weights are the master (8 B per parameter): 173 MiB in n = 87 subgroups of at most 262144 parameters
memory   48.0 MiB for state: c = 22 subgroups stay from step to step, 4.00 MiB in reserve
         beside it 86.6 MiB weights and 43.3 MiB gradients
order    alternate, evict by schedule: 65 reads and 65 writes per step from the second on
kernel   avx512, 2 threads
time     predicted 1.30 s per step from the second on: paths 1.25 s, kernels 0.050 s
path 0   /nvme (nvme): 71.4 % of the state, 124 MiB
         uring: io_uring works here
         direct: O_DIRECT works with 4096-byte alignment
         read 1.50 GB/s, write at a rate not known, quota 8.00 GiB
path 1   /shared/scratch (remote): 28.6 % of the state, 50.0 MiB
         threads: io_uring was refused (Operation not permitted)
         buffered: the file system refuses O_DIRECT (Invalid argument)
         at most 1 process at a time: remote: one to start with, then as many as pay
         read at a rate not known, write at a rate not known, no quota
warning  path 1 is on tmpfs: its bytes take memory; name a disk
";

#[test]
fn the_steps() {
    same(&steps_text(&steps()), STEPS);
}

const STEPS: &str = "
                                 reads         writes            hits                           seconds
step  seconds  Mparam/s     n    bytes     n    bytes     n     bytes    wait read  compute  wait write
   1    0.250      90.9     0      0 B    65  130 MiB     0       0 B        0.100    0.050       0.012
   2     1.50      15.1    65  130 MiB    65  130 MiB    22  44.0 MiB        0.100    0.050       0.012

                    path 0                path 1
step        read   written        read   written
   1         0 B  80.0 MiB         0 B  50.0 MiB
   2    65.0 MiB  80.0 MiB    65.0 MiB  50.0 MiB
";

#[test]
fn many_paths_take_several_tables_and_no_steps_none() {
    let mut steps = steps();
    for step in &mut steps {
        step.paths = vec![PathMoved { read_bytes: 1 << 30, written_bytes: 1 << 30 }; 9];
    }
    let text = steps_text(&steps);
    assert_eq!(text.matches("written").count(), 9, "{text}");
    assert!(text.contains("path 8") && text.lines().all(|line| line.len() <= 110), "{text}");
    assert!(!steps_text(&[]).contains("path"));
}

#[test]
fn the_summary() {
    same(&summary_text(&plan(), &summary()), SUMMARY);
}

const SUMMARY: &str = "
steps    2 in 1.75 s: 26.0 Mparam/s
limit    1.20 s per step at the 2.50 GB/s the paths carried between the steps; achieved 1.50 s
         achieved / limit = 80 %
         predicted 1.30 s, and 1.40 s with the speeds learned since
moved    reads and writes equal the plan's 65 reads and 65 writes from the second step on
path 0   /nvme: read 65.0 MiB, written 160 MiB
path 1   /shared/scratch: read 65.0 MiB, written 160 MiB, waited 0.750 s for other processes
memory   peak 200 MiB above the start (3.00 MiB), within the allowed 242 MiB
         allowed: 48.0 MiB for state + 64.0 MiB + 86.6 MiB weights + 43.3 MiB gradients
saved    out.safetensors
verified: bit-identical
";

#[test]
fn a_summary_of_what_went_wrong() {
    let mut summary = summary();
    summary.as_expected = Some(false);
    summary.memory.peak_above_start_bytes = 300 << 20;
    summary.interrupted = true;
    summary.verified = Some(false);
    summary.difference = Some("tensor \"a\", element 7".into());
    let text = summary_text(&plan(), &summary);
    assert!(text.ends_with("verification FAILED: tensor \"a\", element 7\n"), "{text}");
    for part in ["before it was interrupted", "DIFFER from the plan's 65", "ABOVE the allowed"] {
        assert!(text.contains(part), "{text}");
    }
    summary.memory.allowed_above_start_bytes = None;
    summary.verified = None;
    let text = summary_text(&plan(), &summary);
    assert!(
        text.contains("the verification's copy included") && !text.contains("FAILED"),
        "{text}"
    );
}

#[test]
fn the_names_of_the_json_are_documented() {
    let report =
        Report { format: Report::FORMAT, plan: plan(), steps: steps(), summary: summary() };
    let page = include_str!("../../../docs/json.md");
    let (of_run, of_ablation) = page.split_once("\n## ").unwrap();
    documented(&report.to_json().unwrap(), of_run);
    documented(&super::super::ablation::sample().to_json().unwrap(), of_ablation);
}

/// Every name in the JSON must stand in its documentation, and every name there in the JSON.
fn documented(json: &str, page: &str) {
    let mut names = Vec::new();
    collect(&serde_json::from_str(json).unwrap(), "", &mut names);
    names.sort();
    names.dedup();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut documented: Vec<String> = rows.map(str::to_owned).collect();
    documented.sort();
    assert_eq!(names, documented);
}

fn collect(value: &serde_json::Value, prefix: &str, names: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if prefix.is_empty() { "" } else { "." };
                let name = format!("{prefix}{dot}{name}");
                collect(value, &name, names);
                names.push(name);
            }
        }
        serde_json::Value::Array(values) => {
            for value in values {
                collect(value, &format!("{prefix}[]"), names);
            }
        }
        _ => {}
    }
}
