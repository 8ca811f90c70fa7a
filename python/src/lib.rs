//! The native part of the Python package: a thin edge over the crates, without logic of its own.
//! Python's side of it is in `python/tensortier/`.

mod edge;
mod errors;
mod hand_over;
mod optimizer;
mod optimizer_errors;
mod restore;
mod store;

use pyo3::prelude::*;

/// The native part of `tensortier`; private, its names may change.
#[pymodule]
fn _tensortier(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    optimizer_errors::register(module)?;
    optimizer::register(module)?;
    store::register(module)
}
