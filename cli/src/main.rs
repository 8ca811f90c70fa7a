//! The `tensortier` program.

mod adam;
mod args;
mod buffer;
mod elements;
mod gradient;
mod leftovers;
mod memory;
mod model;
mod report;

use std::io::Write;
use std::process::ExitCode;

use args::{Command, Refusal};

/// How a command that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All was done.
    Done,
    /// Verification found a difference, which was printed.
    Different,
    /// A signal ended it; what there was to clean up is cleaned up.
    Interrupted,
}

/// Any failure; its display is the one line that is printed.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args_os()) {
        Ok(cli) => cli.command,
        Err(Refusal::Asked(text)) => {
            // A reader that went away (`| head`) is no failure.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(Refusal::Wrong(line)) => return fail(&line),
    };
    let outcome = match command {
        Command::Adam(args) => adam::run(&args),
        Command::Ls(args) => leftovers::list(&args),
        Command::Gc(args) => leftovers::remove(&args),
    };
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Different) => ExitCode::from(1),
        Ok(Outcome::Interrupted) => ExitCode::from(130),
        Err(failure) => fail(&failure.to_string()),
    }
}

fn fail(line: &str) -> ExitCode {
    // With standard error gone there is nobody to tell; the exit code still says it.
    let _ = writeln!(std::io::stderr(), "tensortier: {}", one_line(line));
    ExitCode::from(2)
}

/// Returns `text` with what would break the line or drive the terminal written out: names of files
/// and tensors may hold anything.
pub(crate) fn one_line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escape).collect()
}
