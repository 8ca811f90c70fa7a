//! Stochastic rounding of 16-bit weights that are themselves the master.
//!
//! Rounded to nearest, an update smaller than half a unit of the weight is lost every time. Rounded up
//! with the probability of the part that is cut off, it arrives on average. The noise comes from a
//! counter: a hash of the seed, the step, the parameter and the element's logical index. So it is the
//! same for any instruction set, cut, order or number of threads.
//!
//! # The noise
//! All integers wrap. With `mix` the finaliser of SplitMix64,
//! `z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31`:
//! ```text
//! key   = mix(mix(mix(seed + G) + t + G) + parameter + G)           G = 0x9E3779B97F4A7C15
//! inner = mix(key + (upper 32 bits of the index) * G)
//! x     = (lower 32 bits of the index) ^ (lower 32 bits of inner)
//! x    ^= x >> 16; x *= 0x21F0AAAD; x ^= (upper 32 bits of inner)
//! x    ^= x >> 15; x *= 0x735A2D97; x ^= x >> 15                    (32-bit operations)
//! ```
//! `x` is uniform over 32 bits; `n` bits of noise are its upper `n`.
//!
//! # The rounding
//! Of a number's magnitude, in units of the last place that the 16-bit type has there, the fraction is
//! cut off after noise of as many bits has been added. So a number is rounded away from zero with
//! exactly the probability of its fraction; a number that the type holds stays as it is.
//! * bf16: the fraction has 16 bits, `weight = (bits + noise) >> 16`, in subnormals as well.
//! * fp16: 13 bits from 2^-14 on. Below, the unit is 2^-24, and the fraction has up to 31 bits; what lies
//!   below 2^-55 is dropped first (of magnitudes under 2^-32 only).
//! * Beyond the largest finite number the grid goes on to the next power of two, which is called
//!   infinity: for fp16 65,504 and 65,536. From that power on all is infinity.
//! * Infinity stays; every NaN becomes the pattern of [`round`](super::round).

use std::marker::PhantomData;

use super::master::Master;
use super::round::{BF16_NAN, Bf16, F16, F16_NAN, Widen, is_nan};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// What the noise of one run comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stochastic {
    /// Of the seed, the step and the parameter: [`Stochastic::key`].
    pub key: u64,
    /// Logical index, within the parameter, of the run's first element.
    pub first: u64,
}

impl Stochastic {
    /// The key of one parameter's `t`-th update, as the module's documentation defines it. `parameter`
    /// tells parameters apart: a hash of the name.
    #[must_use]
    pub const fn key(seed: u64, t: u64, parameter: u64) -> u64 {
        let key = mix(seed.wrapping_add(GOLDEN));
        let key = mix(key.wrapping_add(t).wrapping_add(GOLDEN));
        mix(key.wrapping_add(parameter).wrapping_add(GOLDEN))
    }

    /// Number of elements from the first to where the upper half of the index changes.
    pub(super) const fn until_border(self) -> u64 {
        (1 << 32) - (self.first & 0xFFFF_FFFF)
    }

    /// The rest of the run after `n` elements.
    pub(super) const fn after(self, n: u64) -> Self {
        Stochastic { first: self.first.wrapping_add(n), ..self }
    }
}

const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The noise of a run within which the upper half of the index stays.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noise {
    outer: u32,
    inner: u32,
    first: u32,
}

impl Noise {
    pub(super) const fn new(rounding: Stochastic) -> Self {
        let Stochastic { key, first } = rounding;
        let both = mix(key.wrapping_add((first >> 32).wrapping_mul(GOLDEN)));
        Noise { outer: both as u32, inner: (both >> 32) as u32, first: first as u32 }
    }

    /// 32 bits of noise for the run's element `i`.
    #[inline(always)]
    const fn at(self, i: usize) -> u32 {
        let x = self.first.wrapping_add(i as u32) ^ self.outer;
        let x = (x ^ (x >> 16)).wrapping_mul(0x21F0_AAAD) ^ self.inner;
        let x = (x ^ (x >> 15)).wrapping_mul(0x735A_2D97);
        x ^ (x >> 15)
    }
}

/// A 16-bit type that weights are rounded to by noise.
pub(super) trait Round: Widen<Raw = u16> + Copy {
    /// One of the two patterns beside `value`, by 32 bits of noise.
    fn round(value: f32, noise: u32) -> u16;
}

impl Round for Bf16 {
    #[inline(always)]
    fn round(value: f32, noise: u32) -> u16 {
        let bits = value.to_bits();
        // A number of bf16, infinity too, has no fraction, and noise alone carries nothing.
        let rounded = (bits.wrapping_add(noise >> 16) >> 16) as u16;
        if is_nan(bits) { BF16_NAN } else { rounded }
    }
}

impl Round for F16 {
    #[inline(always)]
    fn round(value: f32, noise: u32) -> u16 {
        /// 2^-14, the smallest normal fp16.
        const MIN_NORMAL: u32 = 113 << 23;
        /// 2^16: from here on all is infinity (what is rounded up to it carries over by itself).
        const OVERFLOW: u32 = 143 << 23;
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7FFF_FFFF;

        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(noise >> 19) >> 13;

        // In units of 2^-24 the significand counts 2^(exponent - 126): that many bits are cut off, of
        // which noise reaches the upper 31. The bounds also keep unused lanes in range.
        let significand = (magnitude & 0x007F_FFFF) | 0x0080_0000;
        let wanted = 126_u32.saturating_sub(magnitude >> 23);
        let cut = wanted.clamp(1, 31);
        let dropped = (wanted.max(31) - 31).min(31);
        let subnormal = ((significand >> dropped) + (noise >> (32 - cut))) >> cut;

        let finite = if magnitude < MIN_NORMAL { subnormal } else { normal };
        let rounded = (sign | if magnitude < OVERFLOW { finite } else { 0x7C00 }) as u16;
        if is_nan(bits) { F16_NAN } else { rounded }
    }
}

/// The way of this file, for the kernels: the weights are read and written, and there is nothing else.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounded<O> {
    noise: Noise,
    _type: PhantomData<O>,
}

impl<O> Rounded<O> {
    pub(super) const fn new(noise: Noise) -> Self {
        Rounded { noise, _type: PhantomData }
    }
}

impl<O: Round> Master for Rounded<O> {
    type Own = u16;
    const OWN: bool = false;
    type Weight = u16;
    const WEIGHT: bool = true;
    const MARKED: bool = false;

    #[inline(always)]
    fn load(_own: u16, weight: u16, _v: u32) -> f32 {
        O::widen(weight)
    }

    #[inline(always)]
    fn store(self, i: usize, p: f32) -> (u16, u16, u32) {
        (0, O::round(p, self.noise.at(i)), 0)
    }
}
