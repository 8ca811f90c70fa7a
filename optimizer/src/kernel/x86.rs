//! The bodies compiled for the vector extensions of x86-64, behind a check that they are there.
//!
//! Invariant: a function compiled for a feature is called only in this file, and only after the
//! processor has been asked for every feature it names. The answer is cached by the standard library.
//! Each function without such a feature in its name answers false, and has done nothing, if the
//! processor lacks it.
//!
//! Slices are arguments of their own, not fields of a struct: so the compiler knows that they do not
//! overlap and needs no checks at run time.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use super::body;
use super::master::Master;
use super::planes::Slices;
use super::round::Widen;
use super::scalars::Scalars;
use super::sums::{Kind, Raw, add_all, add_squares};

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

        /// Adds the squares of a block to its lanes.
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
            use super::{Kind, Master, Raw, Scalars, Widen};

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
                super::update::<I, W, AMSGRAD>(k, way, own, weight, m, v, vmax, grad);
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            pub(super) fn squares<I: Widen>(block: &[I::Raw], lanes: &mut [f64; 16]) {
                super::squares::<I>(block, lanes);
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            pub(super) fn accumulate<A: Kind, I: Widen, const ADD: bool>(
                into: &mut [Raw<A>],
                from: &[I::Raw],
            ) {
                super::accumulate::<A, I, ADD>(into, from);
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

/// Elements that are worked on between two requests for memory: whole lanes, whole lines of every type.
const CHUNK: usize = 512;
/// The same for updates, which have more streams.
const CHUNK_OF_UPDATE: usize = 64;
/// Bytes that are requested ahead of those that are worked on.
const AHEAD: usize = 4096;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Requests the lines that lie `AHEAD` bytes after those of `chunk`, which a stream reaches next. The
/// processor's own look-ahead ends with each page, and keeps less under way than memory can take.
#[inline(always)]
fn ahead<T>(chunk: &[T]) {
    let first = chunk.as_ptr().cast::<i8>().wrapping_add(AHEAD);
    for at in (0..size_of_val(chunk)).step_by(LINE) {
        // SAFETY: a request is a hint; whatever the address, it neither faults nor changes a value.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(at)) };
    }
}

/// A part of an array; nothing of an absent one.
#[inline(always)]
fn part<T>(array: &mut [T], range: Range<usize>) -> &mut [T] {
    array.get_mut(range).unwrap_or_default()
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "see the head of the file")]
fn update<I: Widen, W: Master, const AMSGRAD: bool>(
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
    for start in (0..n).step_by(CHUNK_OF_UPDATE) {
        let range = start..n.min(start + CHUNK_OF_UPDATE);
        let (own, weight) = (part(own, range.clone()), part(weight, range.clone()));
        let (m, v, vmax) =
            (part(m, range.clone()), part(v, range.clone()), part(vmax, range.clone()));
        let grad = grad.get(range).unwrap_or_default();
        ahead(own);
        ahead(weight);
        ahead(m);
        ahead(v);
        ahead(vmax);
        ahead(grad);
        body::segment::<I, W, AMSGRAD>(k, way.after(start), own, weight, m, v, vmax, grad);
    }
}

#[inline(always)]
fn squares<I: Widen>(block: &[I::Raw], lanes: &mut [f64; 16]) {
    for chunk in block.chunks(CHUNK) {
        ahead(chunk);
        add_squares::<I>(chunk, lanes);
    }
}

#[inline(always)]
fn accumulate<A: Kind, I: Widen, const ADD: bool>(into: &mut [Raw<A>], from: &[I::Raw]) {
    for (into, from) in into.chunks_mut(CHUNK).zip(from.chunks(CHUNK)) {
        ahead(into);
        ahead(from);
        add_all::<A, I, ADD>(into, from);
    }
}
