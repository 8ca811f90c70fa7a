//! The store's verbs, as `tensortier/store.py` calls them.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensortier::storage::error::Error;
use tensortier::storage::source::{Access, TensorFile};
use tensortier::storage::store::{Name, Named, ObjectRef, Put, Store as Engine};

use crate::buffer::{Memory, Tensor};
use crate::dtype::Element;
use crate::edge::{Here, blocking};
use crate::errors::Raise;
use crate::explain;
use crate::settings::{Settings, seconds};
use crate::turns::Turns;
use crate::view::Pinned;

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Object>()?;
    module.add_class::<Store>()
}

/// A store as the crates know it. `tensortier.Store` has one.
#[pyclass(frozen, module = "tensortier._tensortier")]
#[derive(Debug)]
pub(crate) struct Store {
    engine: Here<Engine>,
    turns: Turns,
    /// The most that one asynchronous call has leases on at a time, in bytes.
    call_bytes: u64,
}

/// An object of a store, whatever its key is by now.
#[pyclass(frozen, module = "tensortier._tensortier")]
#[derive(Debug)]
pub(crate) struct Object {
    object: Here<ObjectRef>,
}

/// What a call is about: a key, or an object that was found before.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Key(String),
    Object(ObjectRef),
}

impl<'py> FromPyObject<'_, 'py> for Target {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match given.cast::<Object>() {
            Ok(object) => Ok(Target::Object(ObjectRef::clone(object.get().object.get()?))),
            Err(_) => Ok(Target::Key(given.extract()?)),
        }
    }
}

impl Target {
    /// Returns the object that is meant.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub(crate) fn find(&self, engine: &Engine) -> Result<ObjectRef, Error> {
        match self {
            Target::Key(key) => engine.object(key),
            Target::Object(object) => Ok(object.clone()),
        }
    }
}

impl Named for Target {
    fn name(&self) -> Name<'_> {
        match self {
            Target::Key(key) => Name::Key(key),
            Target::Object(object) => Name::Object(object),
        }
    }
}

impl Store {
    /// Returns the engine, in the process that opened it.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child.
    pub(crate) fn engine(&self) -> PyResult<&Arc<Engine>> {
        self.engine.get()
    }

    /// Returns the engine as one whose new objects are reproducible or not, if that is said.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child.
    pub(crate) fn making(&self, reproducible: Option<bool>) -> PyResult<Engine> {
        let engine = self.engine()?;
        Ok(reproducible.map_or_else(|| Engine::clone(engine), |on| engine.caching(on)))
    }

    /// Returns the turns of asynchronous calls, and what one that moves `bytes` asks for.
    pub(crate) fn turns(&self, bytes: u64) -> (Turns, u64) {
        (self.turns.clone(), bytes.min(self.call_bytes))
    }
}

/// Returns the outcomes of a batch: nothing, or what went wrong, for each.
pub(crate) fn outcomes<T>(py: Python<'_>, outcomes: Vec<Result<T, Error>>) -> Vec<Option<PyErr>> {
    outcomes.into_iter().map(|outcome| outcome.err().map(|error| error.raise(py))).collect()
}

/// Returns tensors as what a batch puts.
pub(crate) fn puts(tensors: Vec<(String, Tensor)>) -> Vec<Put<Memory>> {
    let put = |(key, tensor): (String, Tensor)| {
        Put::new(key, tensor.dtype.0, &tensor.shape, tensor.memory())
    };
    tensors.into_iter().map(put).collect()
}

#[pymethods]
impl Object {
    /// What is known of the object now, by name.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let object = self.object.get()?;
        let stat = object.stat();
        let known = PyDict::new(py);
        known.set_item("key", &*stat.key)?;
        known.set_item("dtype", Element(stat.dtype).name())?;
        known.set_item("shape", pyo3::types::PyTuple::new(py, stat.shape)?)?;
        known.set_item("nbytes", stat.bytes)?;
        known.set_item("chunk_size", stat.chunk_bytes)?;
        known.set_item("chunks", object.chunks())?;
        known.set_item("host_bytes", stat.host_bytes)?;
        known.set_item("stored_bytes", stat.stored_bytes)?;
        known.set_item("reproducible", stat.reproducible)?;
        known.set_item("dropped_bytes", stat.dropped_bytes)?;
        Ok(known)
    }
}

#[pymethods]
impl Store {
    #[new]
    fn open(py: Python<'_>, settings: Settings) -> PyResult<Self> {
        // A put holds a chunk and asks for the next.
        let call_bytes = settings.chunk_bytes().saturating_mul(2);
        let turns = Turns::new(settings.bytes_under_way());
        let builder = settings.builder(py)?;
        let engine = Here::new(blocking(py, || builder.open())?);
        Ok(Store { engine, turns, call_bytes })
    }

    #[pyo3(signature = (key, dtype, shape, chunk_size, reproducible))]
    fn create(
        &self,
        py: Python<'_>,
        key: &str,
        dtype: Element,
        shape: Vec<u64>,
        chunk_size: Option<u64>,
        reproducible: Option<bool>,
    ) -> PyResult<()> {
        let engine = self.making(reproducible)?;
        let made = blocking(py, || match chunk_size {
            Some(bytes) => engine.create_chunked(key, dtype.0, &shape, bytes),
            None => engine.create(key, dtype.0, &shape),
        });
        made.map(drop)
    }

