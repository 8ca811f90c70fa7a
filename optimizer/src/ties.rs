//! Whether two tensors have a byte in common, from their strides alone: looking at each element would
//! take longer than updating it.

use std::ops::RangeInclusive;

/// Where the elements of a tensor lie: an address, and for each dimension how many steps of how many
/// bytes go on from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Address of the first element.
    pub(crate) start: usize,
    /// Bytes of an element.
    pub(crate) width: u64,
    /// Extent in elements and stride in bytes of each dimension; no extent is 0.
    pub(crate) dims: Vec<(u64, u64)>,
}

/// A number that is not known but within bounds, times a stride.
#[derive(Debug, Clone, Copy)]
struct Term {
    stride: i128,
    least: i128,
    most: i128,
}

impl Layout {
    /// Returns whether some byte belongs to an element of both.
    ///
    /// Elements `i` of one and `j` of the other overlap if the sum of all `i * stride - j * stride`
    /// is how far the starts are apart, give or take the bytes of an element. Whether there is such
    /// a sum is found from the largest stride on: all smaller ones together reach so little that a
    /// few `i - j` are left for each.
    pub(crate) fn overlaps(&self, other: &Layout) -> bool {
        let bytes = |layout: &Layout| i128::from(layout.width) - 1;
        let mut terms = vec![Term { stride: 1, least: -bytes(other), most: bytes(self) }];
        let dims = |layout: &Layout| layout.dims.clone().into_iter();
        terms.extend(dims(self).map(|(extent, stride)| Term {
            stride: i128::from(stride),
            least: 0,
            most: i128::from(extent) - 1,
        }));
        terms.extend(dims(other).map(|(extent, stride)| Term {
            stride: i128::from(stride),
            least: 1 - i128::from(extent),
            most: 0,
        }));
        terms.sort_unstable_by_key(|term| std::cmp::Reverse(term.stride));
        // What has one stride is one number.
        terms.dedup_by(|term, kept| {
            let same = term.stride == kept.stride;
            if same {
                kept.least += term.least;
                kept.most += term.most;
            }
            same
        });
        reaches(&terms, other.start as i128 - self.start as i128)
    }
}

/// Returns whether the terms can add up to `sum`.
fn reaches(terms: &[Term], sum: i128) -> bool {
    let Some((first, rest)) = terms.split_first() else { return sum == 0 };
    if first.stride == 0 {
        return sum == 0;
    }
    let candidates = |rest: RangeInclusive<i128>| {
        let least = div_ceil(sum - rest.end(), first.stride).max(first.least);
        let most = (sum - rest.start()).div_euclid(first.stride).min(first.most);
        least..=most
    };
    let least: i128 = rest.iter().map(|term| term.stride * term.least).sum();
    let most: i128 = rest.iter().map(|term| term.stride * term.most).sum();
    candidates(least..=most).any(|number| reaches(rest, sum - number * first.stride))
}

fn div_ceil(value: i128, by: i128) -> i128 {
    -(-value).div_euclid(by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout() -> impl Strategy<Value = Layout> {
        let dims = prop::collection::vec((1u64..5, 0u64..20), 0..4);
        (0usize..60, prop::sample::select(vec![2u64, 4]), dims)
            .prop_map(|(start, width, dims)| Layout { start, width, dims })
    }

    /// All bytes, one by one.
    fn bytes(layout: &Layout) -> std::collections::BTreeSet<u64> {
        let mut starts = vec![layout.start as u64];
        for (extent, stride) in &layout.dims {
            let along = |at: u64| (0..*extent).map(move |i| at + i * stride);
            starts = starts.into_iter().flat_map(along).collect();
        }
        starts.into_iter().flat_map(|at| at..at + layout.width).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn bytes_in_common_are_found_as_if_one_looked_at_each(one in layout(), two in layout()) {
            let shared = bytes(&one).intersection(&bytes(&two)).next().is_some();
            prop_assert_eq!(one.overlaps(&two), shared);
            prop_assert_eq!(two.overlaps(&one), shared);
        }
    }

    #[test]
    fn columns_of_large_matrices_are_compared_at_once() {
        let columns = |first: usize, columns: u64| Layout {
            start: (1 << 40) + 2 * first,
            width: 2,
            dims: vec![(1 << 20, 2 * 30_000), (columns, 2)],
        };
        assert!(!columns(0, 10_000).overlaps(&columns(10_000, 20_000)));
        assert!(columns(0, 10_001).overlaps(&columns(10_000, 20_000)));
        // Column by column in the rows of the other.
        let turned = Layout { start: 1 << 40, width: 2, dims: vec![(9, 2), (1 << 20, 60_000)] };
        assert!(turned.overlaps(&columns(8, 1)) && !turned.overlaps(&columns(9, 1)));
        let largest = Layout { start: usize::MAX, width: 4, dims: vec![(u64::MAX, u64::MAX); 2] };
        assert!(largest.overlaps(&largest) && !largest.overlaps(&columns(0, 1)));
    }
}
