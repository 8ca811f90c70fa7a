//! Sums of gradients over micro-batches: each addition rounded once to the accumulator's type.
//!
//! An element is widened, added in `f32`, and rounded to the accumulator's type. With accumulator and
//! gradient of one 16-bit type this is what torch does in `.grad += g`; with an `f32` accumulator it
//! is an addition in `f32`.

use super::error::check;
use super::fpenv::FpEnv;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::planes::{Accumulator, Input};
use super::round::{Bf16, F16, F32, Widen};
use super::sums::{Kind, Raw, add_all};
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Isa, KernelError};

/// Adds the gradient of a micro-batch to what the ones before it summed up to.
///
/// The same bits for every `isa`, but for the payload of a NaN in an `f32` accumulator. Allocates
/// nothing; the thread's floating-point environment has no influence.
///
/// # Errors
/// [`KernelError::Length`] if the lengths differ, and [`KernelError::UnavailableIsa`]. Nothing is
/// changed then.
pub fn accumulate(isa: Isa, into: Accumulator<'_>, add: Input<'_>) -> Result<(), KernelError> {
    by_accumulator::<true>(isa, into, add)
}

/// Starts an accumulator with the gradient of the first micro-batch, rounded to nearest even where the
/// accumulator's type is narrower.
///
/// # Errors
/// As [`accumulate`].
pub fn store(isa: Isa, into: Accumulator<'_>, from: Input<'_>) -> Result<(), KernelError> {
    by_accumulator::<false>(isa, into, from)
}

fn by_accumulator<const ADD: bool>(
    isa: Isa,
    into: Accumulator<'_>,
    from: Input<'_>,
) -> Result<(), KernelError> {
    check("the gradient", into.len(), from.len())?;
    let ran = match into {
        Accumulator::Bf16(raw) => by_input::<Bf16, ADD>(isa, raw, from),
        Accumulator::F16(raw) => by_input::<F16, ADD>(isa, raw, from),
        Accumulator::F32(raw) => by_input::<F32, ADD>(isa, raw, from),
    };
    if ran { Ok(()) } else { Err(KernelError::UnavailableIsa { isa }) }
}

fn by_input<A: Kind, const ADD: bool>(isa: Isa, into: &mut [Raw<A>], from: Input<'_>) -> bool {
    match from {
        Input::Bf16(raw) => run::<A, Bf16, ADD>(isa, into, raw),
        Input::F16(raw) => run::<A, F16, ADD>(isa, into, raw),
        Input::F32(raw) => run::<A, F32, ADD>(isa, into, raw),
    }
}

fn run<A: Kind, I: Widen, const ADD: bool>(isa: Isa, into: &mut [Raw<A>], from: &[I::Raw]) -> bool {
    let _environment = FpEnv::enter();
    match isa {
        Isa::Scalar => {
            scalar::<A, I, ADD>(into, from);
            true
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            neon::accumulate::<A, I, ADD>(into, from);
            true
        }
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => false,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::accumulate_avx2::<A, I, ADD>(into, from),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86::accumulate_avx512::<A, I, ADD>(into, from),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => false,
    }
}

/// The loop with the features of the build alone.
#[inline(never)]
fn scalar<A: Kind, I: Widen, const ADD: bool>(into: &mut [Raw<A>], from: &[I::Raw]) {
    add_all::<A, I, ADD>(into, from);
}
