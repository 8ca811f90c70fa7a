//! Conversion between `f32` and the 16-bit types, by integers: the same bits on every machine.
//!
//! Hardware conversions are avoided on purpose. `vcvtneps2bf16` flushes subnormals, and converters
//! differ in what they make of a NaN. Here narrowing rounds to nearest, ties to even, keeps
//! subnormals, and maps every NaN to one positive quiet pattern; widening is exact. All functions are
//! free of branches, so a loop over them vectorises.

/// The bf16 pattern that every NaN narrows to.
pub const BF16_NAN: u16 = 0x7FC0;
/// The fp16 pattern that every NaN narrows to.
pub const F16_NAN: u16 = 0x7E00;

/// The `f32` with the value of the bf16 pattern `bits`.
#[inline(always)]
#[must_use]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The bf16 pattern nearest to `value`, ties to even.
#[inline(always)]
#[must_use]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let even = (bits >> 16) & 1;
    let rounded = (bits.wrapping_add(0x7FFF + even) >> 16) as u16;
    if is_nan(bits) { BF16_NAN } else { rounded }
}

/// The `f32` with the value of the fp16 pattern `bits`.
#[inline(always)]
#[must_use]
pub const fn f16_to_f32(bits: u16) -> f32 {
    /// 2^-24, the unit of fp16 subnormals.
    const UNIT: f32 = f32::from_bits(0x3380_0000);
    let sign = ((bits & 0x8000) as u32) << 16;
    let magnitude = (bits & 0x7FFF) as u32;
    // Exponent bias 15 becomes 127: add 112 to the exponent field.
    let normal = (magnitude << 13) + (112 << 23);
    let special = (magnitude << 13) | 0x7F80_0000;
    // A small integer times a power of two: exact, and never subnormal in f32.
    let subnormal = (magnitude as i32 as f32 * UNIT).to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude < 0x7C00 { finite } else { special })
}

/// The fp16 pattern nearest to `value`, ties to even; beyond 65,519 that is infinity.
#[inline(always)]
#[must_use]
pub const fn f32_to_f16(value: f32) -> u16 {
    /// 2^-14, the smallest normal fp16.
    const MIN_NORMAL: u32 = 113 << 23;
    /// 2^16: from here on all is infinity (what rounds up to it carries over by itself).
    const OVERFLOW: u32 = 143 << 23;
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7FFF_FFFF;

    let even = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0x0FFF + even) >> 13;

    // In units of 2^-24 the significand counts 2^(exponent - 126). A shift of 25 gives 0, which is
    // also right for all that is smaller; the lower bound only keeps unused lanes in range.
    let significand = (magnitude & 0x007F_FFFF) | 0x0080_0000;
    let wanted = 126_u32.saturating_sub(magnitude >> 23);
    let low = if wanted < 1 { 1 } else { wanted };
    let shift = if low > 25 { 25 } else { low };
    let even = (significand >> shift) & 1;
    let subnormal = (significand + ((1 << (shift - 1)) - 1) + even) >> shift;

    let finite = if magnitude < MIN_NORMAL { subnormal } else { normal };
    let rounded = (sign | if magnitude < OVERFLOW { finite } else { 0x7C00 }) as u16;
    if is_nan(bits) { F16_NAN } else { rounded }
}

#[inline(always)]
pub(super) const fn is_nan(bits: u32) -> bool {
    bits & 0x7FFF_FFFF > 0x7F80_0000
}

/// A type of array elements that a kernel reads as `f32`.
pub(super) trait Widen {
    /// What one element is in memory.
    type Raw: Copy;
    /// The element's value, exactly.
    fn widen(raw: Self::Raw) -> f32;
}

/// A type of array elements that a kernel writes from `f32`, or the absence of such an array.
pub(super) trait Narrow {
    /// What one element is in memory.
    type Raw: Copy + Default;
    /// Whether there is an array to write; without one it is empty.
    const PRESENT: bool;
    /// The element nearest to `value`.
    fn narrow(value: f32) -> Self::Raw;
}

/// bf16 elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bf16;
/// fp16 elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct F16;
/// fp32 elements.
pub(super) struct F32;
/// No array at all.
pub(super) struct Absent;

impl Widen for Bf16 {
    type Raw = u16;
    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        bf16_to_f32(raw)
    }
}

impl Widen for F16 {
    type Raw = u16;
    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        f16_to_f32(raw)
    }
}

impl Widen for F32 {
    type Raw = f32;
    #[inline(always)]
    fn widen(raw: f32) -> f32 {
        raw
    }
}

impl Narrow for Bf16 {
    type Raw = u16;
    const PRESENT: bool = true;
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        f32_to_bf16(value)
    }
}

impl Narrow for F16 {
    type Raw = u16;
    const PRESENT: bool = true;
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        f32_to_f16(value)
    }
}

impl Narrow for F32 {
    type Raw = f32;
    const PRESENT: bool = true;
    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Narrow for Absent {
    type Raw = u16;
    const PRESENT: bool = false;
    #[inline(always)]
    fn narrow(_value: f32) -> u16 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 61st pattern of all 2^32, and every pattern within 3 of a 13-bit or 16-bit border.
    fn sampled() -> impl Iterator<Item = f32> {
        let strided = (0..=u32::MAX).step_by(61);
        let borders = (0..1_u32 << 20).flat_map(|high| {
            (0..7_u32).map(move |near| (high << 12).wrapping_add(near).wrapping_sub(3))
        });
        strided.chain(borders).map(f32::from_bits)
    }

    #[test]
    fn every_16_bit_pattern_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            let wide = bf16_to_f32(bits);
            let expected = half::bf16::from_bits(bits).to_f32();
            assert!(wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan()));
            assert_eq!(f32_to_bf16(wide), if wide.is_nan() { BF16_NAN } else { bits });

            let wide = f16_to_f32(bits);
            let expected = half::f16::from_bits(bits).to_f32();
            assert!(wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan()));
            assert_eq!(f32_to_f16(wide), if wide.is_nan() { F16_NAN } else { bits });
        }
    }

    #[test]
    fn narrowing_agrees_with_half_except_for_nan() {
        for value in sampled() {
            let (bf16, f16) = if value.is_nan() {
                (BF16_NAN, F16_NAN)
            } else {
                (half::bf16::from_f32(value).to_bits(), half::f16::from_f32(value).to_bits())
            };
            assert_eq!(f32_to_bf16(value), bf16, "bf16 of {:#010x}", value.to_bits());
            assert_eq!(f32_to_f16(value), f16, "f16 of {:#010x}", value.to_bits());
        }
    }
}
