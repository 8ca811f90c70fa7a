//! Which elements of a saved shard are which of another shard of the same tensor: both walk the whole
//! tensor in row-major order.

use std::ops::Range;

use crate::param::Param;
use crate::shard::Shard;

/// Elements that are neighbours in a saved shard and in the range that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Index of the first in the saved shard.
    pub(super) from: u64,
    /// Index of the first in the range.
    pub(super) to: usize,
    /// How many.
    pub(super) elems: usize,
}

/// Returns the elements of a saved shard that lie in elements `range` of a parameter, in order.
pub(super) fn pieces<'a>(
    saved: &'a Shard,
    param: &'a Param,
    range: Range<u64>,
) -> impl Iterator<Item = Piece> + 'a {
    let shape = &param.global_shape;
    let start = range.start;
    param.stretches(range).flat_map(move |target| {
        let first = saved.before(shape, target.global);
        let last = saved.before(shape, target.global + target.elems);
        saved.stretches(shape, first..last).map(move |source| Piece {
            from: source.local,
            to: (target.local - start + source.global - target.global) as usize,
            elems: source.elems as usize,
        })
    })
}

/// Returns the first of elements `range` of a parameter that lies in no saved shard.
pub(super) fn uncovered(saved: &[&Shard], param: &Param, range: Range<u64>) -> Option<u64> {
    if saved.iter().any(|shard| **shard == Shard::Whole || **shard == param.shard) {
        return None;
    }
    let mut marks = vec![false; (range.end - range.start) as usize];
    for shard in saved {
        for Piece { to, elems, .. } in pieces(shard, param, range.clone()) {
            marks[to..to + elems].fill(true);
        }
    }
    let missing = marks.iter().position(|covered| !covered)?;
    param.stretches(range.start + missing as u64..range.end).next().map(|stretch| stretch.global)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tensortier_storage::dtype::DType;

    fn shard() -> impl Strategy<Value = Shard> {
        let cut = |extent: u64| (0..=extent, 0..=extent);
        prop_oneof![
            Just(Shard::Whole),
            (0u64..=60, 0u64..=60).prop_map(|(a, b)| Shard::Flat { range: a.min(b)..a.max(b) }),
            (cut(3), cut(4), cut(5)).prop_map(|(a, b, c)| {
                let cuts = [a, b, c];
                Shard::Box {
                    offset: cuts.iter().map(|(a, b)| *a.min(b)).collect(),
                    shape: cuts.iter().map(|(a, b)| a.abs_diff(*b)).collect(),
                }
            }),
        ]
    }

    /// The global index of every element of a shard.
    fn globals(shard: &Shard, shape: &[u64]) -> Vec<u64> {
        let elems = shard.elements(shape).unwrap();
        shard.stretches(shape, 0..elems).flat_map(|s| s.global..s.global + s.elems).collect()
    }

    proptest! {
        #[test]
        fn pieces_are_what_two_shards_share(
            saved in shard(),
            target in shard(),
            cut in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let shape = [3, 4, 5];
            let param = Param::new("w", shape, DType::F32).with_shard(target.clone());
            let (from, to) = (globals(&saved, &shape), globals(&target, &shape));
            let (a, b) = (cut.0.index(to.len() + 1), cut.1.index(to.len() + 1));
            let range = a.min(b)..a.max(b);
            let mut found = vec![None; range.len()];
            let asked = range.start as u64..range.end as u64;
            for piece in pieces(&saved, &param, asked.clone()) {
                prop_assert!(piece.elems > 0);
                for i in 0..piece.elems {
                    found[piece.to + i] = Some(from[piece.from as usize + i]);
                }
            }
            let shared = |global: &u64| from.contains(global).then_some(*global);
            let expect: Vec<_> = to[range].iter().map(shared).collect();
            prop_assert_eq!(&found, &expect);
            let missing = expect.iter().position(Option::is_none);
            let missing = missing.map(|at| to[asked.start as usize + at]);
            let found = uncovered(&[&saved], &param, asked);
            prop_assert_eq!(found, missing);
        }
    }
}
