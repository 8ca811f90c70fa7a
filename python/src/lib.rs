//! The native part of the Python package: a thin edge over the crates, without logic of its own.
//! Python's side of it is in `python/tensortier/`.

mod buffer;
mod completions;
mod dlpack;
mod dtype;
mod edge;
mod errors;
mod explain;
mod hand_over;
mod hyper;
mod later;
mod optimizer;
mod optimizer_errors;
mod report;
mod restore;
mod settings;
mod store;
mod turns;
mod view;

use pyo3::prelude::*;

/// The native part of `tensortier`; private, its names may change.
#[pymodule]
fn _tensortier(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    optimizer_errors::register(module)?;
    optimizer::register(module)?;
    settings::register(module)?;
    buffer::register(module)?;
    dlpack::register(module)?;
    completions::register(module)?;
    view::register(module)?;
    later::register(module)?;
    store::register(module)
}
