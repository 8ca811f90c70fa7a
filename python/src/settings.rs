//! What a store is opened with, as Python says it.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensortier::storage::codec::Compression;
use tensortier::storage::error::Error;
use tensortier::storage::io::EngineChoice;
use tensortier::storage::path::{Kind, Path};
use tensortier::storage::store::{Placement, StoreBuilder};
use tensortier::storage::units::{Bytes, BytesPerSecond};

use crate::dtype::dtype_named;
use crate::errors::Raise;

/// Adds the functions that read settings to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(parse_rate, module)?)?;
    module.add_function(wrap_pyfunction!(dtype_named, module)?)
}

/// A path as `tensortier.Path` has it, sizes and rates read.
#[derive(Debug, FromPyObject)]
pub(crate) struct PathSettings {
    dir: PathBuf,
    kind: String,
    read: Option<f64>,
    write: Option<f64>,
    quota: Option<u64>,
    deadline: Option<f64>,
    /// A number or a word.
    max_processes: Py<PyAny>,
}

/// A store's settings as `tensortier.Store` has them, sizes read.
#[derive(Debug, FromPyObject)]
pub(crate) struct Settings {
    host_memory: u64,
    chunk_size: u64,
    paths: Vec<PathSettings>,
    engine: String,
    placement: String,
    checksums: bool,
    compression: String,
    packing_memory: u64,
    cache: bool,
    wait_for_leases: f64,
}

impl PathSettings {
    fn path(self, py: Python<'_>) -> PyResult<Path> {
        let kinds = [("nvme", Kind::Nvme), ("remote", Kind::Remote)];
        let mut path = Path::new(self.dir).kind(one_of("kind", &self.kind, &kinds)?);
        path.read_cap = self.read.map(BytesPerSecond);
        path.write_cap = self.write.map(BytesPerSecond);
        path.quota = self.quota.map(Bytes);
        path.deadline = self.deadline.map(|limit| seconds("deadline", limit)).transpose()?;
        let processes = self.max_processes.bind(py).str()?;
        path.max_processes = processes.to_str()?.parse().map_err(|error: Error| error.raise(py))?;
        Ok(path)
    }
}

impl Settings {
    /// Returns how many bytes asynchronous calls may hold leases on at one time.
    pub(crate) fn bytes_under_way(&self) -> u64 {
        self.host_memory / 2
    }

    /// Returns the largest chunk, in bytes.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunk_size
    }

    /// Returns the builder of the store.
    ///
    /// # Errors
    /// `ValueError` for a word that is none of those that a setting knows.
    pub(crate) fn builder(self, py: Python<'_>) -> PyResult<StoreBuilder> {
        let engines = [
            ("auto", EngineChoice::Auto),
            ("uring", EngineChoice::Uring),
            ("threads", EngineChoice::Threads),
        ];
        let placements = [("whole", Placement::Whole), ("stripe", Placement::Stripe)];
        let compressions = [("off", Compression::Off), ("lz4", Compression::Lz4)];
        let mut builder = StoreBuilder::default()
            .host_budget(self.host_memory)
            .chunk_bytes(self.chunk_size)
            .engine(one_of("engine", &self.engine, &engines)?)
            .placement(one_of("placement", &self.placement, &placements)?)
            .checksums(self.checksums)
            .compression(one_of("compression", &self.compression, &compressions)?)
            .packing_bytes(self.packing_memory)
            .cache(self.cache)
            .wait_for_leases(seconds("wait_for_leases", self.wait_for_leases)?);
        for path in self.paths {
            builder = builder.path(path.path(py)?);
        }
        Ok(builder)
    }
}

fn one_of<T: Copy>(setting: &str, word: &str, known: &[(&str, T)]) -> PyResult<T> {
    known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| format!("{name:?}")).collect();
        PyValueError::new_err(format!("{setting} is {word:?}; it can be {}", names.join(" or ")))
    })
}

/// Reads a time that Python gives in seconds.
///
/// # Errors
/// `ValueError` for one that is negative, infinite or not a number.
pub(crate) fn seconds(setting: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| {
        PyValueError::new_err(format!("{setting} is {value} seconds: {error}; give 0 or more"))
    })
}

#[pyfunction]
fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
    text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| error.raise(py))
}

#[pyfunction]
fn parse_rate(py: Python<'_>, text: &str) -> PyResult<f64> {
    text.parse::<BytesPerSecond>().map(|rate| rate.0).map_err(|error| error.raise(py))
}
