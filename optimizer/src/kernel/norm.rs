//! The sum of squares of a gradient: a sum whose order is fixed, so that its bits are.
//!
//! A parameter's elements are cut into blocks of [`BLOCK`], counted from its first. Within a block
//! element `i` is added to lane `i mod 16`, in `f64`; then the lanes are added pairwise: lane `j` and
//! lane `j + 8`, of those eight sums `j` and `j + 4`, then `j + 2`, then the last two. The blocks'
//! sums are added one by one: all blocks of the first parameter in order, then those of the next. Each
//! addition is rounded once. The squares are exact: a product of two `f32` has 48 bits and neither
//! overflows nor underflows in `f64`.

use super::fpenv::FpEnv;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::planes::Input;
use super::round::{Bf16, F16, F32, Widen};
use super::sums::LANES;
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Isa, KernelError};

/// The most elements of one block.
pub const BLOCK: usize = 65_536;

/// The sum of squares of one block: at most [`BLOCK`] elements, in the order that this module defines.
///
/// It is finite if and only if every element is. The same bits for every `isa`. Allocates nothing;
/// the thread's floating-point environment has no influence.
///
/// # Errors
/// [`KernelError::Block`] if there are more elements, and [`KernelError::UnavailableIsa`].
pub fn block_sum(isa: Isa, block: Input<'_>) -> Result<f64, KernelError> {
    if block.len() > BLOCK {
        return Err(KernelError::Block { most: BLOCK, actual: block.len() });
    }
    let sum = match block {
        Input::Bf16(raw) => run::<Bf16>(isa, raw),
        Input::F16(raw) => run::<F16>(isa, raw),
        Input::F32(raw) => run::<F32>(isa, raw),
    };
    sum.ok_or(KernelError::UnavailableIsa { isa })
}

/// The sum of squares of the elements whose blocks have these sums, in order; its square root is their
/// norm.
///
/// It is finite if and only if every element is.
#[must_use]
pub fn sum_of(sums: &[f64]) -> f64 {
    let mut sum = 0.0;
    let _environment = FpEnv::enter();
    total(sums, &mut sum);
    sum
}

/// Not inlined, with memory for a result: so it stays within the environment.
#[inline(never)]
fn total(sums: &[f64], sum: &mut f64) {
    *sum = sums.iter().fold(0.0, |total, sum| total + sum);
}

fn run<I: Widen>(isa: Isa, block: &[I::Raw]) -> Option<f64> {
    let mut lanes = [0.0; LANES];
    let _environment = FpEnv::enter();
    let ran = match isa {
        Isa::Scalar => {
            scalar::<I>(block, &mut lanes);
            true
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            neon::squares::<I>(block, &mut lanes);
            true
        }
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => false,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::squares_avx2::<I>(block, &mut lanes),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86::squares_avx512::<I>(block, &mut lanes),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => false,
    };
    add_pairwise(&mut lanes);
    ran.then(|| lanes[0])
}

/// The definition, element by element.
#[inline(never)]
fn scalar<I: Widen>(block: &[I::Raw], lanes: &mut [f64; LANES]) {
    for (i, &raw) in block.iter().enumerate() {
        let x = f64::from(I::widen(raw));
        lanes[i % LANES] += x * x;
    }
}

/// Adds the lanes pairwise; the sum ends in the first.
#[inline(never)]
fn add_pairwise(lanes: &mut [f64; LANES]) {
    for half in [8, 4, 2, 1] {
        for j in 0..half {
            lanes[j] += lanes[j + half];
        }
    }
}
