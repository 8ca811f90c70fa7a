//! `tensortier ls` and `tensortier gc`: what earlier runs left behind on storage paths.

use std::io::Write;
use std::path::PathBuf;

use tensortier::storage::path::{Leftover, leftovers, remove_leftover};
use tensortier::storage::units::Bytes;

use crate::args::{GcArgs, LsArgs};
use crate::{Failure, Outcome};

/// Lists what is there and who owns it.
pub(crate) fn list(args: &LsArgs) -> Result<Outcome, Failure> {
    let found = find(&args.dirs)?;
    if found.is_empty() {
        line("nothing of tensortier's is there");
    }
    for leftover in &found {
        line(&describe(leftover));
    }
    Ok(Outcome::Done)
}

/// Removes what no living process owns.
pub(crate) fn remove(args: &GcArgs) -> Result<Outcome, Failure> {
    let (mut removed, mut bytes) = (0, 0);
    for leftover in find(&args.dirs)? {
        if leftover.alive {
            line(&format!("kept: {}", describe(&leftover)));
            continue;
        }
        if !args.dry_run {
            remove_leftover(&leftover, args.force)?;
        }
        removed += 1;
        bytes += leftover.bytes;
        let done = if args.dry_run { "would remove" } else { "removed" };
        line(&format!("{done}: {}", describe(&leftover)));
    }
    let done = if args.dry_run { "would be removed" } else { "removed" };
    line(&format!("{removed} {done}, {}", Bytes(bytes)));
    Ok(Outcome::Done)
}

fn find(dirs: &[PathBuf]) -> Result<Vec<Leftover>, Failure> {
    let mut found = Vec::new();
    for dir in dirs {
        found.extend(leftovers(dir)?);
    }
    Ok(found)
}

fn describe(leftover: &Leftover) -> String {
    let state = if leftover.alive { "in use" } else { "left behind" };
    let owner = leftover.owner.as_ref().map_or(String::from("owner unknown"), |owner| {
        format!("process {} on {}", owner.pid, owner.host)
    });
    let (dir, bytes) = (leftover.dir.display(), Bytes(leftover.bytes));
    format!("{dir}  {bytes}  {state}, {owner} ({})", leftover.why)
}

fn line(text: &str) {
    // A reader that went away (`| head`) is no failure.
    let _ = writeln!(std::io::stdout(), "{text}");
}
