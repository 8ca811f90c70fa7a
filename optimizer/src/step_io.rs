//! The hand-over between a caller and a step: gradients in, weights in and out, one run of one
//! parameter at a time. Nothing is borrowed between two runs.

use std::ops::{ControlFlow, Range};

use tensortier_storage::dtype::DType;

use crate::kernel::{Input, Output};
use crate::strides::Strides;

/// Where a step takes gradients from and puts weights to.
pub trait StepIo {
    /// Returns whether the parameter has a gradient this step. Asked once in each call of `step`,
    /// before any change; a parameter without one is skipped: no decay, no count, as in torch.
    fn has_gradient(&self, param: usize) -> bool {
        let _ = param;
        true
    }

    /// Returns the gradient and the weights of the elements `range` of a parameter: of the part that
    /// is trained here, in row-major order. What is contiguous is exactly as long as the range; what
    /// is strided is all of the part. The gradient is looked at only where there is one.
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_>;

    /// Returns whether a segment may be asked for that is longer than a run of a subgroup, as far as
    /// all of the part. What is looked at before a step is then looked at faster.
    fn spans_runs(&self) -> bool {
        false
    }

    /// Called after each subgroup with how many are done of how many; `Break` ends the step there
    /// as [`crate::Error::Interrupted`].
    fn subgroup_done(&mut self, done: u64, of: u64) -> ControlFlow<()> {
        let _ = (done, of);
        ControlFlow::Continue(())
    }
}

/// One run of one parameter.
#[derive(Debug)]
pub struct Segment<'a> {
    /// Its gradient.
    pub gradient: Gradient<'a>,
    /// Its weights, in the parameter's type.
    pub weight: Weight<'a>,
}

/// A gradient as it lies in the caller's memory.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Gradient<'a> {
    /// There is none.
    None,
    /// It was handed over before, by [`crate::Optimizer::accumulate`].
    Stored,
    /// The run's elements in order.
    Elements(Input<'a>),
    /// The storage of the whole part, and where the elements lie in it. Places may be shared, as in
    /// an expanded gradient.
    Strided(Input<'a>, Strides<'a>),
}

/// Weights as they lie in the caller's memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum Weight<'a> {
    /// The run's elements in order.
    Elements(WeightMut<'a>),
    /// The storage of the whole part, and where the elements lie in it, each in a place of its own.
    Strided(WeightMut<'a>, Strides<'a>),
}

/// Weights to be read and written. 16-bit elements are bit patterns.
#[derive(Debug)]
#[non_exhaustive]
pub enum WeightMut<'a> {
    /// fp32.
    F32(&'a mut [f32]),
    /// bf16 patterns.
    Bf16(&'a mut [u16]),
    /// fp16 patterns.
    F16(&'a mut [u16]),
}

impl<'a> Segment<'a> {
    /// Returns a segment of both.
    pub fn new(gradient: impl Into<Gradient<'a>>, weight: impl Into<Weight<'a>>) -> Self {
        Segment { gradient: gradient.into(), weight: weight.into() }
    }
}

impl<'a> From<Input<'a>> for Gradient<'a> {
    fn from(elements: Input<'a>) -> Self {
        Gradient::Elements(elements)
    }
}

impl<'a> From<WeightMut<'a>> for Weight<'a> {
    fn from(elements: WeightMut<'a>) -> Self {
        Weight::Elements(elements)
    }
}

impl Weight<'_> {
    /// Returns the elements, all of the storage if they are strided.
    pub(crate) fn stored(&self) -> &WeightMut<'_> {
        match self {
            Weight::Elements(stored) | Weight::Strided(stored, _) => stored,
        }
    }
}

impl<'a> WeightMut<'a> {
    /// Returns the elements' type.
    pub fn dtype(&self) -> DType {
        match self {
            WeightMut::F32(_) => DType::F32,
            WeightMut::Bf16(_) => DType::BF16,
            WeightMut::F16(_) => DType::F16,
        }
    }

