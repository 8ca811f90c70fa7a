//! The split master: an `f32` master weight in 16 bits beside the bf16 weight it rounds to.
//!
//! A bf16 weight that is the master rounded to nearest even nearly holds the master's upper half: it
//! is that half, or one more. So the lower half is stored (`lo`, 2 bytes), and one bit says which
//! (`up`). The bit is needed: a tie rounds to its even neighbour from both sides, so two masters share
//! a weight and a lower half. It lies in the sign bit of the second moment, which is never negative.
//!
//! ```text
//! weight = the master p rounded to bf16, to nearest even        lo = bits of p, lower half
//! up     = 1 if weight differs from the upper half of p         bits of p = ((weight - up) << 16) | lo
//! ```
//!
//! Nothing is lost of any number. A NaN stays a NaN, but its payload and sign are not kept.

use super::KernelError;
use super::error::check;
use super::master::Master;
use super::round::f32_to_bf16;

/// The bit of a stored second moment that holds `up`.
const SIGN: u32 = 1 << 31;

/// The master weight, from the bf16 weight `hi`, its lower half `lo`, and the stored second moment
/// `v`, of which the sign bit alone counts.
#[inline(always)]
#[must_use]
pub const fn join(hi: u16, lo: u16, v: f32) -> f32 {
    let up = v.to_bits() >> 31;
    // No borrow goes wrong: `up` is only set where rounding added one, or for a NaN.
    f32::from_bits((hi as u32).wrapping_sub(up) << 16 | lo as u32)
}

/// The bf16 weight of the master `p`, its lower half, and `up`.
#[inline(always)]
#[must_use]
pub const fn split(p: f32) -> (u16, u16, bool) {
    let bits = p.to_bits();
    let weight = f32_to_bf16(p);
    (weight, bits as u16, weight != (bits >> 16) as u16)
}

/// The second moment without the mark in its sign bit.
#[inline(always)]
#[must_use]
pub const fn unmarked(v: f32) -> f32 {
    f32::from_bits(v.to_bits() & !SIGN)
}

/// Fills `master` with the master weights of a run: an export.
///
/// # Errors
/// [`KernelError::Length`] if the lengths differ. Nothing is changed then.
pub fn join_all(hi: &[u16], lo: &[u16], v: &[f32], master: &mut [f32]) -> Result<(), KernelError> {
    let n = master.len();
    check("the weights", n, hi.len())?;
    check("lo", n, lo.len())?;
    check("v", n, v.len())?;
    for (((p, &hi), &lo), &v) in master.iter_mut().zip(hi).zip(lo).zip(v) {
        *p = join(hi, lo, v);
    }
    Ok(())
}

/// Splits the master weights of a run into `hi` and `lo`, and marks `v`, whose magnitudes stay: an
/// import. Whatever the sign bits of `v` were is lost; a negative moment is the caller's to refuse.
///
/// # Errors
/// [`KernelError::Length`] if the lengths differ. Nothing is changed then.
pub fn split_all(
    master: &[f32],
    hi: &mut [u16],
    lo: &mut [u16],
    v: &mut [f32],
) -> Result<(), KernelError> {
    let n = master.len();
    check("the weights", n, hi.len())?;
    check("lo", n, lo.len())?;
    check("v", n, v.len())?;
    for (((&p, hi), lo), v) in master.iter().zip(hi).zip(lo).zip(v) {
        let up;
        (*hi, *lo, up) = split(p);
        *v = marked(*v, up);
    }
    Ok(())
}

/// Fills `plain` with second moments without their marks.
///
/// # Errors
/// [`KernelError::Length`] if the lengths differ. Nothing is changed then.
pub fn unmark_all(v: &[f32], plain: &mut [f32]) -> Result<(), KernelError> {
    check("v", plain.len(), v.len())?;
    for (plain, &v) in plain.iter_mut().zip(v) {
        *plain = unmarked(v);
    }
    Ok(())
}

