//! The loops over a gradient that every instruction set compiles: adding it to an accumulator, and
//! adding up its squares.

use super::round::{Bf16, F16, F32, Narrow, Widen};

/// How many sums of squares are kept apart; element `i` is added to sum `i mod LANES`.
pub(super) const LANES: usize = 16;

/// A type of accumulators: read and written.
pub(super) trait Kind: Widen + Narrow<Raw = <Self as Widen>::Raw> {}

impl Kind for Bf16 {}
impl Kind for F16 {}
impl Kind for F32 {}

/// An accumulator's element in memory.
pub(super) type Raw<A> = <A as Widen>::Raw;

/// Adds a gradient to an accumulator, or stores it there.
#[inline(always)]
pub(super) fn add_all<A: Kind, I: Widen, const ADD: bool>(into: &mut [Raw<A>], from: &[I::Raw]) {
    for (into, &from) in into.iter_mut().zip(from) {
        let from = I::widen(from);
        *into = A::narrow(if ADD { A::widen(*into) + from } else { from });
    }
}

/// Adds the squares of a block to the sums that are kept apart.
#[inline(always)]
pub(super) fn add_squares<I: Widen>(block: &[I::Raw], lanes: &mut [f64; LANES]) {
    // In registers: memory behind a reference would be written each time.
    let mut sums = *lanes;
    let (rows, rest) = block.as_chunks::<LANES>();
    for row in rows {
        add_row::<I>(row, &mut sums);
    }
    add_row::<I>(rest, &mut sums);
    *lanes = sums;
}

#[inline(always)]
fn add_row<I: Widen>(row: &[I::Raw], sums: &mut [f64; LANES]) {
    for (sum, &raw) in sums.iter_mut().zip(row) {
        let x = f64::from(I::widen(raw));
        *sum = x.mul_add(x, *sum);
    }
}
