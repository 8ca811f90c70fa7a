//! `tensortier adam`: AdamW steps over a model whose state lives on storage paths.

use crate::args::AdamArgs;
use crate::{Failure, Outcome};

/// Runs the steps and prints the plan, a line per step and the summary.
pub(crate) fn run(_args: &AdamArgs) -> Result<Outcome, Failure> {
    Err("adam is not part of this build yet".into())
}
