//! Leases on chunks, as Python holds them: each keeps its bytes in memory until it is dropped.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::dlpack::{self, Exported};
use crate::dtype::Element;
use crate::edge::Here;

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pinned>()
}

/// The bytes of one chunk under a shared lease.
#[pyclass(frozen, module = "tensortier._tensortier")]
#[derive(Debug)]
pub(crate) struct Pinned {
    bytes: Here<Bytes>,
}

impl Pinned {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Pinned { bytes: Here::new(bytes) }
    }
}

#[pymethods]
impl Pinned {
    /// Where the bytes are.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.bytes.get()?.as_ptr() as usize)
    }

    /// How many there are.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.bytes.get()?.len())
    }

    /// Returns a capsule of DLPack, which keeps the lease until whoever consumes it is done.
    fn dlpack<'py>(
        &self,
        py: Python<'py>,
        dtype: Element,
        shape: Vec<i64>,
        versioned: bool,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let bytes = Bytes::clone(self.bytes.get()?);
        dlpack::export(py, Exported::new(bytes, dtype, shape), versioned)
    }
}
