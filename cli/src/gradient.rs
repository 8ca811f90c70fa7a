//! Gradients for a run without a model to differentiate: realistic in spread, the same bits always.

use std::ops::Range;

use crate::elements;
pub(crate) use crate::elements::ElementsMut as GradMut;

/// Sets gradients apart from weights made of the same seed.
const NAME: u64 = 0x6772_6164;

/// Fills `out` with the gradient of the elements `range` of one parameter at one step. An element
/// depends only on the four numbers that name it, never on how the range was cut.
///
/// Magnitudes spread from 1e-11 to 8e-3 around 1e-3, both signs, about 1 in 256 is zero (more in
/// fp16, where the smallest are below its range); never NaN or infinite.
///
/// # Panics
/// If `range` and `out` differ in length.
pub(crate) fn fill(seed: u64, step: u64, parameter: u64, range: Range<u64>, out: GradMut<'_>) {
    elements::fill(&[NAME, seed, step, parameter], range, out, from_hash);
}

/// One uniform factor of 16 bits and the square of one of 8: the products bunch near zero as
/// gradients do. Only conversions and multiplications, so every machine gets the same bits.
#[inline(always)]
fn from_hash(hash: u32) -> f32 {
    const SCALE: f32 = 1.0 / (1u64 << 38) as f32;
    let signed = (hash as i32 >> 16) as f32;
    let factor = ((hash >> 8) & 0xff) as i32 as f32;
    (signed * factor) * (factor * SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(step: u64, parameter: u64, range: Range<u64>) -> Vec<f32> {
        let mut out = vec![f32::NAN; (range.end - range.start) as usize];
        fill(7, step, parameter, range, GradMut::F32(&mut out));
        out
    }

    #[test]
    fn any_cut_of_the_range_gives_the_same_bits() {
        let whole = floats(3, 5, 65_000..200_000);
        for piece in [1usize, 17, 4096, 65_536, 100_000] {
            let mut cut = Vec::new();
            let mut at = 65_000u64;
            while at < 200_000 {
                // Single elements only at a border, or the test takes long.
                let end = if piece == 1 && at > 66_000 { 200_000 } else { at + piece as u64 };
                cut.extend(floats(3, 5, at..end.min(200_000)));
                at = end.min(200_000);
            }
            assert!(whole.iter().zip(&cut).all(|(a, b)| a.to_bits() == b.to_bits()), "{piece}");
            assert_eq!(whole.len(), cut.len());
        }
    }

    #[test]
    fn narrow_types_are_the_rounded_wide_one() {
        let wide = floats(1, 2, 100..70_000);
        let (mut brain, mut half) = (vec![0u16; wide.len()], vec![0u16; wide.len()]);
        fill(7, 1, 2, 100..70_000, GradMut::Bf16(&mut brain));
        fill(7, 1, 2, 100..70_000, GradMut::F16(&mut half));
        for (index, value) in wide.iter().enumerate() {
            assert_eq!(brain[index], half::bf16::from_f32(*value).to_bits());
            assert_eq!(half[index], half::f16::from_f32(*value).to_bits());
        }
    }

    #[test]
    fn magnitudes_spread_and_every_number_is_finite() {
        let all = floats(1, 0, 0..1_000_000);
        assert!(all.iter().all(|value| value.is_finite() && value.abs() < 8e-3));
        let count = |test: fn(&f32) -> bool| all.iter().filter(|value| test(value)).count();
        assert!((2_000..8_000).contains(&count(|value| *value == 0.0)));
        assert!((480_000..520_000).contains(&count(|value| *value < 0.0)));
        assert!(count(|value| value.abs() < 1e-6) > 1_000);
        let mean = all.iter().map(|value| value.abs() as f64).sum::<f64>() / 1e6;
        assert!((0.5e-3..2e-3).contains(&mean), "{mean}");
    }

    #[test]
    fn the_values_are_those_of_the_first_release() {
        let bits = |step, parameter, index| floats(step, parameter, index..index + 1)[0].to_bits();
        let golden =
            [bits(1, 0, 0), bits(1, 0, 1), bits(2, 0, 0), bits(1, 1, 0), bits(9, 8, 1 << 40)];
        assert_eq!(golden, GOLDEN);
    }

    const GOLDEN: [u32; 5] = [0xba14_c888, 0x3a88_a055, 0xbb97_1719, 0xba22_b420, 0x3a06_5fb0];
}