    fn put(
        &self,
        py: Python<'_>,
        key: &str,
        tensor: Tensor,
        reproducible: Option<bool>,
    ) -> PyResult<()> {
        let engine = self.making(reproducible)?;
        let memory = tensor.memory();
        let put = blocking(py, || engine.put(key, tensor.dtype.0, &tensor.shape, memory.as_ref()));
        put.map(drop)
    }

    fn put_many(
        &self,
        py: Python<'_>,
        tensors: Vec<(String, Tensor)>,
        reproducible: Option<bool>,
    ) -> PyResult<Vec<Option<PyErr>>> {
        let engine = self.making(reproducible)?;
        let puts = puts(tensors);
        let put = blocking(py, || Ok::<_, Error>(engine.put_many(&puts)))?;
        Ok(outcomes(py, put))
    }

    fn find(&self, py: Python<'_>, key: &str) -> PyResult<Object> {
        let engine = self.engine()?;
        let object = blocking(py, || engine.object(key))?;
        Ok(Object { object: Here::new(object) })
    }

    fn get_into(
        &self,
        py: Python<'_>,
        target: Target,
        into: Tensor,
        offset: Option<u64>,
    ) -> PyResult<()> {
        let engine = self.engine()?;
        let mut memory = into.memory();
        blocking(py, || match offset {
            None => engine.get_into(&target, memory.as_mut()),
            Some(offset) => {
                let range = offset..offset.saturating_add(memory.as_ref().len() as u64);
                engine.get_range_into(&target, range, memory.as_mut())
            }
        })
    }

    fn get_into_many(
        &self,
        py: Python<'_>,
        pairs: Vec<(Target, Tensor)>,
    ) -> PyResult<Vec<Option<PyErr>>> {
        let engine = self.engine()?;
        let pairs = pairs.into_iter().map(|(target, into)| (target, into.memory()));
        let pairs: Vec<_> = pairs.collect();
        let got = blocking(py, || Ok::<_, Error>(engine.get_into_many(pairs)))?;
        Ok(outcomes(py, got))
    }

    fn write(&self, py: Python<'_>, target: Target, from: Tensor, offset: u64) -> PyResult<()> {
        let engine = self.engine()?;
        let memory = from.memory();
        blocking(py, || {
            let bytes = memory.as_ref();
            let range = offset..offset.saturating_add(bytes.len() as u64);
            engine.write_range(&target, range, bytes)
        })
    }

    fn pin(&self, py: Python<'_>, target: Target, chunk: u32) -> PyResult<Pinned> {
        let engine = self.engine()?;
        let bytes = blocking(py, || {
            let object = target.find(engine)?;
            if object.chunks() == 0 {
                return Ok(Bytes::new());
            }
            engine.lease_read(&object, chunk).wait().map(|lease| lease.into_bytes())
        })?;
        Ok(Pinned::new(bytes))
    }

    fn prefetch(&self, py: Python<'_>, targets: Vec<Target>) -> PyResult<Vec<Option<PyErr>>> {
        let engine = self.engine()?;
        let asked = blocking(py, || Ok::<_, Error>(engine.prefetch_many(targets)))?;
        Ok(outcomes(py, asked))
    }

    fn evict(&self, py: Python<'_>, targets: Vec<Target>) -> PyResult<Vec<Option<PyErr>>> {
        let engine = self.engine()?;
        let evicted = blocking(py, || Ok::<_, Error>(engine.evict_many(targets)))?;
        Ok(outcomes(py, evicted))
    }

    fn delete(&self, py: Python<'_>, targets: Vec<Target>) -> PyResult<Vec<Option<PyErr>>> {
        let engine = self.engine()?;
        let deleted = blocking(py, || Ok::<_, Error>(engine.delete_many(targets)))?;
        Ok(outcomes(py, deleted))
    }

    fn rename(&self, py: Python<'_>, from: Target, to: &str) -> PyResult<()> {
        let engine = self.engine()?;
        blocking(py, || engine.rename(&from, to))
    }

    fn contains(&self, py: Python<'_>, target: Target) -> PyResult<bool> {
        let engine = self.engine()?;
        blocking(py, || Ok::<_, Error>(engine.contains(&target)))
    }

    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<String>> {
        let engine = self.engine()?;
        let keys = blocking(py, || Ok::<_, Error>(engine.list(prefix)))?;
        Ok(keys.iter().map(|key| String::from(&**key)).collect())
    }

    fn adopt(&self, py: Python<'_>, file: PathBuf, prefix: &str, mapped: bool) -> PyResult<()> {
        let engine = self.engine()?;
        let access = if mapped { Access::Map } else { Access::Direct };
        let adopted = blocking(py, || engine.adopt(TensorFile::open(file, access)?, prefix));
        adopted.map(drop)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine()?;
        blocking(py, || engine.flush())
    }

    fn explain<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        let engine = self.engine()?;
        let explanation = blocking(py, || Ok::<_, Error>(engine.explain()))?;
        Ok((explanation.to_string(), explain::explanation(py, &explanation)?))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let engine = self.engine()?;
        let stats = blocking(py, || Ok::<_, Error>(engine.stats()))?;
        explain::stats(py, &stats)
    }

    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let engine = self.engine()?;
        let grace = seconds("timeout", timeout)?;
        blocking(py, || engine.close(grace))
    }
}
