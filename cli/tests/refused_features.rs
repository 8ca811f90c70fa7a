//! A system that refuses io_uring, a file system that refuses direct transfers: the same command
//! verifies, and the plan says what was chosen and why.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{dir, finish, make, names, program, start, text};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Set for the copy of this program that forbids itself io_uring and becomes the one to be tested.
const LINE: &str = "RUN_WITHOUT_URING";
const EPERM: u32 = 1;
const IO_URING_SETUP: i64 = 425;

/// Runs the program in `dir` where io_uring is forbidden.
fn without_uring(dir: &std::path::Path, line: &str) -> std::process::Output {
    let mut again = Command::new(std::env::current_exe().unwrap());
    let test = ["--exact", "io_uring_refused_by_the_system", "--nocapture", "--test-threads=1"];
    finish(start(again.args(test).env(LINE, line).current_dir(dir)))
}

/// In the copy: applies the filter and becomes the program; does not return.
fn become_the_program(line: &str) -> ! {
    let rules = BTreeMap::from([(IO_URING_SETUP, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let (allow, refuse) = (SeccompAction::Allow, SeccompAction::Errno(EPERM));
    let filter: BpfProgram =
        SeccompFilter::new(rules, allow, refuse, arch).unwrap().try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
    panic!("{}", program().args(line.split_whitespace()).exec());
}

/// Returns the JSON object of an output that the test harness put a line before.
fn report(output: &std::process::Output) -> serde_json::Value {
    let said = text(&output.stdout);
    let (_, object) = said.split_once("\n{").unwrap_or_else(|| panic!("{said}"));
    serde_json::from_str(&format!("{{{object}")).unwrap()
}

#[test]
fn io_uring_refused_by_the_system() {
    if let Ok(line) = std::env::var(LINE) {
        // The harness has not ended its own line yet.
        println!();
        become_the_program(&line);
    }
    let dir = dir();
    make(dir.path(), &["a"]);
    let line = "adam --params 3M --steps 2 --path a --host-memory 3MiB --verify --json";
    let output = without_uring(dir.path(), line);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = report(&output);
    assert_eq!(report["summary"]["verified"], true);
    let path = &report["plan"]["paths"][0];
    assert_eq!(path["engine"], "threads");
    let why = path["engine_why"].as_str().unwrap();
    assert!(why.contains("io_uring_setup") && why.contains("seccomp"), "{why}");

    let refused = without_uring(dir.path(), &format!("{line} --engine uring"));
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("auto or threads"), "{error}");
    assert_eq!(error.lines().filter(|line| line.starts_with("tensortier: ")).count(), 1);
    assert!(names(&dir.path().join("a")).is_empty());
}

/// Runs the program with `arguments` where `$D` is mounted so; none where that is not permitted.
fn mounted(test: &str, mount: &str, arguments: &str) -> Option<std::process::Output> {
    let allowed = Command::new("unshare").args(["-Urm", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!("{test}: skipped, this system gives no mount namespaces");
        return None;
    }
    let dir = dir();
    let run = format!(
        "{mount} && \"$T\" {arguments}; code=$?; ls -A $D | grep tensortier- >&2; exit $code"
    );
    let mut shell = Command::new("unshare");
    shell.args(["-Urm", "sh", "-c", &run]);
    shell.env("D", dir.path()).env("T", env!("CARGO_BIN_EXE_tensortier"));
    Some(finish(start(&mut shell)))
}

const JOB: &str = "adam --params 3M --steps 2 --path $D --host-memory 3MiB --verify";

#[test]
fn direct_transfers_refused_by_the_file_system() {
    let name = "direct_transfers_refused_by_the_file_system";
    let line = format!("{JOB} --json");
    let Some(output) = mounted(name, "mount -t ramfs ramfs $D", &line) else { return };
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["summary"]["verified"], true);
    let path = &report["plan"]["paths"][0];
    assert_eq!(path["direct"], false);
    assert!(path["direct_why"].as_str().unwrap().contains("O_DIRECT"), "{path}");
    let warnings = report["plan"]["warnings"].to_string();
    assert!(warnings.contains("ramfs") && warnings.contains("takes memory"), "{warnings}");
}

#[test]
fn a_file_system_without_room_or_read_only_is_one_clear_line() {
    let name = "a_file_system_without_room_or_read_only_is_one_clear_line";
    for (mount, part) in [
        ("mount -t tmpfs -o size=12m tmpfs $D", "free space"),
        ("mount -t tmpfs -o ro tmpfs $D", "read-only"),
        ("mount -t tmpfs -o size=64k tmpfs $D && head -c 65536 /dev/zero > $D/full", "free space"),
    ] {
        let Some(output) = mounted(name, mount, JOB) else { return };
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{mount}: {error}");
        assert_eq!(error.lines().count(), 1, "{mount}: {error}");
        assert!(error.starts_with("tensortier: ") && error.contains(part), "{mount}: {error}");
    }
}