/// Takes the marks off second moments: their masters start anew.
pub(crate) fn unmark(v: &mut [f32]) {
    v.iter_mut().for_each(|v| *v = unmarked(*v));
}

#[inline(always)]
const fn marked(v: f32, up: bool) -> f32 {
    f32::from_bits(v.to_bits() & !SIGN | (up as u32) << 31)
}

/// The way of this file, for the kernels: `lo` is their own, the weights are read and written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split;

impl Master for Split {
    type Own = u16;
    const OWN: bool = true;
    type Weight = u16;
    const WEIGHT: bool = true;
    const MARKED: bool = true;

    #[inline(always)]
    fn load(own: u16, weight: u16, v: u32) -> f32 {
        join(weight, own, f32::from_bits(v))
    }

    #[inline(always)]
    fn after(self, _n: usize) -> Self {
        self
    }

    #[inline(always)]
    fn store(self, _i: usize, p: f32) -> (u16, u16, u32) {
        let (weight, lo, up) = split(p);
        (lo, weight, u32::from(up) << 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits and joins `p`, and demands it back; `v` must keep its magnitude.
    fn survives(bits: u32) -> bool {
        let p = f32::from_bits(bits);
        let (weight, lo, up) = split(p);
        let v = marked(f32::from_bits(bits & !SIGN), up);
        let back = join(weight, lo, v);
        let same = back.to_bits() == bits || (p.is_nan() && back.is_nan());
        same && weight == f32_to_bf16(p) && unmarked(v).to_bits() == bits & !SIGN
    }

    #[test]
    fn a_sample_of_all_patterns_survives() {
        let strided = (0..=u32::MAX).step_by(509);
        let borders = (0..=u16::MAX).flat_map(|high| {
            [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF].map(|low| u32::from(high) << 16 | low)
        });
        assert_eq!(strided.chain(borders).find(|&bits| !survives(bits)), None);
    }

    #[test]
    #[ignore = "all 2^32 patterns: cargo test -p tensortier-optimizer --lib -- --ignored"]
    fn every_pattern_survives() {
        assert_eq!((0..=u32::MAX).find(|&bits| !survives(bits)), None);
    }

    #[test]
    fn both_preimages_of_a_tie_are_told_apart() {
        // 0x3F80_8000 rounds down to even and 0x3F7F_8000 up to the same weight.
        assert_eq!(split(f32::from_bits(0x3F80_8000)), (0x3F80, 0x8000, false));
        assert_eq!(split(f32::from_bits(0x3F7F_8000)), (0x3F80, 0x8000, true));
    }

    #[test]
    fn runs_are_converted_element_by_element() {
        let master: Vec<f32> =
            (0..1000_u32).map(|i| f32::from_bits(i.wrapping_mul(0x0041_9A7B))).collect();
        let moments: Vec<f32> = (0..1000).map(|i| i as f32 * 1e-3).collect();
        let (mut hi, mut lo, mut v) = (vec![0; 1000], vec![0; 1000], moments.clone());
        split_all(&master, &mut hi, &mut lo, &mut v).unwrap();
        assert!(hi.iter().zip(&master).all(|(&hi, &p)| hi == f32_to_bf16(p)));
        assert!(v.iter().any(|v| v.is_sign_negative()), "the sample has weights rounded up");
        let (mut back, mut plain) = (vec![0.0; 1000], vec![1.0; 1000]);
        join_all(&hi, &lo, &v, &mut back).unwrap();
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(back.iter().zip(&master).all(same));
        unmark_all(&v, &mut plain).unwrap();
        assert_eq!(plain, moments);
        assert!(join_all(&hi[1..], &lo, &v, &mut back).is_err());
        assert!(split_all(&master, &mut hi, &mut lo[1..], &mut v).is_err());
        assert!(unmark_all(&v, &mut plain[1..]).is_err());
    }
}
