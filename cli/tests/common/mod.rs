//! What the tests of the program share: running it under a limit of time, and looking at what it leaves.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests may panic; not every file uses all"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than any run here should take by far; a hang ends there.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn fixture() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tiny.safetensors").into()
}

/// A directory on a disk: in `/var/tmp`, as `/tmp` may be memory.
pub(crate) fn dir() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tensortier"))
}

/// Runs to the end, or ends the program and fails the test.
pub(crate) fn finish(mut child: Child) -> Output {
    let end = Instant::now() + LIMIT;
    // What is printed here is far less than a pipe holds.
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("hung: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

pub(crate) fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the program in `dir` with the words of `line`; `{D}` in it stands for the directory.
pub(crate) fn run_in(dir: &Path, line: &str) -> Output {
    let words = line.split_whitespace().map(|w| w.replace("{D}", dir.to_str().unwrap()));
    finish(start(program().current_dir(dir).args(words)))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs what must succeed and returns the JSON report.
pub(crate) fn json(dir: &Path, line: &str) -> serde_json::Value {
    let output = run_in(dir, &format!("{line} --json"));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Makes directories of these names in `dir`.
pub(crate) fn make(dir: &Path, names: &[&str]) -> Vec<PathBuf> {
    let make = |name: &&str| {
        let made = dir.join(name);
        std::fs::create_dir(&made).unwrap();
        made
    };
    names.iter().map(make).collect()
}
