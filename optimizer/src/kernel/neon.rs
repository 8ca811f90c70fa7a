//! The bodies compiled for AArch64, whose builds have vectors and a fused multiply-add throughout.
//!
//! No feature needs asking for, so there is no unsafe code here. Vector arithmetic there follows the
//! same control register as scalar arithmetic, which the guard of the environment sets.

use super::body;
use super::master::Master;
use super::planes::Slices;
use super::round::Widen;
use super::scalars::Scalars;
use super::sums::{Kind, Raw, add_all, add_squares};

/// Updates a run.
pub(super) fn update<I: Widen, W: Master, const AMSGRAD: bool>(
    k: &Scalars,
    way: W,
    planes: Slices<'_, W>,
    grad: &[I::Raw],
) {
    let Slices { own, weight, m, v, vmax } = planes;
    segment::<I, W, AMSGRAD>(k, way, own, weight, m, v, vmax, grad);
}

/// Slices as arguments of their own are known not to overlap.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "slices of a struct are not known to be disjoint")]
fn segment<I: Widen, W: Master, const AMSGRAD: bool>(
    k: &Scalars,
    way: W,
    own: &mut [W::Own],
    weight: &mut [W::Weight],
    m: &mut [f32],
    v: &mut [f32],
    vmax: &mut [f32],
    grad: &[I::Raw],
) {
    body::segment::<I, W, AMSGRAD>(k, way, own, weight, m, v, vmax, grad);
}

/// Adds the squares of a block to its lanes.
#[inline(never)]
pub(super) fn squares<I: Widen>(block: &[I::Raw], lanes: &mut [f64; 16]) {
    add_squares::<I>(block, lanes);
}

/// Adds to, or starts, accumulators.
#[inline(never)]
pub(super) fn accumulate<A: Kind, I: Widen, const ADD: bool>(into: &mut [Raw<A>], from: &[I::Raw]) {
    add_all::<A, I, ADD>(into, from);
}
