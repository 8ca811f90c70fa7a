//! Tensors of Python by address: the one place where an optimizer reaches into their memory, for the
//! length of one call.
#![allow(unsafe_code, reason = "tensors of Python come as addresses")]

use std::ops::{ControlFlow, Range};
use std::slice;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensortier::optimizer::kernel::Input;
use tensortier::optimizer::{Gradient, Segment, StepIo, Strides, Weight, WeightMut};

/// How often a long call looks whether a signal came.
const SIGNALS: Duration = Duration::from_millis(50);

/// Elements in the caller's memory. Who makes one says, by that, that they stay there and that nobody
/// else changes them until the call ends that it was made for.
#[derive(Debug)]
pub(crate) struct Tensor {
    memory: Memory,
    shape: Vec<u64>,
    /// Nothing if the elements lie in row-major order.
    strides: Option<Vec<u64>>,
}

/// The places of a storage, from a tensor's first to its last element.
#[derive(Debug)]
struct Memory {
    address: usize,
    kind: Kind,
    places: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    F32,
    Bf16,
    F16,
}

impl<'py> FromPyObject<'_, 'py> for Tensor {
    type Error = PyErr;

    /// Takes `(address, "F32" | "BF16" | "F16", shape, strides | None)`.
    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (address, dtype, shape, strides): (usize, String, Vec<u64>, Option<Vec<u64>>) =
            given.extract()?;
        let kind = match dtype.as_str() {
            "F32" => Kind::F32,
            "BF16" => Kind::Bf16,
            "F16" => Kind::F16,
            _ => return Err(PyValueError::new_err(format!("elements of type {dtype}"))),
        };
        let refuse = |why: &str| {
            let text = format!("a tensor of {dtype} at {address:#x} {why}");
            Err(PyValueError::new_err(text))
        };
        let width = kind.width();
        let Some(places) = places(&shape, strides.as_deref()) else {
            return refuse("whose shape and strides do not fit together");
        };
        if places > 0 && (address == 0 || !address.is_multiple_of(width)) {
            return refuse("which is not aligned for its type");
        }
        if places.checked_mul(width).and_then(|bytes| address.checked_add(bytes)).is_none() {
            return refuse("that reaches beyond the address space");
        }
        Ok(Tensor { memory: Memory { address, kind, places }, shape, strides })
    }
}

/// Returns how many places lie from the first element to the last.
fn places(shape: &[u64], strides: Option<&[u64]>) -> Option<usize> {
    let places = match strides {
        _ if shape.contains(&0) => 0,
        None => shape.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent))?,
        Some(strides) if strides.len() == shape.len() => {
            shape.iter().zip(strides).try_fold(1u64, |all, (extent, stride)| {
                all.checked_add((extent - 1).checked_mul(*stride)?)
            })?
        }
        Some(_) => return None,
    };
    usize::try_from(places).ok().filter(|places| *places <= isize::MAX as usize / 4)
}

impl Kind {
    fn width(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::Bf16 | Kind::F16 => 2,
        }
    }
}

impl Tensor {
    /// Returns the places of the elements `range`: all of the storage if it is strided, none if the
    /// tensor ends before the range does.
    fn within(&self, range: &Range<u64>) -> Range<usize> {
        match self.strides {
            Some(_) => 0..self.memory.places,
            None if range.end > self.memory.places as u64 => 0..0,
            None => range.start as usize..range.end as usize,
        }
    }

    /// Returns the elements in `range`, or the storage of all.
    pub(crate) fn input(&self, range: &Range<u64>) -> Input<'_> {
        let places = self.within(range);
        match self.memory.kind {
            Kind::F32 => Input::F32(self.memory.elements(places)),
            Kind::Bf16 => Input::Bf16(self.memory.elements(places)),
            Kind::F16 => Input::F16(self.memory.elements(places)),
        }
    }

    /// Returns a gradient's elements in `range`.
    pub(crate) fn gradient(&self, range: &Range<u64>) -> Gradient<'_> {
        let elements = self.input(range);
        match &self.strides {
            Some(strides) => Gradient::Strided(elements, Strides { shape: &self.shape, strides }),
            None => Gradient::Elements(elements),
        }
    }

    fn weight(&mut self, range: &Range<u64>) -> Weight<'_> {
        let places = self.within(range);
        let elements = match self.memory.kind {
            Kind::F32 => WeightMut::F32(self.memory.elements_mut(places)),
            Kind::Bf16 => WeightMut::Bf16(self.memory.elements_mut(places)),
            Kind::F16 => WeightMut::F16(self.memory.elements_mut(places)),
        };
        match &self.strides {
            Some(strides) => Weight::Strided(elements, Strides { shape: &self.shape, strides }),
            None => Weight::Elements(elements),
        }
    }

    /// Returns fp32 elements that lie in row-major order.
    ///
    /// # Errors
    /// `ValueError` for others.
    pub(crate) fn floats(&self) -> PyResult<&[f32]> {
        self.check_floats()?;
        Ok(self.memory.elements(0..self.memory.places))
    }

    /// Returns fp32 elements that lie in row-major order, to be written.
    ///
    /// # Errors
    /// `ValueError` for others.
    pub(crate) fn floats_mut(&mut self) -> PyResult<&mut [f32]> {
        self.check_floats()?;
        Ok(self.memory.elements_mut(0..self.memory.places))
    }

    fn check_floats(&self) -> PyResult<()> {
        if self.memory.kind == Kind::F32 && self.strides.is_none() {
            return Ok(());
        }
        Err(PyValueError::new_err("state goes through contiguous float32 tensors"))
    }
}

