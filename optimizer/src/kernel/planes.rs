//! The memory that one update reads and writes, as callers hand it over and as the loops take it.

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

/// The planes after the checks: equal lengths, `vmax` empty without amsgrad.
pub(super) struct Slices<'a> {
    pub(super) p: &'a mut [f32],
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) vmax: &'a mut [f32],
}
