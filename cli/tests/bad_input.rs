//! The program itself on bad input: exit code 2, one line on standard error that names the thing and
//! the remedy, nothing left behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::path::Path;

use common::{dir, finish, fixture, make, names, program, run_in, start, text};

#[track_caller]
fn refused(dir: &Path, line: &str, parts: &[&str]) {
    let before = names(&dir.join("p"));
    let output = run_in(dir, line);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}: {error}");
    assert_eq!(error.lines().count(), 1, "{line}: {error}");
    assert!(error.starts_with("tensortier: "), "{line}: {error}");
    for part in parts {
        assert!(error.contains(part), "{line}: {part} is not in {error}");
    }
    assert_eq!(names(&dir.join("p")), before, "{line} left something");
    assert!(names(dir).iter().all(|name| !name.contains("partial")), "{line} left a file");
}

fn place() -> tempfile::TempDir {
    let dir = dir();
    make(dir.path(), &["p", "q"]);
    std::fs::write(dir.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("p", dir.path().join("link")).unwrap();
    dir
}

#[test]
fn a_wrong_command_line_is_refused() {
    let dir = place();
    for (line, part) in [
        ("", "tensortier --help"),
        ("bogus", "bogus"),
        ("adam", "--weights"),
        ("adam --params 0", "at least one parameter"),
        ("adam --params 500X", "500X"),
        ("adam --params 1e9", "write for example 500M"),
        ("adam --params -5", "\"-5\" is not a count"),
        ("adam --params 1000P", "\"1000P\" is not a count"),
        ("adam --params 1M --host-memory 1Gb", "--host-memory"),
        ("adam --params 1M --host-memory 0", "--host-memory 0"),
        ("adam --params 1M --path /tmp,read=1.5GBs", "1.5GBs"),
        ("adam --params 1M --path /tmp,write=0B/s", "0B/s"),
        ("adam --params 1M --path a,b", "must not contain a comma"),
        ("adam --params 1M --path a,quota=8Qi", "8Qi"),
        ("adam --params 1M --path a,kind=tape", "neither nvme nor remote"),
        ("adam --params 1M --steps 0", "at least 1"),
        ("adam --params 1M --threads 0", "at least 1"),
        ("adam --params 1M --seed x", "write for example 42"),
        ("adam --params 1M --lr -1", "'-1' for '--lr"),
        ("adam --params 1M --beta1 1", "below 1"),
        ("adam --params 1M --engine foo", "possible values: auto, uring, threads"),
        ("adam --params 1M --weights w", "cannot be used with"),
        ("adam --params 1M --verfy", "--verify"),
        ("gc --dryrun", "--dry-run"),
        ("ls missing", "missing: cannot open the directory"),
        ("gc file", "name a directory"),
    ] {
        refused(dir.path(), line, &[part]);
    }
}

#[test]
fn numbers_that_cannot_work_are_refused_before_the_run() {
    let dir = place();
    for (line, part) in [
        ("--params 2M --path p --subgroup 1", "multiple of 65536 from 64Ki to 64Mi"),
        ("--params 2M --path p --subgroup 100000", "multiple of 65536"),
        ("--params 2M --path p --threads 100000", "at most 1024"),
        ("--params 2M --path p --threads 18446744073709551615", "at most 1024"),
        ("--params 9000T --path p", "weights and gradients take"),
        ("--params 2M --path p --state weights", "use fp32"),
        ("--params 2M --path p --host-memory 1MiB", "the smallest that works is 2.25 MiB"),
        ("--params 2M --path p --host-memory 3MiB --subgroup 256Ki", "with subgroups of 64Ki"),
        ("--params 2M --path p,quota=1MiB --host-memory 3MiB", "raise --host-memory"),
        ("--params 2M --path p,quota=0", "at least 4 KiB"),
        ("--params 2M --path p,read=1B/s", "at least 4096 B/s"),
    ] {
        refused(dir.path(), &format!("adam {line}"), &[part]);
    }
}

#[test]
fn the_smallest_memory_and_the_quota_that_are_said_work() {
    let dir = place();
    let line = "adam --params 2M --steps 2 --path p --verify --host-memory 2359296";
    assert_eq!(run_in(dir.path(), line).status.code(), Some(0));
    let line = "adam --params 2M --steps 2 --host-memory 3MiB --verify --path p,quota=";
    let error = text(&run_in(dir.path(), &format!("{line}1MiB")).stderr);
    let (before, _) = error.split_once(" in all are enough").unwrap();
    let enough = before.rsplit_once("; ").unwrap().1.replace(' ', "");
    let output = run_in(dir.path(), &format!("{line}{enough}"));
    assert_eq!(output.status.code(), Some(0), "{enough}: {}", text(&output.stderr));
}

#[test]
fn a_path_that_cannot_be_used_is_refused() {
    let dir = place();
    for (line, parts) in [
        ("--path missing", ["path missing", "create the directory first"]),
        ("--path file", ["path file", "name a directory"]),
        ("--path /dev/full", ["/dev/full", "name a directory"]),
        ("--path p --path p", ["--path p", "given twice"]),
        ("--path p --path ./p", ["/p", "given twice"]),
        ("--path p --path link", ["/p", "given twice"]),
        ("--path p --path missing", ["path missing", "create the directory first"]),
        ("--path /proc", ["/proc", "name another directory"]),
    ] {
        refused(dir.path(), &format!("adam --params 1M {line}"), &parts);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_run() {
    let dir = place();
    std::fs::copy(fixture(), dir.path().join("w")).unwrap();
    for (line, parts) in [
        ("--params 1M --save missing/x", ["missing/x", "check the directory"]),
        ("--params 1M --save q", ["q: is a directory", "name a file"]),
        ("--params 1M --save /dev/full", ["/dev/full: is not a regular file", "name a file"]),
        ("--params 1M --save /", ["/: is a directory", "name a file"]),
        ("--weights w --save w", ["--save w", "name another file"]),
        ("--weights w --save {D}/w", ["the file the weights come from", "name another file"]),
    ] {
        refused(dir.path(), &format!("adam --path p {line}"), &parts);
    }
    assert_eq!(std::fs::read(dir.path().join("w")).unwrap(), std::fs::read(fixture()).unwrap());
}

/// Returns a file with this header and so many bytes of tensors.
fn file(header: &str, bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}

#[test]
fn a_hostile_or_broken_tensor_file_is_refused() {
    let tensor = |name: &str, dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let one =
        |dtype: &str, shape: &str, to: u64| format!("{{{}}}", tensor("a", dtype, shape, 0, to));
    let two = |name: &str, from: u64| {
        let (a, b) =
            (tensor("a", "F32", "[4]", 0, 16), tensor(name, "F32", "[4]", from, from + 16));
        format!("{{{a},{b}}}")
    };
    let claims = |bytes: u64| [&bytes.to_le_bytes()[..], b"{}"].concat();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "too few for a safetensors header"),
        ("seven", vec![0; 7], "too few for a safetensors header"),
        ("long-header", claims(1000), "longer than the file"),
        ("huge-header", claims(u64::MAX), "more than the 100000000 allowed"),
        ("no-json", file("hello", 0), "bad header"),
        ("deep", file(&"[".repeat(100_000), 0), "bad header"),
        ("truncated", file(&one("F32", "[4]", 16), 8), "truncated"),
        ("trailing", file(&one("F32", "[4]", 16), 20), "after its last tensor"),
        ("overlap", file(&two("b", 8), 24), "overlap by 8 bytes"),
        ("hole", file(&two("b", 20), 36), "hole of 4 bytes"),
        ("twice", file(&two("a", 16), 32), "named twice"),
        ("overflow", file(&one("F32", "[4611686018427387904,8]", 16), 16), "overflows"),
        ("dtype", file(&one("F31", "[4]", 16), 16), "unknown type"),
        ("integers", file(&one("I32", "[4]", 16), 16), "no F32, F16 or BF16 elements"),
        ("nothing", file("{}", 0), "no F32, F16 or BF16 elements"),
        ("zero", file(&one("F32", "[0]", 0), 0), "no F32, F16 or BF16 elements"),
    ];
    let dir = place();
    for (name, bytes, part) in cases {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        for map in ["", "--map"] {
            let line = format!("adam --path p --weights {name} {map}");
            refused(dir.path(), &line, &[&format!("{name}: "), part]);
        }
    }
}

#[test]
fn what_is_no_file_is_refused_without_being_read() {
    let dir = place();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), 0o600.into()).unwrap();
    for name in ["pipe", "q", "/dev/null", "/dev/zero"] {
        let line = format!("adam --path p --weights {name}");
        refused(dir.path(), &line, &[name, "not a regular file"]);
    }
    refused(dir.path(), "adam --path p --weights none", &["none: cannot be opened", "check"]);
    let strange = finish(start(program().args(["adam", "--weights", "no\nsuch\u{1b}file"])));
    assert_eq!(text(&strange.stderr).lines().count(), 1);
    assert!(text(&strange.stderr).contains("no\\nsuch\\u{1b}file"));
}

#[test]
fn a_reader_that_went_away_changes_nothing() {
    let dir = place();
    let line = "\"$T\" adam --params 300k --steps 1 --path p 2>&- | head -c 1; \
                \"$T\" adam --params 300k --steps 1 --path p >&- && \"$T\" --help >&-";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", line]).env("T", env!("CARGO_BIN_EXE_tensortier")).current_dir(dir.path());
    let output = finish(start(&mut shell));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("panicked"));
    assert!(names(&dir.path().join("p")).is_empty());
}

#[test]
fn help_and_version_are_no_errors() {
    for line in ["--help", "--version", "adam --help", "ls -h", "gc --help"] {
        let output = run_in(Path::new("/"), line);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{line}");
    }
}
