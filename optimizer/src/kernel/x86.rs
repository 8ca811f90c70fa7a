//! The body compiled for the vector extensions of x86-64, behind a check that they are there.
//!
//! Invariant: a function compiled for a feature is called only in this file, and only after the
//! processor has been asked for every feature it names. The answer is cached by the standard library.

use super::body;
use super::planes::Slices;
use super::round::{Narrow, Widen};
use super::scalars::Scalars;

/// Whether AVX2 and FMA are there.
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Whether the AVX-512 subsets of every server part since Skylake are there, besides AVX2 and FMA.
pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Updates a run with AVX2; false, and nothing done, if the processor lacks it.
pub(super) fn update_avx2<I: Widen, O: Narrow, const AMSGRAD: bool>(
    k: &Scalars,
    planes: Slices<'_>,
    grad: &[I::Raw],
    out: &mut [O::Raw],
) -> bool {
    if !has_avx2() {
        return false;
    }
    let Slices { p, m, v, vmax } = planes;
    // SAFETY: the processor has the features that `avx2` is compiled for, checked above.
    unsafe { avx2::<I, O, AMSGRAD>(k, p, m, v, vmax, grad, out) };
    true
}

/// Updates a run with AVX-512; false, and nothing done, if the processor lacks it.
pub(super) fn update_avx512<I: Widen, O: Narrow, const AMSGRAD: bool>(
    k: &Scalars,
    planes: Slices<'_>,
    grad: &[I::Raw],
    out: &mut [O::Raw],
) -> bool {
    if !has_avx512() {
        return false;
    }
    let Slices { p, m, v, vmax } = planes;
    // SAFETY: the processor has the features that `avx512` is compiled for, checked above.
    unsafe { avx512::<I, O, AMSGRAD>(k, p, m, v, vmax, grad, out) };
    true
}

// The slices are arguments of their own, not fields of a struct: so the compiler knows that they do
// not overlap and needs no checks at run time.

#[inline(never)]
#[target_feature(enable = "avx2,fma")]
fn avx2<I: Widen, O: Narrow, const AMSGRAD: bool>(
    k: &Scalars,
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    vmax: &mut [f32],
    grad: &[I::Raw],
    out: &mut [O::Raw],
) {
    body::segment::<I, O, AMSGRAD>(k, p, m, v, vmax, grad, out);
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<I: Widen, O: Narrow, const AMSGRAD: bool>(
    k: &Scalars,
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    vmax: &mut [f32],
    grad: &[I::Raw],
    out: &mut [O::Raw],
) {
    body::segment::<I, O, AMSGRAD>(k, p, m, v, vmax, grad, out);
}
