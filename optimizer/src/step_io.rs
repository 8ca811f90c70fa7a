//! The hand-over between a caller and a step: gradients in, weights in and out, one run of one
//! parameter at a time. Nothing is borrowed between two runs.

use std::ops::{ControlFlow, Range};

use tensortier_storage::dtype::DType;

use crate::kernel::{Input, Output};

/// Where a step takes gradients from and puts weights to.
pub trait StepIo {
    /// Returns whether the parameter has a gradient this step. Asked once per step, before any
    /// change; a parameter without one is skipped: no decay, no count, as in torch.
    fn has_gradient(&self, param: usize) -> bool {
        let _ = param;
        true
    }

    /// Returns the gradient and the weights of the elements `range` of a parameter, in row-major
    /// order, both exactly as long as the range.
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_>;

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
    pub gradient: Input<'a>,
    /// Its weights, in the parameter's type.
    pub weight: WeightMut<'a>,
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
}

/// Parameters whose gradients and weights are plain slices: the simplest [`StepIo`].
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

    /// A range outside the slices gives an empty segment, which the step refuses by name.
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let range = range.start as usize..range.end as usize;
        match self.params.get_mut(param) {
            Some((weights, Some(gradient))) => Segment {
                gradient: match gradient {
                    Input::F32(raw) => Input::F32(raw.get(range.clone()).unwrap_or_default()),
                    Input::Bf16(raw) => Input::Bf16(raw.get(range.clone()).unwrap_or_default()),
                    Input::F16(raw) => Input::F16(raw.get(range.clone()).unwrap_or_default()),
                },
                weight: match weights {
                    WeightMut::F32(raw) => WeightMut::F32(raw.get_mut(range).unwrap_or_default()),
                    WeightMut::Bf16(raw) => WeightMut::Bf16(raw.get_mut(range).unwrap_or_default()),
                    WeightMut::F16(raw) => WeightMut::F16(raw.get_mut(range).unwrap_or_default()),
                },
            },
            _ => Segment { gradient: Input::F32(&[]), weight: WeightMut::F32(&mut []) },
        }
    }
}
