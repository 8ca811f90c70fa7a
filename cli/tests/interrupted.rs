//! A run that is ended from outside: a signal cleans up and says so; what a kill leaves is shown by
//! the next run and by `ls`, and removed by `gc`, which touches nothing that lives.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use common::{dir, finish, json, make, names, program, run_in, start, text};
use rustix::process::{Pid, Signal, kill_process};

/// A run that is limited to take minutes, in its steps: it has put bytes on its paths.
fn running(dir: &Path) -> Child {
    make(dir, &["a", "b"]);
    let line = "adam --params 3M --steps 50 --host-memory 3MiB --path a,read=2MB/s,write=2MB/s \
                --path b,read=2MB/s,write=2MB/s --save out";
    let child = start(program().current_dir(dir).args(line.split_whitespace()));
    let end = Instant::now() + Duration::from_secs(30);
    let segment = |path: &str| {
        let own = names(&dir.join(path)).pop()?;
        names(&dir.join(path).join(own)).into_iter().find(|name| name.starts_with("segment-"))
    };
    while segment("a").is_none() || segment("b").is_none() {
        assert!(Instant::now() < end, "it did not get to its paths");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_signal_ends_the_run_cleanly() {
    for signal in [Signal::INT, Signal::TERM] {
        let dir = dir();
        let child = running(dir.path());
        send(&child, signal);
        let output = finish(child);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{error}");
        assert!(error.contains("interrupted: the state on the paths was removed"), "{error}");
        let left: Vec<_> = ["a", "b"].iter().flat_map(|p| names(&dir.path().join(p))).collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(names(dir.path()).len(), 2, "{:?}", names(dir.path()));
    }
}

#[test]
fn what_a_kill_leaves_is_shown_and_removed() {
    let dir = dir();
    let mut child = running(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let left = names(&dir.path().join("a")).pop().unwrap();

    let report = json(dir.path(), "adam --params 300k --steps 1 --path a");
    let warning = report["plan"]["warnings"].to_string();
    for part in ["an earlier run left", "MiB in a;", "tensortier ls a", "tensortier gc a"] {
        assert!(warning.contains(part), "{warning}");
    }
    let listed = text(&run_in(dir.path(), "ls a b").stdout);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.contains(&left) && listed.contains("left behind"), "{listed}");

    let dry = text(&run_in(dir.path(), "gc a b --dry-run").stdout);
    assert!(dry.contains("would remove") && dry.contains("2 would be removed"), "{dry}");
    assert_eq!(names(&dir.path().join("a")), [left]);
    let done = run_in(dir.path(), "gc a b");
    assert_eq!(done.status.code(), Some(0));
    assert!(text(&done.stdout).contains("2 removed"), "{}", text(&done.stdout));
    assert!(names(&dir.path().join("a")).is_empty() && names(&dir.path().join("b")).is_empty());
    assert!(text(&run_in(dir.path(), "ls a b").stdout).contains("nothing"));
}

#[test]
fn what_lives_is_never_removed() {
    let dir = dir();
    let child = running(dir.path());
    let before = names(&dir.path().join("a"));
    for line in ["gc a b", "gc a b --force"] {
        let output = run_in(dir.path(), line);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("kept:") && said.contains("in use"), "{said}");
        assert!(said.contains("0 removed"), "{said}");
        assert_eq!(names(&dir.path().join("a")), before);
    }
    send(&child, Signal::TERM);
    assert_eq!(finish(child).status.code(), Some(130));
}
