//! Shards: which part of a tensor this process holds, and where its elements lie in the whole one.

use std::ops::Range;

/// The part of a tensor that this process trains; padding is no part of any shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Shard {
    /// All of it.
    #[default]
    Whole,
    /// A box of it, as tensor parallelism and FSDP's per-parameter sharding cut.
    Box {
        /// First index of the box in each dimension.
        offset: Vec<u64>,
        /// Extent of the box in each dimension.
        shape: Vec<u64>,
    },
    /// A range of its elements in row-major order, as ZeRO and FSDP's flat parameters cut.
    Flat {
        /// The elements.
        range: Range<u64>,
    },
}

/// Elements that are neighbours in the shard and in the whole tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the first in the shard, in its row-major order.
    pub local: u64,
    /// Index of the first in the whole tensor, in row-major order.
    pub global: u64,
    /// How many.
    pub elems: u64,
}

impl Shard {
    /// Says what is wrong with the shard of a tensor of this shape, if anything is.
    pub fn check(&self, global_shape: &[u64]) -> Result<(), String> {
        match self {
            Shard::Whole => Ok(()),
            Shard::Box { offset, shape } => {
                let rank = global_shape.len();
                if offset.len() != rank || shape.len() != rank {
                    return Err(format!(
                        "a box of offset {offset:?} and shape {shape:?} has not the {rank} \
                         dimensions of {global_shape:?}"
                    ));
                }
                let fits = |d: usize| {
                    offset[d].checked_add(shape[d]).is_some_and(|end| end <= global_shape[d])
                };
                match (0..rank).find(|d| !fits(*d)) {
                    Some(d) => Err(format!(
                        "a box from {} on of extent {} leaves dimension {d} of {global_shape:?}",
                        offset[d], shape[d]
                    )),
                    None => Ok(()),
                }
            }
            Shard::Flat { range } => {
                let all = product(global_shape).unwrap_or(u64::MAX);
                if range.start <= range.end && range.end <= all {
                    Ok(())
                } else {
                    Err(format!("elements {range:?} do not exist: there are {all}"))
                }
            }
        }
    }

    /// Returns the shard's own shape, that of its row-major order.
    pub fn shape(&self, global_shape: &[u64]) -> Vec<u64> {
        match self {
            Shard::Whole => global_shape.to_vec(),
            Shard::Box { shape, .. } => shape.clone(),
            Shard::Flat { range } => vec![range.end.saturating_sub(range.start)],
        }
    }

    /// Returns how many elements the shard has, or `None` when that overflows.
    pub fn elements(&self, global_shape: &[u64]) -> Option<u64> {
        product(&self.shape(global_shape))
    }

    /// Returns how many elements of a shard that passed [`Shard::check`] lie before element `global`
    /// of the whole tensor.
    pub(crate) fn before(&self, global_shape: &[u64], global: u64) -> u64 {
        let all = product(global_shape).unwrap_or(u64::MAX);
        let (offset, shape) = match self {
            Shard::Whole => return global.min(all),
            Shard::Flat { range } => return global.clamp(range.start, range.end) - range.start,
            Shard::Box { offset, shape } => (offset, shape),
        };
        let mut elems = product(shape).unwrap_or(u64::MAX);
        if elems == 0 || global >= all {
            return elems;
        }
        let (mut step, mut left, mut before) = (all, global, 0);
        for (d, extent) in global_shape.iter().enumerate() {
            (step, elems) = (step / extent, elems / shape[d]);
            let (index, end) = (left / step, offset[d] + shape[d]);
            left %= step;
            before += (index.clamp(offset[d], end) - offset[d]) * elems;
            if !(offset[d]..end).contains(&index) {
                break;
            }
        }
        before
    }

    /// Returns the stretches of elements `range` of a shard that passed [`Shard::check`], in order;
    /// their global indices ascend too.
    pub fn stretches(
        &self,
        global_shape: &[u64],
        range: Range<u64>,
    ) -> impl Iterator<Item = Stretch> + use<> {
        let walk = Walk::new(self, global_shape);
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let stretch = walk.stretch(at, range.end);
            at += stretch.elems;
            Some(stretch)
        })
    }
}

/// How a shard lies in its tensor: equal rows of neighbours, each somewhere.
struct Walk {
    /// Elements that are neighbours in both; the whole shard if it is contiguous.
    row: u64,
    /// Where row 0 starts in the tensor.
    base: u64,
    /// For each dimension that counts rows, slowest first: its extent in the shard and how far its
    /// steps go in the tensor.
    outer: Vec<(u64, u64)>,
}

