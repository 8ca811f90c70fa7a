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
//! inner = mix(key + (index >> 22) * G)                               (64-bit operations)
//! x     = (index & 0x3FFFFF) + (lower half of inner)                 (32-bit operations)
//! x    *= 0x21F0AAAD
//! x    ^= (x >> 15) ^ (upper half of inner)
//! x    *= 0x735A2D97
//! ```
//! Over all keys `x` is uniform, and `n` bits of noise are its upper `n`. Few operations are needed since
//! only 22 bits of an index are hashed element by element.
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
use std::ops::Range;

use super::master::Master;
use super::round::{BF16_NAN, Bf16, F16, F16_NAN, Widen, is_nan};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bits of an index that the counter of the noise holds, and their mask.
const BITS: u32 = 22;
const COUNTER: u64 = (1 << BITS) - 1;

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

    /// Cuts a run of `n` elements where the counter of its noise starts anew.
    pub(super) fn parts(self, n: usize) -> impl Iterator<Item = Range<usize>> {
        let until_border = COUNTER + 1 - (self.first & COUNTER);
        let first = usize::try_from(until_border).unwrap_or(n).min(n);
        let rest = (first..n).step_by(COUNTER as usize + 1);
        let ends = rest.clone().chain([n]);
        [0].into_iter().chain(rest).zip(ends).map(|(start, end)| start..end)
    }

    /// The rest of the run after `n` elements.
    pub(super) const fn after(self, n: usize) -> Self {
        Stochastic { first: self.first.wrapping_add(n as u64), ..self }
    }
}

const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The noise of a run within one round of the counter.
#[derive(Debug, Clone, Copy)]
struct Noise {
    first: u32,
    inner: u32,
}

impl Noise {
    const fn new(rounding: Stochastic) -> Self {
        let Stochastic { key, first } = rounding;
        let both = mix(key.wrapping_add((first >> BITS).wrapping_mul(GOLDEN)));
        let counter = (first & COUNTER) as u32;
        Noise { first: counter.wrapping_add(both as u32), inner: (both >> 32) as u32 }
    }

    /// 32 bits of noise for the run's element `i`.
    #[inline(always)]
    const fn at(self, i: usize) -> u32 {
        let x = self.first.wrapping_add(i as u32).wrapping_mul(0x21F0_AAAD);
        (x ^ (x >> 15) ^ self.inner).wrapping_mul(0x735A_2D97)
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
    /// For a run within one of the [`parts`](Stochastic::parts).
    pub(super) const fn new(rounding: Stochastic) -> Self {
        Rounded { noise: Noise::new(rounding), _type: PhantomData }
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
    fn after(self, n: usize) -> Self {
        let first = self.noise.first.wrapping_add(n as u32);
        Rounded { noise: Noise { first, ..self.noise }, ..self }
    }

    #[inline(always)]
    fn store(self, i: usize, p: f32) -> (u16, u16, u32) {
        (0, O::round(p, self.noise.at(i)), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_where_the_counter_starts_anew() {
        let parts = |first, n| {
            let parts = Stochastic { key: 0, first }.parts(n);
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        let round = 1 << BITS;
        assert_eq!(parts(0, 5), [(0, 5)]);
        assert_eq!(parts(0, round), [(0, round)]);
        assert_eq!(parts(0, round + 1), [(0, round), (round, round + 1)]);
        assert_eq!(parts(3, round), [(0, round - 3), (round - 3, round)]);
        assert_eq!(parts(COUNTER, 3), [(0, 1), (1, 3)]);
        assert_eq!(parts((9 << BITS) + 7, 2), [(0, 2)]);
        let (second, third) = (round + 5, 2 * round + 5);
        let many = parts(u64::MAX - 4, third + 1);
        assert_eq!(many, [(0, 5), (5, second), (second, third), (third, third + 1)]);
        assert!(parts(7, 0).iter().all(|(start, end)| start == end));
    }
}
