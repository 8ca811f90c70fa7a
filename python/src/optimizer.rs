//! The optimizer, as `tensortier/optim/` calls it.

use std::path::PathBuf;
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensortier::optimizer::{
    Accumulation, Error, GradientPlace, NonFinite, Optimizer as Engine, Options, Param, Plan,
    Plane, StatePrecision, StepOptions,
};
use tensortier::storage::dtype::DType;

use crate::edge::{Here, blocking};
use crate::errors::Raise;
use crate::hand_over::{Given, HandOver, Tensor};
use crate::hyper::{Numbers, hyper, numbers};
use crate::report::told;
use crate::restore::{Reader, name_of, plane_of};
use crate::store::Store;

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Optimizer>()
}

/// A parameter: name, shape, type of the weights, group.
type NewParam = (String, Vec<u64>, String, usize);

/// An optimizer as the crates know it. `tensortier.AdamW` has one from its first need on.
#[pyclass(frozen, module = "tensortier._tensortier")]
#[derive(Debug)]
pub(crate) struct Optimizer {
    inner: Here<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Nothing once it is closed, and while a call has it.
    engine: Mutex<Option<Engine>>,
    /// Who is in a call: a handler of a signal may come back to the same optimizer.
    caller: Mutex<Option<ThreadId>>,
}

/// For as long as it lives, this thread is in a call.
struct Calling<'a>(&'a Mutex<Option<ThreadId>>);

impl<'a> Calling<'a> {
    fn new(caller: &'a Mutex<Option<ThreadId>>) -> Self {
        *caller.lock() = Some(thread::current().id());
        Calling(caller)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// What keeps a call from being made or from its end.
enum Failed {
    Engine(Error),
    Python(PyErr),
    Closed,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Engine(error)
    }
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Self {
        Failed::Python(error)
    }
}

impl Raise for Failed {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Failed::Engine(error) => error.raise(py),
            Failed::Python(error) => error,
            Failed::Closed => PyValueError::new_err(
                "the optimizer is closed, and its state is gone; nothing was done",
            ),
        }
    }
}

impl Optimizer {
    /// Returns what is inside, unless this thread is in there already.
    fn inner(&self) -> PyResult<&Inner> {
        let inner = self.inner.get()?;
        if *inner.caller.lock() == Some(thread::current().id()) {
            return Err(PyRuntimeError::new_err(
                "this thread is in a call of the same optimizer already; nothing was done",
            ));
        }
        Ok(inner)
    }

    /// Runs a call with the engine to itself and the interpreter free for others.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Engine) -> Result<T, Failed> + Send,
    ) -> PyResult<T> {
        let inner = self.inner()?;
        blocking(py, || {
            let mut place = inner.engine.lock();
            let _calling = Calling::new(&inner.caller);
            // An engine that a call panics in is not used again.
            let mut engine = place.take().ok_or(Failed::Closed)?;
            let outcome = call(&mut engine);
            *place = Some(engine);
            outcome
        })
    }
}

#[pymethods]
impl Optimizer {
    /// Makes the state of parameters in a store.
    #[new]
    #[pyo3(signature = (store, name, params, groups, *, precision, host_memory, threads))]
    #[allow(clippy::too_many_arguments, reason = "they have names in Python")]
    fn open(
        py: Python<'_>,
        store: &Store,
        name: String,
        params: Vec<NewParam>,
        groups: Vec<Numbers>,
        precision: Option<&str>,
        host_memory: Option<u64>,
        threads: Option<usize>,
    ) -> PyResult<Self> {
        let options = Options {
            name,
            groups: groups.into_iter().map(hyper).collect(),
            precision: precision.map(precision_of).transpose()?,
            threads,
            ..Options::default()
        };
        let params = params.into_iter().map(param).collect::<PyResult<Vec<_>>>()?;
        let store = store.engine()?;
        let engine = blocking(py, || {
            let host = host_memory.unwrap_or_else(|| store.stats().host.budget);
            Engine::open(store.as_ref().clone(), Plan::new(params, options, host)?)
        })?;
        let inner = Inner { engine: Mutex::new(Some(engine)), caller: Mutex::new(None) };
        Ok(Optimizer { inner: Here::new(inner) })
    }

