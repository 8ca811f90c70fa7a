//! Errors of the optimizer as exceptions, as `errors.rs` has those of the store.

use pyo3::create_exception;
use pyo3::exceptions::{PyFloatingPointError, PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensortier::optimizer::Error;

use crate::errors::Raise;

create_exception!(
    tensortier,
    StepInterrupted,
    PyRuntimeError,
    "A step stopped on its way. Nothing is lost: step again with the same gradients does the rest."
);
create_exception!(
    tensortier,
    HalfLoaded,
    PyRuntimeError,
    "A load stopped on its way: weights and state are mixed until a load succeeds."
);

/// Adds the exception classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("StepInterrupted", py.get_type::<StepInterrupted>())?;
    module.add("HalfLoaded", py.get_type::<HalfLoaded>())
}

impl Raise for Error {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            Error::Storage(error) => error.raise(py),
            Error::BudgetTooSmall { budget, smallest, .. } => {
                let error = PyMemoryError::new_err(text);
                set(py, &error, "budget", budget.0);
                set(py, &error, "needed", smallest.0);
                error
            }
            Error::NonFinite { param } => {
                let error = PyFloatingPointError::new_err(text);
                if let Some(param) = param {
                    set(py, &error, "param", param);
                }
                error
            }
            Error::Interrupted { step, done, subgroups, cause } => {
                let error = stopped(py, StepInterrupted::new_err(text), (done, subgroups), cause);
                set(py, &error, "step", step);
                error
            }
            Error::HalfImported { done, subgroups, cause } => {
                stopped(py, HalfLoaded::new_err(text), (done, subgroups), cause)
            }
            Error::Unfinished { .. } | Error::Kernel(_) => PyRuntimeError::new_err(text),
            _ => PyValueError::new_err(text),
        }
    }
}

fn stopped(
    py: Python<'_>,
    error: PyErr,
    (done, of): (u64, u64),
    cause: Option<Box<Error>>,
) -> PyErr {
    set(py, &error, "done", done);
    set(py, &error, "of", of);
    if let Some(cause) = cause {
        error.set_cause(py, Some(cause.raise(py)));
    }
    error
}

fn set<'py>(py: Python<'py>, error: &PyErr, name: &str, value: impl IntoPyObject<'py>) {
    // An exception that takes no attribute still has its text.
    let _ = error.value(py).setattr(name, value);
}
