//! An operation while an engine works on it, and its one completion.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::engine::{Completion, Operation};
use super::progress::{KernelHook, Progress, Step, resume_align};
use crate::error::Errno;

/// An accepted operation. It must be given to [`Task::complete`]; nothing else may end it.
#[derive(Debug)]
#[must_use]
pub(super) struct Task {
    pub(super) operation: Operation,
    pub(super) progress: Progress,
    started: Option<Instant>,
    /// As how much at most a test's hook has the next answer told.
    told: u64,
}

impl Task {
    pub(super) fn new(operation: Operation) -> Self {
        let transfer = &operation.transfer;
        let progress = Progress::new(transfer.is_write(), transfer.bytes());
        Task { operation, progress, started: None, told: u64::MAX }
    }

    /// Returns how many bytes to ask the kernel for, or the answer that a test's hook gives instead.
    pub(super) fn start_call(&mut self, hook: Option<&KernelHook>) -> Result<u64, Errno> {
        self.started.get_or_insert_with(Instant::now);
        let wanted = self.progress.wanted();
        let Some(hook) = hook else { return Ok(wanted) };
        self.told = hook(wanted)?.clamp(1, wanted);
        // A direct transfer moves no less than what it is aligned to, though less is told.
        Ok(self.told.next_multiple_of(resume_align(&self.operation.file)).min(wanted))
    }

    /// Takes the kernel's answer.
    pub(super) fn answer(&mut self, answer: Result<u64, Errno>) -> Step {
        let file = &self.operation.file;
        let told = self.told;
        self.progress.answer(answer.map(|count| count.min(told)), || resume_align(file))
    }

    /// Tells the owner. A panic there is his: it must end neither the worker nor other operations.
    pub(super) fn complete(self, result: Result<(), Errno>) {
        let completion = Completion {
            result,
            bytes: self.progress.moved(),
            took: self.started.map(|at| at.elapsed()).unwrap_or_default(),
            transfer: self.operation.transfer,
        };
        drop(self.operation.file);
        let done = self.operation.done;
        if catch_unwind(AssertUnwindSafe(move || done(completion))).is_err() {
            tracing::error!("a completion callback panicked; the engine goes on");
        }
    }
}
