//! Tensors that are not laid out in row-major order: walked by stride, a tile at a time, so that
//! kernels only ever see neighbours.

use std::ops::Range;

/// Where the elements of a parameter's part lie in its storage: element `[i, j, ..]` at
/// `i * strides[0] + j * strides[1] + ..`, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides<'a> {
    /// Extents in elements, slowest first: the shape of the part that is trained here.
    pub shape: &'a [u64],
    /// How far one step in each dimension goes in the storage, in elements.
    pub strides: &'a [u64],
}

/// Elements at equal distances in a storage.
struct Row {
    offset: usize,
    step: usize,
    elems: usize,
}

impl Strides<'_> {
    /// Says what is wrong with these strides for a tensor of `shape` in a storage of `len` elements,
    /// if anything is.
    pub(crate) fn check(&self, shape: &[u64], len: usize) -> Result<(), String> {
        if self.shape != shape {
            return Err(format!("strides of shape {:?} where it is {shape:?}", self.shape));
        }
        if self.strides.len() != shape.len() {
            let (strides, rank) = (self.strides, shape.len());
            return Err(format!("strides {strides:?} for {rank} dimensions"));
        }
        if shape.contains(&0) {
            return Ok(());
        }
        let last = shape.iter().zip(self.strides).try_fold(0u64, |last, (extent, stride)| {
            (extent - 1).checked_mul(*stride).and_then(|far| last.checked_add(far))
        });
        if last.is_none_or(|last| last >= len as u64) {
            let strides = self.strides;
            return Err(format!("strides {strides:?} leave the storage of {len} elements"));
        }
        Ok(())
    }

    /// Says whether two elements may share a place: then they cannot be written.
    pub(crate) fn overlaps(&self) -> bool {
        let mut dims: Vec<(u64, u64)> = self
            .shape
            .iter()
            .zip(self.strides)
            .filter(|(extent, _)| **extent > 1)
            .map(|(extent, stride)| (*stride, *extent))
            .collect();
        dims.sort_unstable();
        let mut reach = 0u64;
        for (stride, extent) in dims {
            if stride <= reach {
                return true;
            }
            reach = reach.saturating_add((extent - 1).saturating_mul(stride));
        }
        false
    }

    /// Returns the rows of elements `range`, in row-major order.
    fn rows(&self, range: Range<u64>) -> impl Iterator<Item = Row> {
        let rank = self.shape.len();
        let (extent, step) = match rank {
            0 => (1, 0),
            _ => (self.shape[rank - 1], self.strides[rank - 1]),
        };
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (mut row, within) = (at / extent, at % extent);
            let mut offset = within * step;
            for d in (0..rank.saturating_sub(1)).rev() {
                offset += row % self.shape[d] * self.strides[d];
                row /= self.shape[d];
            }
            let elems = (extent - within).min(range.end - at);
            at += elems;
            Some(Row { offset: offset as usize, step: step as usize, elems: elems as usize })
        })
    }

    /// Copies elements `range` out of a storage that passed [`Strides::check`].
    pub(crate) fn gather<T: Copy>(&self, storage: &[T], range: Range<u64>, into: &mut Vec<T>) {
        into.clear();
        for Row { offset, step, elems } in self.rows(range) {
            into.extend((0..elems).map(|i| storage[offset + i * step]));
        }
    }

    /// Copies elements `range` back into the storage.
    pub(crate) fn scatter<T: Copy>(&self, from: &[T], storage: &mut [T], range: Range<u64>) {
        let mut from = from.iter();
        for Row { offset, step, elems } in self.rows(range) {
            for (i, value) in from.by_ref().take(elems).enumerate() {
                storage[offset + i * step] = *value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_permuted_tensor_is_gathered_and_scattered_in_row_major_order(
            shape in prop::collection::vec(1u64..5, 0..5),
            order in any::<prop::sample::Index>(),
            gap in 1u64..3,
            cut in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            // Strides of a dense tensor whose dimensions are stored in another order, with gaps.
            let rank = shape.len();
            let mut dims: Vec<usize> = (0..rank).collect();
            if rank > 0 {
                dims.rotate_left(order.index(rank));
            }
            let (mut strides, mut step) = (vec![0; rank], gap);
            for d in dims {
                strides[d] = step;
                step *= shape[d];
            }
            let view = Strides { shape: &shape, strides: &strides };
            let elems: u64 = shape.iter().product();
            let len = (elems * gap) as usize;
            prop_assert_eq!(view.check(&shape, len), Ok(()));
            prop_assert!(!view.overlaps());
            let storage: Vec<u32> = (0..len as u32).collect();
            let place = |mut i: u64| {
                let mut at = 0;
                for d in (0..rank).rev() {
                    at += i % shape[d] * strides[d];
                    i /= shape[d];
                }
                at as u32
            };
            let (a, b) = (cut.0.index(elems as usize + 1), cut.1.index(elems as usize + 1));
            let range = a.min(b) as u64..a.max(b) as u64;
            let mut got = Vec::new();
            view.gather(&storage, range.clone(), &mut got);
            let expect: Vec<u32> = range.clone().map(place).collect();
            prop_assert_eq!(&got, &expect);
            let mut back = vec![u32::MAX; len];
            view.scatter(&got, &mut back, range);
            for (at, value) in back.iter().enumerate() {
                prop_assert_eq!(*value, if expect.contains(&(at as u32)) { at as u32 } else { u32::MAX });
            }
        }
    }

    #[test]
    fn strides_that_do_not_fit_are_refused() {
        let check =
            |shape: &[u64], strides: &[u64], len| Strides { shape, strides }.check(&[2, 3], len);
        assert_eq!(check(&[2, 3], &[1, 2], 6), Ok(()));
        assert!(check(&[2, 3], &[1, 2], 5).unwrap_err().contains("5 elements"));
        assert!(check(&[3, 2], &[1, 2], 6).unwrap_err().contains("[2, 3]"));
        assert!(check(&[2, 3], &[1], 6).unwrap_err().contains("2 dimensions"));
        assert!(check(&[2, 3], &[u64::MAX, 2], 6).is_err());
    }

    #[test]
    fn expanded_and_sliding_views_overlap_themselves() {
        let overlaps = |shape: &[u64], strides: &[u64]| Strides { shape, strides }.overlaps();
        assert!(overlaps(&[4, 3], &[0, 1]));
        assert!(overlaps(&[4, 3], &[1, 1]));
        assert!(!overlaps(&[4, 3], &[1, 4]));
        assert!(!overlaps(&[1, 3], &[0, 1]));
    }
}