    /// Makes one step, or the rest of one that stopped, and returns its report.
    #[pyo3(signature = (params, groups, *, max_norm, loss_scale, non_finite))]
    fn step<'py>(
        &self,
        py: Python<'py>,
        params: Vec<(Tensor, Option<Given>)>,
        groups: Vec<Numbers>,
        max_norm: Option<f64>,
        loss_scale: f64,
        non_finite: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut io = HandOver::new(params)?;
        let non_finite = match non_finite {
            "apply" => NonFinite::Apply,
            "skip" => NonFinite::Skip,
            "raise" => NonFinite::Raise,
            other => return Err(PyValueError::new_err(format!("non_finite is {other:?}"))),
        };
        let options = StepOptions { max_norm, loss_scale, non_finite, ..StepOptions::default() };
        let outcome = self.call(py, |engine| {
            for (index, numbers) in groups.into_iter().enumerate() {
                let hyper = hyper(numbers);
                if engine.hyper(index) != Some(&hyper) {
                    engine.set_hyper(index, hyper)?;
                }
            }
            Ok(engine.step_with(&mut io, &options)?)
        });
        match (outcome, io.interrupted.take()) {
            (Ok(report), None) => told(py, &report),
            // It came too late to stop anything.
            (Ok(_), Some(raised)) => Err(raised),
            (Err(stopped), raised) => {
                if raised.is_some() {
                    stopped.set_cause(py, raised);
                }
                Err(stopped)
            }
        }
    }

    /// Takes a gradient for the next step, and adds it to what came before.
    fn accumulate(&self, py: Python<'_>, param: usize, gradient: Tensor) -> PyResult<()> {
        self.call(py, |engine| {
            let elems = engine.plan().params.get(param).and_then(Param::elements).unwrap_or(0);
            let gradient = gradient.gradient(&(0..elems));
            // Whether more come is not known; looking at each sum once more is cheap.
            Ok(engine.accumulate(param, 0..elems, gradient, true)?)
        })
    }

    /// Says how gradients are kept that come before the step: in which type, and whether in the store.
    fn set_accumulation(&self, py: Python<'_>, dtype: &str, in_store: bool) -> PyResult<()> {
        let place = if in_store { GradientPlace::Store } else { GradientPlace::Memory };
        let options = Accumulation { dtype: dtype_of(dtype)?, place };
        self.call(py, |engine| Ok(engine.set_accumulation(options)?))
    }

    /// Returns of each parameter whether its gradient was handed over before. Of one without elements
    /// nobody can tell.
    fn accumulated(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        self.call(py, |engine| {
            let params = engine.plan().params.iter().enumerate();
            let came = |(index, param): (usize, &Param)| {
                param.elements() != Some(0) && engine.has_accumulated(index)
            };
            Ok(params.map(came).collect())
        })
    }

    /// Forgets gradients that were handed over before.
    fn clear_gradients(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |engine| Ok(engine.clear_gradients()?))
    }

    /// Refuses while a step or a load is unfinished.
    fn refuse_unfinished(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |engine| Ok(engine.refuse_unfinished()?))
    }

    /// Returns of each parameter how often it was updated.
    fn updates(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.call(py, |engine| {
            let params = engine.plan().params.len();
            Ok((0..params).map(|param| engine.updates(param).unwrap_or(0)).collect())
        })
    }

    /// Returns the planes that are stored of each parameter, under torch's names.
    fn planes(&self, py: Python<'_>) -> PyResult<Vec<Vec<&'static str>>> {
        self.call(py, |engine| {
            let names = |plane: &Plane| name_of(*plane);
            let forms = engine.plan().forms.iter();
            Ok(forms.map(|form| form.planes().iter().map(names).collect()).collect())
        })
    }

    /// Copies elements from `start` on of a plane into a tensor. A master takes the weights too, those
    /// of the same elements in row-major order.
    #[pyo3(signature = (param, plane, start, out, weights=None))]
    fn read(
        &self,
        py: Python<'_>,
        param: usize,
        plane: &str,
        start: u64,
        mut out: Tensor,
        weights: Option<Tensor>,
    ) -> PyResult<()> {
        let plane = plane_of(plane)?;
        self.call(py, |engine| {
            let out = out.floats_mut()?;
            let range = start..start + out.len() as u64;
            match (plane, &weights) {
                (Plane::P, Some(weights)) => {
                    let weights = weights.input(&(0..out.len() as u64));
                    engine.read_master(param, range, weights, out)?;
                }
                _ => engine.read_plane(param, plane, range, out)?,
            }
            Ok(())
        })
    }

    /// Overwrites the state with what `read(param, plane, start, stop)` returns, a tensor and who owns
    /// it, given of each parameter how often it was updated and whether it has a master.
    fn restore(
        &self,
        py: Python<'_>,
        weights: Vec<Tensor>,
        updates: Vec<u64>,
        masters: Vec<bool>,
        read: Py<PyAny>,
    ) -> PyResult<()> {
        let mut io = HandOver::of_weights(weights);
        let mut reader = Reader::new(updates, masters, read);
        let outcome = self.call(py, |engine| Ok(engine.restore(&mut reader, &mut io)?));
        match (outcome, reader.raised.take()) {
            (Err(stopped), Some(raised)) => {
                stopped.set_cause(py, Some(raised));
                Err(stopped)
            }
            (outcome, _) => outcome,
        }
    }

    /// Writes weights and state to a file.
    fn export(&self, py: Python<'_>, path: PathBuf, weights: Vec<Tensor>) -> PyResult<()> {
        let mut io = HandOver::of_weights(weights);
        self.call(py, |engine| Ok(engine.export(path, &mut io)?))
    }

    /// Takes weights and state from files, and returns the groups' hyper-parameters.
    fn import_from(
        &self,
        py: Python<'_>,
        paths: Vec<PathBuf>,
        weights: Vec<Tensor>,
    ) -> PyResult<Vec<Numbers>> {
        let mut io = HandOver::of_weights(weights);
        self.call(py, |engine| {
            engine.import(&paths, &mut io)?;
            Ok(engine.plan().options.groups.iter().map(numbers).collect())
        })
    }

    /// Takes the weights of parameters for their masters.
    fn refresh_masters(&self, py: Python<'_>, params: Vec<usize>) -> PyResult<()> {
        self.call(py, |engine| {
            Ok(params.into_iter().try_for_each(|param| engine.refresh_master(param))?)
        })
    }

    /// Adds a group of parameters.
    fn add_group(&self, py: Python<'_>, group: Numbers, params: Vec<NewParam>) -> PyResult<()> {
        let params = params.into_iter().map(param).collect::<PyResult<Vec<_>>>()?;
        self.call(py, |engine| Ok(engine.add_group(hyper(group), params)?))
    }

    /// Returns what lives where.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let known = PyDict::new(py);
        let (plan, isa, threads, gradients) = self.call(py, |engine| {
            let isa = format!("{:?}", engine.isa());
            Ok((engine.plan().clone(), isa, engine.threads(), engine.gradient_memory()))
        })?;
        known.set_item("elements", plan.elements())?;
        known.set_item("subgroups", plan.subgroups.len())?;
        known.set_item("subgroup_elements", plan.subgroup_elems)?;
        known.set_item("state_bytes", plan.state_bytes())?;
        known.set_item("host_memory", plan.host_bytes)?;
        known.set_item("gradient_memory", gradients)?;
        known.set_item("instructions", isa)?;
        known.set_item("threads", threads)?;
        Ok(known)
    }

    /// Ends the optimizer; its state goes.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner()?;
        blocking(py, || {
            let engine = inner.engine.lock().take();
            drop(engine);
            Ok::<(), PyErr>(())
        })
    }
}

fn param((name, shape, dtype, group): NewParam) -> PyResult<Param> {
    Ok(Param::new(name, shape, dtype_of(&dtype)?).in_group(group))
}

fn dtype_of(name: &str) -> PyResult<DType> {
    match name {
        "F32" => Ok(DType::F32),
        "BF16" => Ok(DType::BF16),
        "F16" => Ok(DType::F16),
        _ => Err(PyValueError::new_err(format!("elements of type {name}"))),
    }
}

fn precision_of(name: &str) -> PyResult<StatePrecision> {
    match name {
        "fp32" => Ok(StatePrecision::Fp32),
        "split" => Ok(StatePrecision::SplitMaster),
        _ => Err(PyValueError::new_err(format!(
            "a state precision of {name:?}; use \"auto\", \"fp32\" or \"split\""
        ))),
    }
}
