//! Runs a test again in a process of its own: on a mount, as another user, under a limit.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the process in which the test is to happen: where, if it matters.
const APART: &str = "TENSORTIER_APART";

/// What makes the place of a test.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    /// A shell command that mounts something at `$D`, as the root of a user namespace.
    Mount(&'a str),
    /// An ext4 of so many MiB on a loop device with sectors of so many bytes; needs root.
    Loop { mib: u64, sector: u64 },
    /// The same as here, but a process with nothing else in it, after a shell command.
    Shell(&'a str),
    /// As an ordinary user who may lock so many KiB of memory; root would not be held to it.
    User { memlock_kib: u64 },
}

/// The exit code with which a shell says that it cannot make the place.
const CANNOT: i32 = 77;

impl Place<'_> {
    /// Returns the program and the arguments that lead to the place and run the test there.
    fn command(self, test: &str) -> Vec<String> {
        let run = format!("exec \"$T\" --exact {test} --nocapture --test-threads=1");
        let shell = |lines: String| vec![String::from("sh"), String::from("-c"), lines];
        let unshare = |how: &str, lines: String| {
            let mut all = vec![String::from("unshare"), how.to_owned()];
            all.extend(shell(lines));
            all
        };
        match self {
            Place::Mount(mount) => unshare("-Urm", format!("{mount} || exit {CANNOT}; {run}")),
            // Detached at once, the device goes with its mount, and that with the namespace.
            Place::Loop { mib, sector } => unshare(
                "-m",
                format!(
                    "truncate -s {mib}M \"$D.image\" && \
                     dev=$(losetup -b {sector} -f --show \"$D.image\") || exit {CANNOT}; \
                     rm -f \"$D.image\"; \
                     mkfs.ext4 -q -b 4096 -m 0 $dev && mount $dev \"$D\"; made=$?; losetup -d $dev; \
                     [ $made = 0 ] || exit {CANNOT}; rm -rf \"$D/lost+found\"; {run}"
                ),
            ),
            Place::Shell(before) => shell(format!("{before} || exit {CANNOT}; {run}")),
            Place::User { memlock_kib } => shell(format!(
                "ulimit -l {memlock_kib} || exit {CANNOT}; chmod 777 \"$D\"; [ $(id -u) = 0 ] || {run}; \
                 setpriv --reuid=65534 --regid=65534 --clear-groups test -x \"$T\" \
                 || exit {CANNOT}; \
                 exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$T\" --exact {test} \
                 --nocapture --test-threads=1"
            )),
        }
    }
}

/// Runs `test` with the directory of `place`. In the first process this runs the test of the name
/// `name` once more, there; where the place cannot be made, says so and leaves it at that.
pub(crate) fn apart(name: &str, place: Place<'_>, test: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(APART) {
        return test(&PathBuf::from(dir));
    }
    let base = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = base.path().join("place");
    std::fs::create_dir(&dir).unwrap();
    let allow = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(base.path(), allow).unwrap();
    let line = place.command(name);
    let run = Command::new(&line[0])
        .args(&line[1..])
        .env("D", &dir)
        .env(APART, &dir)
        .env("T", std::env::current_exe().unwrap())
        .output();
    let output = match run {
        Ok(output) => output,
        Err(error) => return eprintln!("{name}: skipped, {} {error}", line[0]),
    };
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let begun = out.contains("running 1 test");
    if !begun {
        return eprintln!("{name}: skipped, {place:?} cannot be made here: {err}");
    }
    eprint!("{err}");
    assert!(output.status.success(), "{name} failed in {place:?}:\n{out}{err}");
}
