//! The store's verbs that answer later: each is told to a future of Python's, and keeps what owns the
//! memory that it names.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use tensortier::storage::error::{Error, Result};
use tensortier::storage::store::{BoxFuture, PutOutcome, Returned, Store as Engine};

use crate::buffer::{Memory, Tensor};
use crate::completions::{Answer, Completions};
use crate::errors::Raise;
use crate::store::{Store, Target, outcomes, puts};
use crate::view::Pinned;

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Later>()
}

/// A call to come: on which store, which future is told, and what is kept until then. Each verb
/// begins it and returns its number.
#[pyclass(frozen, module = "tensortier._tensortier")]
struct Later {
    store: Py<Store>,
    completions: Py<Completions>,
    future: Py<PyAny>,
    owner: Py<PyAny>,
}

/// Makes an object of Python of what a call returned.
type Convert<T> = fn(Python<'_>, T) -> PyResult<Py<PyAny>>;

impl Later {
    fn engine(&self) -> PyResult<&Arc<Engine>> {
        self.store.get().engine()
    }

    /// Begins a call that moves `bytes`.
    fn begin<T: Send + 'static>(
        &self,
        py: Python<'_>,
        bytes: u64,
        call: BoxFuture<Result<T>>,
        convert: Convert<T>,
    ) -> PyResult<u64> {
        let (turns, bytes) = self.store.get().turns(bytes);
        let (future, owner) = (self.future.clone_ref(py), self.owner.clone_ref(py));
        self.completions.get().begin(future, owner, async move {
            let turn = turns.take(bytes).await;
            let outcome = call.await;
            drop(turn);
            let answer: Answer = Box::new(move |py| match outcome {
                Ok(value) => convert(py, value),
                Err(error) => Err(error.raise(py)),
            });
            answer
        })
    }
}

fn none<T>(py: Python<'_>, _: T) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

fn list<T>(py: Python<'_>, each: Vec<Result<T>>) -> PyResult<Py<PyAny>> {
    Ok(outcomes(py, each).into_pyobject(py)?.unbind())
}

fn pinned(py: Python<'_>, bytes: Bytes) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Pinned::new(bytes))?.into_any())
}

/// Leaves the buffer behind: Python's side has it.
fn alone<T: Send + 'static, B: Send + 'static>(
    call: BoxFuture<std::result::Result<T, Returned<B>>>,
) -> BoxFuture<Result<T>> {
    Box::pin(async move { call.await.map_err(Error::from) })
}

#[pymethods]
impl Later {
    #[new]
    fn new(
        store: Py<Store>,
        completions: Py<Completions>,
        future: Py<PyAny>,
        owner: Py<PyAny>,
    ) -> Self {
        Later { store, completions, future, owner }
    }

    fn put(
        &self,
        py: Python<'_>,
        key: &str,
        tensor: Tensor,
        reproducible: Option<bool>,
    ) -> PyResult<u64> {
        let (engine, memory) = (self.store.get().making(reproducible)?, tensor.memory());
        let bytes = memory.as_ref().len() as u64;
        let call = engine.put_async(key, tensor.dtype.0, &tensor.shape, memory);
        self.begin(py, bytes, alone(call), none)
    }

    fn put_many(
        &self,
        py: Python<'_>,
        tensors: Vec<(String, Tensor)>,
        reproducible: Option<bool>,
    ) -> PyResult<u64> {
        let (engine, puts) = (self.store.get().making(reproducible)?, puts(tensors));
        let bytes = puts.iter().map(|put| put.bytes.as_ref().len() as u64).sum();
        let call = engine.put_many_async(puts);
        let each = |outcome: PutOutcome<Memory>| outcome.map(drop).map_err(Error::from);
        let call = async move { Ok(call.await.into_iter().map(each).collect()) };
        self.begin(py, bytes, Box::pin(call), list::<()>)
    }

    fn get_into(
        &self,
        py: Python<'_>,
        target: Target,
        into: Tensor,
        offset: Option<u64>,
    ) -> PyResult<u64> {
        let (engine, memory) = (self.engine()?, into.memory());
        let bytes = memory.as_ref().len() as u64;
        let call = match offset {
            None => engine.get_into_async(&target, memory),
            Some(offset) => {
                let range = offset..offset.saturating_add(bytes);
                engine.get_range_into_async(&target, range, memory)
            }
        };
        self.begin(py, bytes, alone(call), none)
    }

    fn get_into_many(&self, py: Python<'_>, pairs: Vec<(Target, Tensor)>) -> PyResult<u64> {
        let pairs: Vec<_> =
            pairs.into_iter().map(|(target, into)| (target, into.memory())).collect();
        let bytes = pairs.iter().map(|(_, memory)| memory.as_ref().len() as u64).sum();
        let call = self.engine()?.get_into_many_async(pairs);
        let each = |outcome: std::result::Result<Memory, Returned<Memory>>| {
            outcome.map(drop).map_err(Error::from)
        };
        let call = async move { Ok(call.await.into_iter().map(each).collect()) };
        self.begin(py, bytes, Box::pin(call), list::<()>)
    }

    fn write(&self, py: Python<'_>, target: Target, from: Tensor, offset: u64) -> PyResult<u64> {
        let (engine, memory) = (self.engine()?, from.memory());
        let bytes = memory.as_ref().len() as u64;
        let range = offset..offset.saturating_add(bytes);
        self.begin(py, bytes, alone(engine.write_range_async(&target, range, memory)), none)
    }

    fn pin(&self, py: Python<'_>, target: Target, chunk: u32) -> PyResult<u64> {
        let engine = Engine::clone(self.engine()?);
        let call = async move {
            let object = target.find(&engine)?;
            if object.chunks() == 0 {
                return Ok(Bytes::new());
            }
            engine.lease_read(&object, chunk).await.map(|lease| lease.into_bytes())
        };
        self.begin(py, 0, Box::pin(call), pinned)
    }

    fn evict(&self, py: Python<'_>, targets: Vec<Target>) -> PyResult<u64> {
        let call = self.engine()?.evict_many_async(targets);
        self.begin(py, 0, Box::pin(async move { Ok(call.await) }), list::<()>)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<u64> {
        let call = self.engine()?.flush_async();
        self.begin(py, 0, Box::pin(call), none)
    }
}
