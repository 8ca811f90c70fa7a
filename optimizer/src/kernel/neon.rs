//! The body compiled for AArch64, whose builds have vectors and a fused multiply-add throughout.
//!
//! No feature needs asking for, so there is no unsafe code here. Vector arithmetic there follows the
//! same control register as scalar arithmetic, which the guard of the environment sets.

use super::body;
use super::planes::Slices;
use super::round::{Narrow, Widen};
use super::scalars::Scalars;

/// Updates a run.
pub(super) fn update<I: Widen, O: Narrow, const AMSGRAD: bool>(
    k: &Scalars,
    planes: Slices<'_>,
    grad: &[I::Raw],
    out: &mut [O::Raw],
) {
    let Slices { p, m, v, vmax } = planes;
    neon::<I, O, AMSGRAD>(k, p, m, v, vmax, grad, out);
}

/// Slices as arguments of their own are known not to overlap.
#[inline(never)]
fn neon<I: Widen, O: Narrow, const AMSGRAD: bool>(
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
