//! How a kernel keeps the master weight: what it is read from, and what it is written back to.
//!
//! One loop serves every way. A way has at most two arrays of its own: one that belongs to the
//! optimizer's state, one that holds the caller's weights.

use std::marker::PhantomData;

use super::round::Narrow;

/// A way to keep the master weight.
pub(super) trait Master: Copy {
    /// An element of the optimizer's own array.
    type Own: Copy + Default;
    /// Whether there is such an array; without one it is empty.
    const OWN: bool;
    /// An element of the caller's weights.
    type Weight: Copy + Default;
    /// Whether there is such an array; without one it is empty.
    const WEIGHT: bool;
    /// Whether the sign bit of `v` is part of the master and not of `v`.
    const MARKED: bool;

    /// The master weight, from its elements and the bits of `v`.
    fn load(own: Self::Own, weight: Self::Weight, v: u32) -> f32;

    /// The same for the rest of a run after `n` elements.
    fn after(self, n: usize) -> Self;

    /// The elements for the master weight `p` of the run's element `i`, and, if `MARKED`, the sign bit
    /// of `v` in its place.
    fn store(self, i: usize, p: f32) -> (Self::Own, Self::Weight, u32);
}

/// A plane of `f32`, and weights that are only written: rounded to `O`, or absent.
#[derive(Debug)]
pub(super) struct Full<O>(PhantomData<O>);

impl<O> Full<O> {
    pub(super) fn new() -> Self {
        Full(PhantomData)
    }
}

impl<O> Clone for Full<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Full<O> {}

impl<O: Narrow> Master for Full<O> {
    type Own = f32;
    const OWN: bool = true;
    type Weight = O::Raw;
    const WEIGHT: bool = O::PRESENT;
    const MARKED: bool = false;

    #[inline(always)]
    fn load(own: f32, _weight: O::Raw, _v: u32) -> f32 {
        own
    }

    #[inline(always)]
    fn after(self, _n: usize) -> Self {
        self
    }

    #[inline(always)]
    fn store(self, _i: usize, p: f32) -> (f32, O::Raw, u32) {
        (p, O::narrow(p), 0)
    }
}
