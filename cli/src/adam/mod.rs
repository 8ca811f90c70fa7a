//! `tensortier adam`: AdamW steps over a model whose state lives on storage paths.

mod ablate;
mod figures;
mod limit;
mod model;
mod places;
mod progress;
mod run;
mod save;
mod verify;

use crate::args::AdamArgs;
use crate::{Failure, Outcome};

/// Runs what the options ask for.
pub(crate) fn run(args: &AdamArgs) -> Result<Outcome, Failure> {
    if args.ablate { ablate::run(args) } else { run::run(args) }
}
