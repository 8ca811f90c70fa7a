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

use super::master::Master;
use super::planes::Slices;
use super::round::Widen;
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
pub(super) fn segment<I: Widen, W: Master, const AMSGRAD: bool>(
    k: &Scalars,
    way: W,
    planes: Slices<'_, W>,
    grad: &[I::Raw],
) {
    let Slices { own, weight, m, v, vmax } = planes;
    let (mut own, mut weight, mut vmax) = (own.iter_mut(), weight.iter_mut(), vmax.iter_mut());
    for (i, ((m, v), &g)) in m.iter_mut().zip(v).zip(grad).enumerate() {
        let (own, weight, vmax) = (own.next(), weight.next(), vmax.next());
        let old = Element {
            p: W::load(value(own.as_deref()), value(weight.as_deref()), v.to_bits()),
            m: *m,
            v: if W::MARKED { v.abs() } else { *v },
            vmax: value(vmax.as_deref()),
        };
        let new = element(k, I::widen(g), old);
        let (new_own, new_weight, mark) = way.store(i, new.p);
        *m = new.m;
        *v = if W::MARKED { f32::from_bits(new.v.abs().to_bits() | mark) } else { new.v };
        if AMSGRAD {
            put(vmax, new.vmax);
        }
        put(own, new_own);
        put(weight, new_weight);
    }
}

/// What stands in an array that may be absent.
fn value<T: Copy + Default>(slot: Option<&T>) -> T {
    slot.copied().unwrap_or_default()
}

/// Writes to an array that may be absent.
fn put<T>(slot: Option<&mut T>, value: T) {
    if let Some(slot) = slot {
        *slot = value;
    }
}
