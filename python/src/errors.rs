//! Errors of the crates as the exceptions that people catch, with the whole text and what is known
//! as attributes.

use std::path::Path;

use pyo3::create_exception;
use pyo3::exceptions::{
    PyKeyError, PyMemoryError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::PyString;
use tensortier::storage::error::Error;
use tensortier::storage::units::ParseUnitError;

create_exception!(
    tensortier,
    CorruptError,
    PyOSError,
    "Stored bytes are not those that were written; they were not returned."
);
create_exception!(tensortier, ClosedError, PyValueError, "The store is closed.");

/// Adds the exception classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("CorruptError", py.get_type::<CorruptError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())
}

/// An error that Python gets as an exception.
pub(crate) trait Raise {
    /// Returns the exception.
    fn raise(self, py: Python<'_>) -> PyErr;
}

impl Raise for PyErr {
    fn raise(self, _: Python<'_>) -> PyErr {
        self
    }
}

impl Raise for ParseUnitError {
    fn raise(self, _: Python<'_>) -> PyErr {
        PyValueError::new_err(self.to_string())
    }
}

impl Raise for Error {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match &self {
            Error::NotFound { key } => with(py, PyKeyError::new_err(text), &[("key", key)]),
            Error::Dropped { key, chunk } => {
                let error = with(py, PyKeyError::new_err(text), &[("key", key)]);
                with(py, error, &[("chunk", chunk)])
            }
            Error::BudgetExhausted { budget, needed, free, largest_run, holders, .. } => {
                let error = with(py, PyMemoryError::new_err(text), &[("holders", holders)]);
                let numbers = [
                    ("budget", &budget.0),
                    ("needed", &needed.0),
                    ("free", &free.0),
                    ("largest_run", &largest_run.0),
                ];
                with(py, error, &numbers)
            }
            Error::BudgetTooSmall { budget, needed, .. } => {
                let numbers = [("budget", &budget.0), ("needed", &needed.0)];
                with(py, PyMemoryError::new_err(text), &numbers)
            }
            Error::BadFile { file, source: Some(source), .. } => {
                os_error(source.0, text, Some(file))
            }
            Error::PathUnusable { path, source, .. } => os_error(source.0, text, Some(path)),
            Error::System { source, .. } => os_error(source.0, text, None),
            Error::Read { key, chunk, path, offset, source, .. } => {
                let error = with(py, os_error(source.0, text, Some(path)), &[("key", key)]);
                let error = with(py, error, &[("chunk", chunk)]);
                with(py, error, &[("offset", offset)])
            }
            Error::PathHung { key, chunk, path, .. } => {
                // The class of this number is TimeoutError.
                let error = with(py, os_error(libc::ETIMEDOUT, text, Some(path)), &[("key", key)]);
                with(py, error, &[("chunk", chunk)])
            }
            Error::Corrupt { key, chunk, path, block, expected, actual } => {
                let error = corrupt(py, text, path, key, *chunk, *block);
                with(py, error, &[("expected", expected), ("actual", actual)])
            }
            Error::Undecodable { key, chunk, path, block } => {
                corrupt(py, text, path, key, *chunk, *block)
            }
            Error::NoSpace { key, .. } => {
                with(py, os_error(libc::ENOSPC, text, None), &[("key", key)])
            }
            Error::AlreadyExists { key } => with(py, PyValueError::new_err(text), &[("key", key)]),
            Error::OutOfRange { key, .. } => with(py, PyValueError::new_err(text), &[("key", key)]),
            Error::Timeout { .. } => PyTimeoutError::new_err(text),
            Error::Closed => ClosedError::new_err(text),
            Error::Config { .. } | Error::KeyTooLong { .. } | Error::BadFile { .. } => {
                PyValueError::new_err(text)
            }
            // Devices, and what later versions may add.
            _ => PyRuntimeError::new_err(text),
        }
    }
}

fn corrupt(py: Python<'_>, text: String, path: &Path, key: &str, chunk: u32, block: u32) -> PyErr {
    let error = CorruptError::new_err((libc::EIO, text, path.as_os_str().to_owned()));
    let error = with(py, error, &[("key", key)]);
    with(py, error, &[("chunk", chunk), ("block", block)])
}

/// Returns an `OSError`, of the class that belongs to the number, with its file's name if it has one.
fn os_error(errno: i32, text: String, path: Option<&Path>) -> PyErr {
    match path {
        Some(path) => PyOSError::new_err((errno, text, path.as_os_str().to_owned())),
        None => PyOSError::new_err((errno, text)),
    }
}

/// Sets what is known as attributes.
fn with<'py, V: IntoPyObject<'py> + Copy>(
    py: Python<'py>,
    error: PyErr,
    known: &[(&str, V)],
) -> PyErr {
    for (name, value) in known {
        let set = error.value(py).setattr(PyString::new(py, name), *value);
        // An exception that takes no attribute still has its text.
        drop(set);
    }
    error
}
