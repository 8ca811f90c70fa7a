//! State precisions: which planes are stored for a parameter, and where they lie in a section of a
//! subgroup's chunk.

use std::fmt;
use std::ops::Range;

/// How much state is stored for each element of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatePrecision {
    /// The caller's weights are the master: m and v are stored, 8 bytes. With 16-bit weights that
    /// needs stochastic rounding.
    Weights,
    /// An fp32 master beside the caller's weights: p, m and v are stored, 12 bytes.
    Fp32,
    /// The caller's bf16 weights are the upper half of the master, and only its lower half is
    /// stored: lo, m and v, 10 bytes. As exact as `Fp32`.
    SplitMaster,
}

/// One stored plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Plane {
    /// Master weights, fp32. Where they are split, reading them takes the caller's weights too.
    P,
    /// The lower 16 bits of split master weights.
    Lo,
    /// First moments, fp32.
    M,
    /// Second moments, fp32. Beside a split master their sign says which way the weight was rounded.
    V,
    /// Running maxima of the second moments (amsgrad), fp32.
    VMax,
}

/// What is stored for a parameter: its precision, and whether maxima are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    /// The state precision.
    pub precision: StatePrecision,
    /// Whether the maxima of amsgrad are stored.
    pub amsgrad: bool,
}

/// Bytes to which the start of a plane is aligned in its chunk: a cache line and a vector register.
const PLANE_ALIGN: u64 = 64;

impl Plane {
    /// Returns the bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Plane::Lo => 2,
            Plane::P | Plane::M | Plane::V | Plane::VMax => 4,
        }
    }
}

impl Form {
    /// Returns the stored planes in their order.
    pub fn planes(self) -> &'static [Plane] {
        use Plane::{Lo, M, P, V, VMax};
        match (self.precision, self.amsgrad) {
            (StatePrecision::Weights, false) => &[M, V],
            (StatePrecision::Weights, true) => &[M, V, VMax],
            (StatePrecision::Fp32, false) => &[P, M, V],
            (StatePrecision::Fp32, true) => &[P, M, V, VMax],
            (StatePrecision::SplitMaster, false) => &[Lo, M, V],
            (StatePrecision::SplitMaster, true) => &[Lo, M, V, VMax],
        }
    }

    /// Returns the stored bytes per element, alignment aside.
    pub fn bytes_per_element(self) -> u64 {
        self.planes().iter().map(|plane| plane.bytes()).sum()
    }

    /// Returns the bytes that planes of `elems` elements take together, alignment included.
    pub fn bytes(self, elems: u64) -> u64 {
        self.planes().iter().map(|plane| plane_bytes(*plane, elems)).sum()
    }

    /// Returns the stored planes and the byte range of each, for `elems` elements from byte `at` on.
    pub(crate) fn ranges(self, at: u64, elems: u64) -> impl Iterator<Item = (Plane, Range<usize>)> {
        let mut start = at;
        self.planes().iter().map(move |plane| {
            let range = start as usize..(start + elems * plane.bytes()) as usize;
            start += plane_bytes(*plane, elems);
            (*plane, range)
        })
    }
}

fn plane_bytes(plane: Plane, elems: u64) -> u64 {
    (elems * plane.bytes()).next_multiple_of(PLANE_ALIGN)
}

impl fmt::Display for StatePrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StatePrecision::Weights => "weights",
            StatePrecision::Fp32 => "fp32",
            StatePrecision::SplitMaster => "split",
        })
    }
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Plane::P => "p",
            Plane::Lo => "lo",
            Plane::M => "m",
            Plane::V => "v",
            Plane::VMax => "vmax",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_aligned_and_disjoint() {
        use StatePrecision::{Fp32, SplitMaster, Weights};
        for elems in [1, 15, 16, 17, 65_536, 65_537] {
            for (precision, amsgrad) in [(Weights, true), (Fp32, false), (SplitMaster, true)] {
                let form = Form { precision, amsgrad };
                let ranges: Vec<_> = form.ranges(128, elems).collect();
                assert_eq!(ranges.len(), form.planes().len());
                assert_eq!(ranges[0].1.start, 128);
                assert!(ranges.iter().all(|(_, range)| range.start % 64 == 0));
                for (plane, range) in &ranges {
                    assert_eq!(range.len() as u64, elems * plane.bytes());
                }
                assert!(ranges.windows(2).all(|pair| pair[0].1.end <= pair[1].1.start));
                assert!(ranges.last().unwrap().1.end as u64 <= 128 + form.bytes(elems));
            }
        }
    }

    #[test]
    fn a_split_master_takes_ten_bytes() {
        let bytes = |precision| Form { precision, amsgrad: false }.bytes_per_element();
        assert_eq!(bytes(StatePrecision::Weights), 8);
        assert_eq!(bytes(StatePrecision::Fp32), 12);
        assert_eq!(bytes(StatePrecision::SplitMaster), 10);
    }
}
