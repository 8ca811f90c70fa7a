//! Pseudo-random elements that depend only on where they stand: any range gives the same bits.

use std::ops::Range;

/// Elements to be written, in one of the three floating-point types; 16-bit ones as their bits.
#[derive(Debug)]
pub(crate) enum ElementsMut<'a> {
    /// Brain floats.
    Bf16(&'a mut [u16]),
    /// Half floats.
    F16(&'a mut [u16]),
    /// Single floats.
    F32(&'a mut [f32]),
}

impl ElementsMut<'_> {
    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            ElementsMut::Bf16(out) | ElementsMut::F16(out) => out.len(),
            ElementsMut::F32(out) => out.len(),
        }
    }
}

/// Elements that share a key; within a block an element is its 16-bit position.
const BLOCK_ELEMS: u64 = 1 << 16;

/// What a block's elements are hashed with.
#[derive(Debug, Clone, Copy)]
struct Key {
    add: u32,
    xor: u32,
}

/// Fills `out` with `make(hash)` of each element of `range`, narrowed to the type of `out`. The hash
/// of an element depends on `names` and its index only. The values must be finite and below 65,520.
///
/// # Panics
/// If `range` and `out` differ in length: that is a bug of the caller.
pub(crate) fn fill(
    names: &[u64],
    range: Range<u64>,
    out: ElementsMut<'_>,
    make: impl Fn(u32) -> f32 + Copy,
) {
    assert_eq!(range.end - range.start, out.len() as u64, "a range and its elements differ");
    match out {
        ElementsMut::Bf16(out) => fill_as(names, range, out, move |hash| bf16_bits(make(hash))),
        ElementsMut::F16(out) => fill_as(names, range, out, move |hash| f16_bits(make(hash))),
        ElementsMut::F32(out) => fill_as(names, range, out, make),
    }
}

fn fill_as<T>(names: &[u64], range: Range<u64>, out: &mut [T], make: impl Fn(u32) -> T + Copy) {
    let mut at = range.start;
    let mut out = out;
    while at < range.end {
        let block = at / BLOCK_ELEMS;
        let end = ((block + 1) * BLOCK_ELEMS).min(range.end);
        let (head, rest) = out.split_at_mut((end - at) as usize);
        fill_block(key_of(names, block), (at % BLOCK_ELEMS) as u32, head, make);
        out = rest;
        at = end;
    }
}

/// Kept apart and simple so that the compiler vectorises it: 32-bit operations, no branches.
#[inline(never)]
fn fill_block<T>(key: Key, first: u32, out: &mut [T], make: impl Fn(u32) -> T) {
    for (index, out) in out.iter_mut().enumerate() {
        *out = make(hash(key, first.wrapping_add(index as u32)));
    }
}

/// Mixes a position with its block's key; two multiplications and three shifts, each a bijection.
#[inline(always)]
fn hash(key: Key, position: u32) -> u32 {
    let mut x = position.wrapping_mul(0x9e37_79b9).wrapping_add(key.add);
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d) ^ key.xor;
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Derives a block's key from the names of what it belongs to.
fn key_of(names: &[u64], block: u64) -> Key {
    let mut state = 0x7465_6e73_6f72_7469u64;
    for name in names.iter().chain([&block]) {
        // The finaliser of SplitMix64: every bit of a name reaches every bit of the key.
        state = (state ^ name).wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    Key { add: state as u32, xor: (state >> 32) as u32 }
}

/// Rounds a finite number to the nearest brain float, ties to even.
#[inline(always)]
pub(crate) fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Rounds a number below 65,520 to the nearest half float, ties to even.
#[inline(always)]
pub(crate) fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let normal = (magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13)
        .wrapping_sub((127 - 15) << 10);
    // Beside 0.5 a float counts in 2^-24, the unit of subnormal halves: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let small = magnitude < (127 - 14) << 23;
    (sign | if small { subnormal } else { normal }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_rounds_as_the_reference_does() {
        for index in 0..2_000_000u32 {
            let bits = index.wrapping_mul(0x9e37_79b9);
            let value = f32::from_bits(bits);
            if value.is_finite() {
                assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits(), "{bits:08x}");
            }
            if value.abs() < 65_520.0 {
                assert_eq!(f16_bits(value), half::f16::from_f32(value).to_bits(), "{bits:08x}");
            }
        }
        // Every half and every midpoint between two, where ties are decided.
        for bits in 0..0x7bffu16 {
            let (low, high) = (half::f16::from_bits(bits), half::f16::from_bits(bits + 1));
            let middle = (low.to_f32() + high.to_f32()) / 2.0;
            for value in [low.to_f32(), middle, -middle, middle.next_up(), middle.next_down()] {
                assert_eq!(f16_bits(value), half::f16::from_f32(value).to_bits(), "{value}");
            }
        }
    }

    #[test]
    fn hashes_of_neighbours_blocks_and_names_are_unlike() {
        let bits = |names: &[u64], start: u64| {
            let mut out = vec![0.0; 4096];
            let range = start..start + 4096;
            fill(names, range, ElementsMut::F32(&mut out), |hash| (hash >> 8) as f32);
            out
        };
        let base = bits(&[1, 2], 0);
        let mean = base.iter().sum::<f32>() / 4096.0 / (1 << 24) as f32;
        assert!((0.48..0.52).contains(&mean), "{mean}");
        for other in [bits(&[2, 1], 0), bits(&[1, 2], BLOCK_ELEMS), bits(&[1, 2], 1 << 40)] {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same < 3, "{same}");
        }
    }
}
