//! The memory that one update reads and writes, as callers hand it over and as the loops take it.

use std::ops::Range;

use super::master::Master;

/// The state planes of one contiguous run of one parameter; all of one length.
#[derive(Debug)]
pub struct Planes<'a> {
    /// Master weights.
    pub p: &'a mut [f32],
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments.
    pub v: &'a mut [f32],
    /// Running maxima of `v`: there if and only if the scalars say amsgrad.
    pub vmax: Option<&'a mut [f32]>,
}

/// The planes of one run under the split master ([`split`](super::split)); all of one length.
#[derive(Debug)]
pub struct SplitPlanes<'a> {
    /// Lower halves of the master weights.
    pub lo: &'a mut [u16],
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments; their sign bits belong to the master.
    pub v: &'a mut [f32],
    /// Running maxima of the second moments: there if and only if the scalars say amsgrad.
    pub vmax: Option<&'a mut [f32]>,
    /// The bf16 weights, which hold the rest of the master: read, and written back rounded to nearest
    /// even.
    pub hi: &'a mut [u16],
}

/// The planes of one run whose 16-bit weights are the master; all of one length.
#[derive(Debug)]
pub struct WeightPlanes<'a> {
    /// The weights: read, and written back stochastically rounded.
    pub weights: HalfWeights<'a>,
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments.
    pub v: &'a mut [f32],
    /// Running maxima of `v`: there if and only if the scalars say amsgrad.
    pub vmax: Option<&'a mut [f32]>,
}

/// Weights of 16 bits to read and write, as bit patterns.
#[derive(Debug)]
#[non_exhaustive]
pub enum HalfWeights<'a> {
    /// bf16 patterns.
    Bf16(&'a mut [u16]),
    /// fp16 patterns.
    F16(&'a mut [u16]),
}

/// Elements to read: a gradient, or weights to start from. 16-bit elements are bit patterns.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Input<'a> {
    /// bf16 patterns.
    Bf16(&'a [u16]),
    /// fp16 patterns.
    F16(&'a [u16]),
    /// fp32.
    F32(&'a [f32]),
}

/// Where the updated weights go besides the master plane. 16-bit elements are bit patterns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Output<'a> {
    /// Nowhere: the master plane is the weights.
    None,
    /// bf16 patterns, rounded to nearest even.
    Bf16(&'a mut [u16]),
    /// fp16 patterns, rounded to nearest even.
    F16(&'a mut [u16]),
    /// A copy of the master plane.
    F32(&'a mut [f32]),
}

impl<'a> Input<'a> {
    /// Cuts it in two; `mid` is at most its length.
    pub(crate) fn split_at(self, mid: usize) -> (Input<'a>, Input<'a>) {
        (self.part(0..mid), self.part(mid..self.len()))
    }

    /// Returns a part of it; `range` is within its length.
    pub(crate) fn part(self, range: Range<usize>) -> Input<'a> {
        match self {
            Input::Bf16(raw) => Input::Bf16(&raw[range]),
            Input::F16(raw) => Input::F16(&raw[range]),
            Input::F32(raw) => Input::F32(&raw[range]),
        }
    }
}

impl Input<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Input::Bf16(raw) | Input::F16(raw) => raw.len(),
            Input::F32(raw) => raw.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A gradient that is being summed over micro-batches. 16-bit elements are bit patterns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Accumulator<'a> {
    /// bf16 patterns: each sum is rounded to nearest even.
    Bf16(&'a mut [u16]),
    /// fp16 patterns: each sum is rounded to nearest even.
    F16(&'a mut [u16]),
    /// fp32.
    F32(&'a mut [f32]),
}

impl Accumulator<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Accumulator::Bf16(raw) | Accumulator::F16(raw) => raw.len(),
            Accumulator::F32(raw) => raw.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The arrays of an update after the checks: of the length of `m`, or empty where the way to keep the
/// master has none; `vmax` is empty without amsgrad.
pub(super) struct Slices<'a, W: Master> {
    pub(super) own: &'a mut [W::Own],
    pub(super) weight: &'a mut [W::Weight],
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) vmax: &'a mut [f32],
}
