//! State precisions: which planes a subgroup stores, and where they lie in its chunk.

use std::fmt;
use std::ops::Range;

/// How much state is stored for each parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatePrecision {
    /// The caller's fp32 weights are the master: m and v are stored, 8 bytes per parameter.
    Weights,
    /// An fp32 master beside the caller's weights: p, m and v are stored, 12 bytes per parameter.
    Fp32,
}

/// One stored plane of fp32 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Plane {
    /// Master weights.
    P,
    /// First moments.
    M,
    /// Second moments.
    V,
    /// Running maxima of the second moments (amsgrad).
    VMax,
}

/// Bytes to which the start of a plane is aligned in its chunk: a cache line and a vector register.
const PLANE_ALIGN: u64 = 64;

impl StatePrecision {
    /// Returns the stored planes in their order in a chunk.
    pub fn planes(self, amsgrad: bool) -> &'static [Plane] {
        use Plane::{M, P, V, VMax};
        match (self, amsgrad) {
            (StatePrecision::Weights, false) => &[M, V],
            (StatePrecision::Weights, true) => &[M, V, VMax],
            (StatePrecision::Fp32, false) => &[P, M, V],
            (StatePrecision::Fp32, true) => &[P, M, V, VMax],
        }
    }

    /// Returns the stored bytes per parameter, alignment aside.
    pub fn bytes_per_param(self, amsgrad: bool) -> u64 {
        4 * self.planes(amsgrad).len() as u64
    }
}

/// Returns the bytes of one plane of `elems` elements, alignment included.
fn plane_bytes(elems: u64) -> u64 {
    (elems * 4).next_multiple_of(PLANE_ALIGN)
}

/// Returns the bytes of a chunk of `planes` planes of `elems` elements.
pub(crate) fn chunk_bytes(planes: usize, elems: u64) -> u64 {
    plane_bytes(elems) * planes as u64
}

/// Returns the byte range of plane number `index` of `elems` elements in its chunk.
pub(crate) fn plane_range(index: usize, elems: u64) -> Range<usize> {
    let start = plane_bytes(elems) as usize * index;
    start..start + elems as usize * 4
}

impl fmt::Display for StatePrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StatePrecision::Weights => "weights",
            StatePrecision::Fp32 => "fp32",
        })
    }
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Plane::P => "p",
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
        for elems in [1, 15, 16, 17, 65_536, 65_537] {
            for planes in 1..=4 {
                let ranges: Vec<_> = (0..planes).map(|i| plane_range(i, elems)).collect();
                assert!(ranges.iter().all(|range| range.start % 64 == 0));
                assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
                assert!(ranges[planes - 1].end as u64 <= chunk_bytes(planes, elems));
            }
        }
    }
}