impl Memory {
    fn addresses(&self) -> Range<usize> {
        self.address..self.address + self.places * self.kind.width()
    }

    fn elements<T: Element>(&self, places: Range<usize>) -> &[T] {
        if places.is_empty() {
            return &[];
        }
        let first = (self.address + places.start * size_of::<T>()) as *const T;
        // SAFETY: the caller vouches that `self.places` elements lie at the address, which was seen
        // to be aligned, and that nobody changes them meanwhile; `within` stays inside of them. Any
        // bits are an element. The slice lives no longer than `self`, which lives for one call.
        unsafe { slice::from_raw_parts(first, places.len()) }
    }

    fn elements_mut<T: Element>(&mut self, places: Range<usize>) -> &mut [T] {
        if places.is_empty() {
            return &mut [];
        }
        let first = (self.address + places.start * size_of::<T>()) as *mut T;
        // SAFETY: as for `elements`; `&mut self` and the check of `HandOver::new`, by which a
        // gradient never lies in its own weights, make this the only slice of them.
        unsafe { slice::from_raw_parts_mut(first, places.len()) }
    }
}

/// Elements for which all bits are a value.
trait Element {}
impl Element for f32 {}
impl Element for u16 {}

/// A gradient as Python hands it over.
#[derive(Debug, FromPyObject)]
pub(crate) enum Given {
    /// Its elements.
    Tensor(Tensor),
    /// It was handed over before (whatever the value says).
    #[allow(dead_code, reason = "what stands for it in Python")]
    Stored(bool),
}

/// What one call is handed: weights of all parameters, and gradients of some.
#[derive(Debug)]
pub(crate) struct HandOver {
    params: Vec<(Tensor, Option<Given>)>,
    looked: Instant,
    /// What a signal's handler raised.
    pub(crate) interrupted: Option<PyErr>,
}

impl HandOver {
    /// Takes weights and gradients in the order of the plan.
    ///
    /// # Errors
    /// `ValueError` for a gradient that lies in its own weights.
    pub(crate) fn new(params: Vec<(Tensor, Option<Given>)>) -> PyResult<Self> {
        for (index, (weight, gradient)) in params.iter().enumerate() {
            let Some(Given::Tensor(gradient)) = gradient else { continue };
            let (one, two) = (weight.memory.addresses(), gradient.memory.addresses());
            if one.start < two.end && two.start < one.end {
                return Err(PyValueError::new_err(format!(
                    "the gradient of parameter number {index} lies in the memory of its weights; \
                     make one of them a copy"
                )));
            }
        }
        Ok(HandOver { params, looked: Instant::now(), interrupted: None })
    }

    /// Takes weights alone.
    pub(crate) fn of_weights(weights: Vec<Tensor>) -> Self {
        let params = weights.into_iter().map(|weight| (weight, None)).collect();
        HandOver { params, looked: Instant::now(), interrupted: None }
    }
}

impl StepIo for HandOver {
    fn has_gradient(&self, param: usize) -> bool {
        self.params.get(param).is_some_and(|(_, gradient)| gradient.is_some())
    }

    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let Some((weight, gradient)) = self.params.get_mut(param) else {
            return Segment::new(Gradient::None, WeightMut::F32(&mut []));
        };
        let gradient = match gradient {
            None => Gradient::None,
            Some(Given::Stored(_)) => Gradient::Stored,
            Some(Given::Tensor(gradient)) => gradient.gradient(&range),
        };
        Segment::new(gradient, weight.weight(&range))
    }

    fn spans_runs(&self) -> bool {
        true
    }

    /// Ends the step when a signal came whose handler raises, as that of Ctrl-C does.
    fn subgroup_done(&mut self, _done: u64, _of: u64) -> ControlFlow<()> {
        if self.looked.elapsed() < SIGNALS {
            return ControlFlow::Continue(());
        }
        self.looked = Instant::now();
        match Python::attach(|py| py.check_signals()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(raised) => {
                self.interrupted = Some(raised);
                ControlFlow::Break(())
            }
        }
    }
}
