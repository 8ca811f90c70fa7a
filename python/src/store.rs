//! The store's verbs, as `tensortier/store.py` calls them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tensortier::storage::path::Path;
use tensortier::storage::store::Store as Engine;

use crate::edge::{Here, blocking};

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Store>()
}

/// A store as the crates know it. `tensortier.Store` has one.
#[pyclass(frozen, module = "tensortier._tensortier")]
#[derive(Debug)]
pub(crate) struct Store {
    engine: Here<Engine>,
}

impl Store {
    /// Returns the engine, in the process that opened it.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child.
    pub(crate) fn engine(&self) -> PyResult<&Arc<Engine>> {
        self.engine.get()
    }
}

#[pymethods]
impl Store {
    #[new]
    fn open(py: Python<'_>, host_memory: u64, paths: Vec<PathBuf>) -> PyResult<Self> {
        let engine = blocking(py, || {
            let builder = Engine::builder().host_budget(host_memory);
            paths.into_iter().fold(builder, |builder, dir| builder.path(Path::new(dir))).open()
        })?;
        Ok(Store { engine: Here::new(engine) })
    }

    fn close(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let engine = self.engine()?;
        blocking(py, || engine.close(Duration::from_secs_f64(seconds)))
    }
}
