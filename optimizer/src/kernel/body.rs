//! The one loop that every instruction set compiles: an update of a contiguous run of elements.
//!
//! It is written with scalar operations that are each correctly rounded (`f32::mul_add` where a fused
//! multiply-add is meant, and nowhere else) and is vectorised by the compiler once per instruction
//! set. Since no operation may be contracted or reordered, the width of the vectors does not show in
//! the result. What it must compute is spelled out in [`reference`](super::reference); here choices
//! that hold for the whole run are turned into arithmetic without branches:
//!
//! * `maximize` changes the sign of the gradient's factor (rounding is symmetric),
//! * decoupled decay is a factor that is 1 when there is none,
//! * the L2 term and the two forms of the interpolation are selected by bit masks,
//! * the subnormal policy is a threshold that is 0, below which no magnitude lies, when they are kept.
//!
//! Only what changes the memory that is touched (types, `AMSGRAD`) is compiled apart.

use super::master::Master;
use super::round::Widen;
use super::scalars::{Decay, Scalars, Subnormals};

/// Updates `m`, `v` (and `vmax` if `AMSGRAD`) and the master, kept as `way` says, from `grad`.
///
/// All slices must have the length of `m`, absent ones excepted; otherwise nothing happens.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "slices of a struct are not known to be disjoint")]
pub(super) fn segment<I: Widen, W: Master, const AMSGRAD: bool>(
    k: &Scalars,
    way: W,
    own: &mut [W::Own],
    weight: &mut [W::Weight],
    m: &mut [f32],
    v: &mut [f32],
    vmax: &mut [f32],
    grad: &[I::Raw],
) {
    let n = m.len();
    // The caller has checked this; here it tells the compiler that no index below is out of range.
    if v.len() != n
        || grad.len() != n
        || (AMSGRAD && vmax.len() != n)
        || (W::OWN && own.len() != n)
        || (W::WEIGHT && weight.len() != n)
    {
        return;
    }
    let u = Uniform::new(k);
    for i in 0..n {
        let p_old = W::load(
            if W::OWN { own[i] } else { W::Own::default() },
            if W::WEIGHT { weight[i] } else { W::Weight::default() },
            v[i].to_bits(),
        );
        let v_old = if W::MARKED { v[i].abs() } else { v[i] };

        let g = I::widen(grad[i]) * u.s;
        let g = select(u.l2_mask, p_old.mul_add(u.l2, g), g);
        let decayed = p_old * u.dec;

        let d = g - m[i];
        let m_new = u.slope.mul_add(d, select(u.near_mask, m[i], g));
        let m_new = flush(m_new, u.threshold);

        let q = u.w2 * g;
        let r = v_old * u.b2;
        let v_new = flush(q.mul_add(g, r), u.threshold);

        let x = if AMSGRAD {
            let kept = vmax[i];
            // Not `max`: a NaN on either side must win.
            let x = if (kept >= v_new) | kept.is_nan() { kept } else { v_new };
            vmax[i] = x;
            x
        } else {
            v_new
        };

        let e = x.sqrt() / u.bs + u.eps;
        let h = u.ss * m_new / e;
        let p_new = decayed + h;

        let (own_new, weight_new, mark) = way.store(i, p_new);
        m[i] = m_new;
        v[i] = if W::MARKED { f32::from_bits(v_new.abs().to_bits() | mark) } else { v_new };
        if W::OWN {
            own[i] = own_new;
        }
        if W::WEIGHT {
            weight[i] = weight_new;
        }
    }
}

/// [`Scalars`] with its choices turned into numbers and masks.
#[derive(Clone, Copy)]
struct Uniform {
    s: f32,
    dec: f32,
    l2: f32,
    l2_mask: u32,
    slope: f32,
    near_mask: u32,
    b2: f32,
    w2: f32,
    threshold: f32,
    ss: f32,
    bs: f32,
    eps: f32,
}

impl Uniform {
    #[inline(always)]
    fn new(k: &Scalars) -> Self {
        let near = k.w1.abs() < 0.5;
        Uniform {
            s: if k.maximize { -k.s } else { k.s },
            dec: if k.decay == Decay::Decoupled { k.dec } else { 1.0 },
            l2: k.l2,
            l2_mask: mask(k.decay == Decay::L2),
            // `w1 - 1` is exact from one half on.
            slope: if near { k.w1 } else { k.w1 - 1.0 },
            near_mask: mask(near),
            b2: k.b2,
            w2: k.w2,
            threshold: if k.subnormals == Subnormals::Flush { f32::MIN_POSITIVE } else { 0.0 },
            ss: k.ss,
            bs: k.bs,
            eps: k.eps,
        }
    }
}

/// All ones for true, zero for false.
#[inline(always)]
fn mask(condition: bool) -> u32 {
    if condition { u32::MAX } else { 0 }
}

/// `a` where `mask` is all ones, `b` where it is zero; a mask keeps the loop from being compiled twice.
#[inline(always)]
fn select(mask: u32, a: f32, b: f32) -> f32 {
    f32::from_bits((a.to_bits() & mask) | (b.to_bits() & !mask))
}

/// `+0.0` if the magnitude of `value` is below `threshold`, else `value`.
#[inline(always)]
fn flush(value: f32, threshold: f32) -> f32 {
    if value.abs() < threshold { 0.0 } else { value }
}
