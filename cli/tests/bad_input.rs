//! The program itself on a wrong command line: exit code 2, one line on standard error, no output.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::process::{Command, Output};

fn run(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensortier")).args(line.split_whitespace()).output().unwrap()
}

#[test]
fn a_wrong_command_line_gets_one_line_and_exit_code_2() {
    for (line, part) in [
        ("", "tensortier --help"),
        ("bogus", "bogus"),
        ("adam", "--weights"),
        ("adam --params 0", "at least one parameter"),
        ("adam --params 500X", "500X"),
        ("adam --params 1M --host-memory 1Gb", "--host-memory"),
        ("adam --params 1M --path /tmp,read=1.5GBs", "1.5GBs"),
        ("adam --params 1M --verfy", "--verify"),
        ("gc --dryrun", "--dry-run"),
    ] {
        let output = run(line);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(output.stdout.is_empty(), "{line}");
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
        assert!(error.starts_with("tensortier: ") && error.contains(part), "{line}: {error}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for line in ["--help", "--version", "adam --help", "ls -h", "gc --help"] {
        let output = run(line);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{line}");
    }
}
