//! The one error type of the optimizer: what was attempted, on what, whether anything was lost, and
//! what to do.

use tensortier_storage::units::Bytes;

use crate::hyper::InvalidHyper;
use crate::kernel::KernelError;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in an optimizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to train.
    #[error("the model has no parameters; give at least one")]
    NoParameters,
    /// A setting is not usable; nothing was made.
    #[error("{what}: {why}")]
    Config {
        /// The setting.
        what: String,
        /// What is wrong with it and what would work.
        why: String,
    },
    /// A hyper-parameter is out of its range.
    #[error(transparent)]
    Hyper(#[from] InvalidHyper),
    /// The host memory cannot hold the pipeline: one subgroup being read, one updated, one written.
    #[error(
        "host memory of {budget} is too small for subgroups of {subgroup_elems} parameters; \
         the smallest that works is {smallest} ({} bytes){}",
        smallest.0,
        hint.as_deref().unwrap_or_default()
    )]
    BudgetTooSmall {
        /// What was given.
        budget: Bytes,
        /// Parameters of the largest subgroup.
        subgroup_elems: u64,
        /// What is needed at least.
        smallest: Bytes,
        /// Another remedy.
        hint: Option<String>,
    },
    /// What a [`crate::StepIo`] gave for a parameter does not fit it. Nothing was changed by that
    /// subgroup.
    #[error("parameter {param}: {why}")]
    Parameter {
        /// Its name.
        param: String,
        /// What does not fit.
        why: String,
    },
    /// Two parameters share memory, so that an update would be applied twice. Nothing was changed.
    #[error(
        "parameters {first} and {second} share memory; hand over one of them only (tied weights are \
         one parameter)"
    )]
    Tied {
        /// Name of one.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// A parameter has no gradient in a step that requires all. Nothing was changed.
    #[error(
        "parameter {param} has no gradient, and the step requires all; nothing was changed. Leave \
         require_all out to skip such parameters"
    )]
    MissingGradient {
        /// Its name.
        param: String,
    },
    /// A gradient is infinite or not a number. Nothing was changed.
    #[error(
        "the gradient of {} is not finite; nothing was changed. Lower the loss scale, or let such \
         steps be skipped",
        param.as_deref().unwrap_or("a parameter of another rank")
    )]
    NonFinite {
        /// Name of the first such parameter, if it is one of this rank.
        param: Option<String>,
    },
    /// Weights that hold half of a split master were changed outside of a step. This call changed
    /// nothing; while a step is unfinished, only undoing the change helps.
    #[error(
        "the weights of {param} were changed since they were last updated, and are half of its \
         master; this call changed nothing. Undo that, or, between two steps, call refresh_master to \
         take them as they are"
    )]
    WeightsChanged {
        /// The parameter's name.
        param: String,
    },
    /// A step stopped after some subgroups were updated. No update is lost: the next call of `step`
    /// with the same gradients does only the rest, with the same bits.
    #[error(
        "step {step} stopped after {done} of {subgroups} subgroups{}; nothing is lost, the next \
         call of step with the same gradients does the rest",
        cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default()
    )]
    Interrupted {
        /// The step, counted from 1.
        step: u64,
        /// Subgroups that are done: updated, or without anything to update.
        done: u64,
        /// All subgroups.
        subgroups: u64,
        /// What failed; `None` when the caller asked to stop.
        cause: Option<Box<Error>>,
    },
    /// A checkpoint cannot be taken. Nothing was changed.
    #[error("{what}: {why}; nothing was changed")]
    Checkpoint {
        /// The file, or the parameter in it.
        what: String,
        /// What is wrong with it and what would work.
        why: String,
    },
    /// An import failed on its way: weights and state are partly those of the checkpoint.
    #[error(
        "an import stopped after {done} of {subgroups} subgroups{}; weights and state are mixed \
         and cannot be used until an import succeeds",
        cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default()
    )]
    HalfImported {
        /// Subgroups that are those of the checkpoint.
        done: u64,
        /// All subgroups.
        subgroups: u64,
        /// What failed; `None` where something else was asked for since.
        cause: Option<Box<Error>>,
    },
    /// What was asked for cannot be done while a step is unfinished.
    #[error(
        "step {step} is unfinished: call step again with the same gradients to finish it first"
    )]
    Unfinished {
        /// The step, counted from 1.
        step: u64,
    },
    /// There is no such parameter, plane or range.
    #[error("{what} does not exist: {why}")]
    OutOfRange {
        /// What was asked for.
        what: String,
        /// What there is.
        why: String,
    },
    /// A kernel refused its input or is not available here.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The store failed.
    #[error(transparent)]
    Storage(#[from] tensortier_storage::error::Error),
}

impl Error {
    /// Returns whether the same call may succeed later without anything being changed first.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Interrupted { cause, .. } => cause.as_ref().is_none_or(|c| c.is_retryable()),
            Error::HalfImported { cause, .. } => cause.as_ref().is_some_and(|c| c.is_retryable()),
            Error::Storage(error) => error.is_retryable(),
            _ => false,
        }
    }
}
