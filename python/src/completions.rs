//! Asynchronous calls under way: threads that drive them and never touch an object of Python, and the
//! queue from which one thread of Python takes what has ended.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use futures_executor::ThreadPool;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::edge::{Here, panicked};

/// How many threads drive calls. They copy what arrived, which one of them does fast enough; the
/// second goes on with small calls meanwhile.
const THREADS: usize = 2;

/// How many completions are told at a time.
const BATCH: usize = 256;

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Completions>()
}

/// What a call ended with, to be made an object or an exception by the thread of Python.
pub(crate) type Answer = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The asynchronous calls of a process.
#[pyclass(frozen, module = "tensortier._tensortier")]
pub(crate) struct Completions {
    inner: Here<Inner>,
}

struct Inner {
    pool: ThreadPool,
    tell: Sender<Option<(u64, Answer)>>,
    ended: Receiver<Option<(u64, Answer)>>,
    under_way: Mutex<HashMap<u64, Call>>,
    next: AtomicU64,
}

/// A call under way, and what of Python's it keeps.
struct Call {
    future: Py<PyAny>,
    /// Whatever keeps the call's memory in place; let go when the engine is done with it, also if the
    /// future was cancelled.
    _owner: Py<PyAny>,
    abort: AbortHandle,
}

/// A future, whether it has a result, and the result or the exception.
type Told = (Py<PyAny>, bool, Py<PyAny>);

impl Completions {
    /// Begins a call, which tells `future` how it ended; `owner` is kept until then. Returns its
    /// number.
    ///
    /// # Errors
    /// `RuntimeError` in a forked child.
    pub(crate) fn begin(
        &self,
        future: Py<PyAny>,
        owner: Py<PyAny>,
        call: impl Future<Output = Answer> + Send + 'static,
    ) -> PyResult<u64> {
        let inner = self.inner.get()?;
        let number = inner.next.fetch_add(1, Ordering::Relaxed);
        let (abort, registration) = AbortHandle::new_pair();
        inner.under_way.lock().insert(number, Call { future, _owner: owner, abort });
        let tell = inner.tell.clone();
        inner.pool.spawn_ok(async move {
            let call = AssertUnwindSafe(Abortable::new(call, registration)).catch_unwind();
            // The call and the memory that it borrows are gone when its end is told.
            let answer = match call.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => raising(|| PyRuntimeError::new_err("cancelled")),
                Err(panic) => {
                    let error = panicked(&*panic);
                    raising(move || error)
                }
            };
            // Nobody listens only when the process ends.
            let _ = tell.send(Some((number, answer)));
        });
        Ok(number)
    }
}

fn raising(error: impl FnOnce() -> PyErr + Send + 'static) -> Answer {
    Box::new(move |_| Err(error()))
}

#[pymethods]
impl Completions {
    #[new]
    fn start() -> PyResult<Self> {
        let mut pool = ThreadPool::builder();
        let pool = pool.pool_size(THREADS).name_prefix("tensortier-async-").create();
        let pool = pool.map_err(|error| {
            let text = format!("cannot start the threads of asynchronous calls: {error}");
            PyOSError::new_err((error.raw_os_error().unwrap_or(libc::EAGAIN), text))
        })?;
        let (tell, ended) = unbounded();
        let (under_way, next) = (Mutex::default(), AtomicU64::new(0));
        Ok(Completions { inner: Here::new(Inner { pool, tell, ended, under_way, next }) })
    }

    /// Waits until calls have ended and returns them; `None` after `stop`.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Vec<Told>>> {
        let inner = Arc::clone(self.inner.get()?);
        let first = py.detach(|| inner.ended.recv());
        let mut told = Vec::new();
        for ended in first.into_iter().chain(inner.ended.try_iter().take(BATCH)) {
            let Some((number, answer)) = ended else {
                // What ended before is told first, and the end once more after it.
                if told.is_empty() {
                    return Ok(None);
                }
                let _ = inner.tell.send(None);
                break;
            };
            let call = inner.under_way.lock().remove(&number);
            let Some(call) = call else { continue };
            told.push(match answer(py) {
                Ok(value) => (call.future, true, value),
                Err(error) => (call.future, false, error.into_value(py).into_any()),
            });
        }
        Ok(Some(told))
    }

    /// Gives a call up: what it has not done yet is not done.
    fn cancel(&self, number: u64) -> PyResult<()> {
        if let Some(call) = self.inner.get()?.under_way.lock().get(&number) {
            call.abort.abort();
        }
        Ok(())
    }

    /// Returns how many calls are under way.
    fn under_way(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.under_way.lock().len())
    }

    /// Ends `wait` for good. What calls still under way have borrowed is never freed.
    fn stop(slf: &Bound<'_, Self>) -> PyResult<()> {
        let inner = slf.get().inner.get()?;
        let _ = inner.tell.send(None);
        if !inner.under_way.lock().is_empty() {
            let _ = slf.clone().unbind().into_ptr();
        }
        Ok(())
    }
}
