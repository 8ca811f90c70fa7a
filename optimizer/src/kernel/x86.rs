//! The bodies compiled for the vector extensions of x86-64, behind a check that they are there.
//!
//! Invariant: a function compiled for a feature is called only in this file, and only after the
//! processor has been asked for every feature it names. The answer is cached by the standard library.
//! Each function without such a feature in its name answers false, and has done nothing, if the
//! processor lacks it.
//!
//! Slices are arguments of their own, not fields of a struct: so the compiler knows that they do not
//! overlap and needs no checks at run time.

use super::accumulate::{Kind, Raw, add_all};
use super::master::Master;
use super::planes::Slices;
use super::round::Widen;
use super::scalars::Scalars;
use super::{body, norm};

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

/// Defines, for one instruction set, the checked functions and what they call.
macro_rules! instruction_set {
    ($has:ident, $features:literal, $update:ident, $squares:ident, $accumulate:ident, $inner:ident) => {
        /// Updates a run.
        pub(super) fn $update<I: Widen, W: Master, const AMSGRAD: bool>(
            k: &Scalars,
            way: W,
            planes: Slices<'_, W>,
            grad: &[I::Raw],
        ) -> bool {
            if !$has() {
                return false;
            }
            let Slices { own, weight, m, v, vmax } = planes;
            // SAFETY: the processor has the features that it is compiled for, checked above.
            unsafe { $inner::update::<I, W, AMSGRAD>(k, way, own, weight, m, v, vmax, grad) };
            true
        }

        /// Sums the squares of a block; the sum ends in the first lane.
        pub(super) fn $squares<I: Widen>(block: &[I::Raw], lanes: &mut [f64; 16]) -> bool {
            if !$has() {
                return false;
            }
            // SAFETY: the processor has the features that it is compiled for, checked above.
            unsafe { $inner::squares::<I>(block, lanes) };
            true
        }

        /// Adds to, or starts, accumulators.
        pub(super) fn $accumulate<A: Kind, I: Widen, const ADD: bool>(
            into: &mut [Raw<A>],
            from: &[I::Raw],
        ) -> bool {
            if !$has() {
                return false;
            }
            // SAFETY: the processor has the features that it is compiled for, checked above.
            unsafe { $inner::accumulate::<A, I, ADD>(into, from) };
            true
        }

        mod $inner {
            use super::*;

            #[inline(never)]
            #[target_feature(enable = $features)]
            #[expect(clippy::too_many_arguments, reason = "see the head of the file")]
            pub(super) fn update<I: Widen, W: Master, const AMSGRAD: bool>(
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

            #[inline(never)]
            #[target_feature(enable = $features)]
            pub(super) fn squares<I: Widen>(block: &[I::Raw], lanes: &mut [f64; 16]) {
                norm::squares::<I>(block, lanes);
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            pub(super) fn accumulate<A: Kind, I: Widen, const ADD: bool>(
                into: &mut [Raw<A>],
                from: &[I::Raw],
            ) {
                add_all::<A, I, ADD>(into, from);
            }
        }
    };
}

instruction_set!(has_avx2, "avx2,fma", update_avx2, squares_avx2, accumulate_avx2, avx2);
instruction_set!(
    has_avx512,
    "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl",
    update_avx512,
    squares_avx512,
    accumulate_avx512,
    avx512
);
