//! The update of one element, written to be read: the definition that every kernel must match.
//!
//! This is Adam (Kingma and Ba, 2015) and `AdamW` (Loshchilov and Hutter, 2019), with the maximum of
//! Reddi et al. (2018) for amsgrad, in the order of operations that torch's fused CPU optimizer
//! rounds in: the results of `torch.optim.Adam` and `AdamW` with `fused=True` are reproduced bit for
//! bit. Each `*`, `+`, `-`, `/` and `sqrt` is one correctly rounded 32-bit operation, and each
//! `mul_add` one fused operation; nothing else may be fused.
//!
//! [`Isa::Scalar`](super::Isa::Scalar) runs it as it stands. Without a fused multiply-add in the
//! enabled target features `mul_add` is a call into the C library, exact but slow (about a
//! twenty-fifth of the speed of the vector kernels).

use super::planes::Slices;
use super::round::{Narrow, Widen};
use super::scalars::{Decay, Scalars, Subnormals};

/// The state of one element.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    /// Master weight.
    pub(super) p: f32,
    /// First moment.
    pub(super) m: f32,
    /// Second moment.
    pub(super) v: f32,
    /// Running maximum of `v`; without amsgrad unused.
    pub(super) vmax: f32,
}

/// The state after an update by gradient `grad`.
pub(super) fn element(k: &Scalars, grad: f32, old: Element) -> Element {
    let Element { mut p, mut m, mut v, mut vmax } = old;

    let mut g = grad * k.s;
    if k.maximize {
        g = -g;
    }

    match k.decay {
        Decay::None => {}
        Decay::Decoupled => p *= k.dec,
        Decay::L2 => g = p.mul_add(k.l2, g),
    }

    // Interpolate from m to g by w1, from the nearer end.
    let d = g - m;
    if k.w1.abs() < 0.5 {
        m = k.w1.mul_add(d, m);
    } else {
        m = (k.w1 - 1.0).mul_add(d, g);
    }

    let q = k.w2 * g;
    let r = v * k.b2;
    v = q.mul_add(g, r);

    if k.subnormals == Subnormals::Flush {
        if m.abs() < f32::MIN_POSITIVE {
            m = 0.0;
        }
        if v.abs() < f32::MIN_POSITIVE {
            v = 0.0;
        }
    }

    let mut x = v;
    if k.amsgrad {
        if vmax >= v || vmax.is_nan() {
            x = vmax;
        }
        vmax = x;
    }

    let e = x.sqrt() / k.bs;
    let e = e + k.eps;
    let h = k.ss * m;
    let h = h / e;
    p += h;

    Element { p, m, v, vmax }
}

/// Updates a run of elements one by one, as the compiled bodies do many at a time.
#[inline(never)]
pub(super) fn segment<I: Widen, O: Narrow, const AMSGRAD: bool>(
    k: &Scalars,
    planes: Slices<'_>,
    grad: &[I::Raw],
    out: &mut [O::Raw],
) {
    let Slices { p, m, v, vmax } = planes;
    let mut weights = out.iter_mut();
    let mut maxima = vmax.iter_mut();
    for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(grad) {
        let vmax = maxima.next();
        let old = Element { p: *p, m: *m, v: *v, vmax: vmax.as_deref().copied().unwrap_or(0.0) };
        let new = element(k, I::widen(g), old);
        (*p, *m, *v) = (new.p, new.m, new.v);
        if AMSGRAD && let Some(vmax) = vmax {
            *vmax = new.vmax;
        }
        if O::PRESENT
            && let Some(weight) = weights.next()
        {
            *weight = O::narrow(new.p);
        }
    }
}