impl Walk {
    fn new(shard: &Shard, global_shape: &[u64]) -> Self {
        let (offset, shape) = match shard {
            Shard::Whole => return Walk { row: u64::MAX, base: 0, outer: Vec::new() },
            Shard::Flat { range } => {
                return Walk { row: u64::MAX, base: range.start, outer: Vec::new() };
            }
            Shard::Box { offset, shape } => (offset, shape),
        };
        let (mut step, mut base, mut row) = (1u64, 0u64, 1u64);
        let (mut outer, mut whole) = (Vec::new(), true);
        for d in (0..global_shape.len()).rev() {
            base = base.saturating_add(offset[d].saturating_mul(step));
            if whole {
                row = row.saturating_mul(shape[d]);
            } else {
                outer.push((shape[d], step));
            }
            whole &= shape[d] == global_shape[d];
            step = step.saturating_mul(global_shape[d]);
        }
        outer.reverse();
        Walk { row: row.max(1), base, outer }
    }

    /// Returns the stretch that starts at element `at` of the shard and ends before `end`.
    fn stretch(&self, at: u64, end: u64) -> Stretch {
        let (mut row, within) = (at / self.row, at % self.row);
        let mut global = self.base + within;
        for (extent, step) in self.outer.iter().rev() {
            global += row % extent * step;
            row /= extent;
        }
        Stretch { local: at, global, elems: (self.row - within).min(end - at) }
    }
}

fn product(shape: &[u64]) -> Option<u64> {
    // An extent of zero settles it, whatever the others would come to.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |n, extent| n.checked_mul(*extent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The global index of every element of a box, one by one.
    fn slowly(global: &[u64], offset: &[u64], shape: &[u64]) -> Vec<u64> {
        let n: u64 = shape.iter().product();
        let one = |i: u64| {
            let (mut rest, mut step, mut at) = (i, 1, 0);
            for d in (0..shape.len()).rev() {
                at += (offset[d] + rest % shape[d]) * step;
                rest /= shape[d];
                step *= global[d];
            }
            at
        };
        (0..n).map(one).collect()
    }

    proptest! {
        #[test]
        fn stretches_are_the_elements_of_the_box_in_order(
            dims in prop::collection::vec((0u64..4, 0u64..4, 0u64..3), 0..5),
            from in 0u64..50,
            len in 0u64..200,
        ) {
            let global: Vec<u64> = dims.iter().map(|(a, b, c)| a + b + c).collect();
            let offset: Vec<u64> = dims.iter().map(|(a, _, _)| *a).collect();
            let shape: Vec<u64> = dims.iter().map(|(_, b, _)| *b).collect();
            let shard = Shard::Box { offset: offset.clone(), shape: shape.clone() };
            prop_assert_eq!(shard.check(&global), Ok(()));
            let expect = slowly(&global, &offset, &shape);
            prop_assert_eq!(shard.elements(&global), Some(expect.len() as u64));
            let start = from.min(expect.len() as u64);
            let end = (start + len).min(expect.len() as u64);
            let mut got = Vec::new();
            for stretch in shard.stretches(&global, start..end) {
                prop_assert_eq!(stretch.local, start + got.len() as u64);
                prop_assert!(stretch.elems > 0);
                got.extend(stretch.global..stretch.global + stretch.elems);
            }
            prop_assert_eq!(&got[..], &expect[start as usize..end as usize]);
            for at in 0..=global.iter().product::<u64>() + 1 {
                let before = expect.partition_point(|global| *global < at) as u64;
                prop_assert_eq!(shard.before(&global, at), before);
            }
        }
    }

    #[test]
    fn whole_and_flat_shards_are_one_stretch() {
        let whole: Vec<_> = Shard::Whole.stretches(&[4, 5], 3..17).collect();
        assert_eq!(whole, [Stretch { local: 3, global: 3, elems: 14 }]);
        let flat = Shard::Flat { range: 7..19 };
        let found: Vec<_> = flat.stretches(&[4, 5], 2..12).collect();
        assert_eq!(found, [Stretch { local: 2, global: 9, elems: 10 }]);
        assert_eq!(Shard::Whole.before(&[4, 5], 30), 20);
        assert_eq!(
            [3, 9, 30].map(|at| Shard::Flat { range: 7..19 }.before(&[4, 5], at)),
            [0, 2, 12]
        );
        // Rows that are taken whole join up.
        let rows = Shard::Box { offset: vec![1, 0, 0], shape: vec![2, 5, 6] };
        let found: Vec<_> = rows.stretches(&[4, 5, 6], 0..60).collect();
        assert_eq!(found, [Stretch { local: 0, global: 30, elems: 60 }]);
    }

    #[test]
    fn what_leaves_the_tensor_is_refused_by_name() {
        let wide = Shard::Box { offset: vec![0, 3], shape: vec![2, 3] };
        assert!(wide.check(&[2, 5]).unwrap_err().contains("dimension 1"));
        let flat = Shard::Flat { range: 5..11 };
        assert!(flat.check(&[2, 5]).unwrap_err().contains("there are 10"));
        let ranks = Shard::Box { offset: vec![0], shape: vec![2] };
        assert!(ranks.check(&[2, 5]).unwrap_err().contains("2 dimensions"));
        let over = Shard::Box { offset: vec![u64::MAX], shape: vec![2] };
        assert!(over.check(&[5]).is_err());
    }
}