    /// Returns how many elements there are.
    pub fn len(&self) -> usize {
        match self {
            WeightMut::F32(raw) => raw.len(),
            WeightMut::Bf16(raw) | WeightMut::F16(raw) => raw.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the weights to be read.
    pub(crate) fn as_input(&self) -> Input<'_> {
        match self {
            WeightMut::F32(raw) => Input::F32(raw),
            WeightMut::Bf16(raw) => Input::Bf16(raw),
            WeightMut::F16(raw) => Input::F16(raw),
        }
    }

    /// Returns the weights as what a kernel writes.
    pub(crate) fn into_output(self) -> Output<'a> {
        match self {
            WeightMut::F32(raw) => Output::F32(raw),
            WeightMut::Bf16(raw) => Output::Bf16(raw),
            WeightMut::F16(raw) => Output::F16(raw),
        }
    }

    /// Returns a part of the weights.
    pub(crate) fn part(&mut self, range: Range<usize>) -> WeightMut<'_> {
        match self {
            WeightMut::F32(raw) => WeightMut::F32(&mut raw[range]),
            WeightMut::Bf16(raw) => WeightMut::Bf16(&mut raw[range]),
            WeightMut::F16(raw) => WeightMut::F16(&mut raw[range]),
        }
    }

    /// Returns the addresses that the weights take.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let range = match self {
            WeightMut::F32(raw) => (raw.as_ptr() as usize, size_of_val(*raw)),
            WeightMut::Bf16(raw) | WeightMut::F16(raw) => {
                (raw.as_ptr() as usize, size_of_val(*raw))
            }
        };
        range.0..range.0 + range.1
    }
}

/// Parameters whose gradients and weights are plain slices, given in the order of the plan: the
/// simplest [`StepIo`]. Parameters that were not added count as frozen; what a slice has beyond its
/// parameter's elements is left alone.
#[derive(Debug, Default)]
pub struct Slices<'a> {
    params: Vec<(WeightMut<'a>, Option<Input<'a>>)>,
}

impl<'a> Slices<'a> {
    /// Returns a hand-over of no parameters.
    pub fn new() -> Self {
        Slices::default()
    }

    /// Adds the next parameter.
    #[must_use]
    pub fn param(mut self, weights: WeightMut<'a>, gradient: Input<'a>) -> Self {
        self.params.push((weights, Some(gradient)));
        self
    }

    /// Adds the next parameter, which has no gradient this time.
    #[must_use]
    pub fn frozen(mut self, weights: WeightMut<'a>) -> Self {
        self.params.push((weights, None));
        self
    }
}

impl StepIo for Slices<'_> {
    fn has_gradient(&self, param: usize) -> bool {
        self.params.get(param).is_some_and(|(_, gradient)| gradient.is_some())
    }

    fn spans_runs(&self) -> bool {
        true
    }

    /// A range outside the slices gives an empty segment, which the step refuses by name.
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let range = range.start as usize..range.end as usize;
        let Some((weights, gradient)) = self.params.get_mut(param) else {
            return Segment::new(Gradient::None, WeightMut::F32(&mut []));
        };
        let gradient = gradient.as_ref().map_or(Gradient::None, |gradient| {
            Gradient::Elements(match gradient {
                Input::F32(raw) => Input::F32(raw.get(range.clone()).unwrap_or_default()),
                Input::Bf16(raw) => Input::Bf16(raw.get(range.clone()).unwrap_or_default()),
                Input::F16(raw) => Input::F16(raw.get(range.clone()).unwrap_or_default()),
            })
        });
        let weight = match weights {
            WeightMut::F32(raw) => WeightMut::F32(raw.get_mut(range).unwrap_or_default()),
            WeightMut::Bf16(raw) => WeightMut::Bf16(raw.get_mut(range).unwrap_or_default()),
            WeightMut::F16(raw) => WeightMut::F16(raw.get_mut(range).unwrap_or_default()),
        };
        Segment::new(gradient, weight)
    }
}
