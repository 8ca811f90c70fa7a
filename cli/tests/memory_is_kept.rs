//! The memory a run takes, as it measures it itself, stays within what it was given.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use common::{dir, json, make};

#[test]
fn the_peak_above_the_start_is_within_what_is_allowed() {
    let dir = dir();
    make(dir.path(), &["a", "b"]);
    let line = "adam --params 20M --steps 3 --host-memory 32MiB --path a --path b";
    let report = json(dir.path(), line);
    let memory = &report["summary"]["memory"];
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    let held = 20_000_000 * (2 + 2);
    assert_eq!(bytes("allowed_above_start_bytes"), (32 << 20) + (64 << 20) + held);
    let (peak, allowed) = (bytes("peak_above_start_bytes"), bytes("allowed_above_start_bytes"));
    assert!(peak <= allowed, "{peak} of {allowed}");
    // What is held was seen at all.
    assert!(peak > held, "{peak}");
}
