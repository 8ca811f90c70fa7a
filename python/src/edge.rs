//! The one way in from Python: refuses what belongs to the process before a fork, lets other threads
//! run while a call blocks, and turns panics and errors into exceptions that people catch.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::Raise;

/// Runs a call that may block, with the interpreter free for other threads.
///
/// # Errors
/// What the call fails with, as the exception that people catch for it; `RuntimeError` for a panic.
pub(crate) fn blocking<T, E>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T>
where
    T: Send,
    E: Raise + Send,
{
    let call = AssertUnwindSafe(call);
    let outcome = py.detach(|| catch_unwind(call));
    match outcome {
        Ok(outcome) => outcome.map_err(|error| error.raise(py)),
        Err(panic) => Err(panicked(&*panic)),
    }
}

/// Returns the exception for a panic. Not pyo3's own, which `except Exception` does not catch.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    PyRuntimeError::new_err(format!(
        "tensortier failed inside: {text}; this is a defect, please report it; close the store \
         before going on"
    ))
}

/// Something whose use and end touch threads, files or memory of the process that made it. A forked
/// child has the files but none of the threads: there it is neither used nor dropped. Owned by objects
/// of Python, so that it ends where the interpreter is held; its end may block, and lets others run.
#[derive(Debug)]
pub(crate) struct Here<T: Send + Sync> {
    /// Nothing only once it is being dropped.
    value: Option<Arc<T>>,
    process: u32,
}

impl<T: Send + Sync> Here<T> {
    pub(crate) fn new(value: T) -> Self {
        Here { value: Some(Arc::new(value)), process: process::id() }
    }

    /// Returns what it is, in the process that made it.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child, saying what to do instead.
    pub(crate) fn get(&self) -> PyResult<&Arc<T>> {
        match &self.value {
            Some(value) if self.process == process::id() => Ok(value),
            _ => Err(PyRuntimeError::new_err(format!(
                "this process was forked from process {}, and a store does not survive a fork: \
                 nothing was done; use the \"spawn\" start method, or open a store in the child",
                self.process
            ))),
        }
    }
}

impl<T: Send + Sync> Drop for Here<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.process == process::id() {
            let _ = Python::try_attach(|py| py.detach(|| drop(value)));
        } else {
            // One count more than there are owners: it never ends here.
            let _ = ManuallyDrop::new(value);
        }
    }
}
