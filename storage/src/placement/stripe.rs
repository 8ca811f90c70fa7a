//! `Stripe`: each chunk is cut over the paths by their shares, at block borders, so that all of them
//! move it at once.

use super::{Candidate, Choice, Credit, Part};
use crate::codec::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The least part worth an operation of its own; a path whose share of a chunk is smaller gets a
/// part of every few chunks.
const LEAST_PART: u64 = 4 * BLOCK;

/// Cuts `bytes` over the usable paths whose queues have room. Block by block the path that is
/// furthest below its share gets the next one, so each gets what it is due within a block, or
/// within the least part.
pub(super) fn choose(credit: &mut Credit, candidates: &[Candidate], bytes: u64) -> Choice {
    if !candidates.iter().any(|c| c.usable) {
        return Choice::Nowhere;
    }
    let due = credit.due(candidates, bytes);
    let mut at_most: Vec<bool> = candidates.iter().map(|c| c.usable && c.ready).collect();
    if !at_most.contains(&true) {
        return Choice::Later;
    }
    let mut blocks = vec![0_u64; candidates.len()];
    loop {
        deal(&mut blocks, &at_most, &due, bytes.div_ceil(BLOCK).max(1));
        let small = (0..blocks.len())
            .filter(|i| blocks[*i] > 0 && blocks[*i] * BLOCK < LEAST_PART)
            .min_by_key(|i| blocks[*i]);
        match small {
            Some(small) if blocks.iter().filter(|n| **n > 0).count() > 1 => at_most[small] = false,
            _ => break,
        }
    }
    let parts = parts(candidates, &blocks, bytes);
    credit.settle(candidates, &due, &parts);
    Choice::Parts(parts)
}

/// Deals `count` blocks to those who may get some.
fn deal(blocks: &mut [u64], may: &[bool], due: &[f64], count: u64) {
    blocks.fill(0);
    for _ in 0..count {
        let left = |i: &usize| due[*i] - (blocks[*i] * BLOCK) as f64;
        let most = (0..blocks.len()).filter(|i| may[*i]).max_by(|a, b| left(a).total_cmp(&left(b)));
        if let Some(most) = most {
            blocks[most] += 1;
        }
    }
}

/// Returns the parts in the order of the paths; the last one ends with the chunk.
fn parts(candidates: &[Candidate], blocks: &[u64], bytes: u64) -> Vec<Part> {
    let mut left = bytes;
    let dealt = candidates.iter().zip(blocks).filter(|(_, blocks)| **blocks > 0);
    dealt
        .map(|(candidate, blocks)| {
            let bytes = (blocks * BLOCK).min(left);
            left -= bytes;
            Part { path: candidate.path, bytes }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::super::{Placement, Placer, shares};
    use super::*;
    use crate::id::PathId;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn cut(placer: &mut Placer, candidates: &[Candidate], bytes: u64) -> Vec<Part> {
        match placer.choose(candidates, bytes) {
            Choice::Parts(parts) => parts,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn parts_cover_the_chunk_and_shares_are_kept_within_one(
            rates in prop::collection::vec(2e7f64..1e9, 1..6),
            sizes in prop::collection::vec(1u64..64 * MIB, 1..60),
        ) {
            let candidates = candidates(&rates);
            let shares = shares(&candidates);
            let mut placer = Placer::new(Placement::Stripe, rates.len());
            let (mut placed, mut total) = (vec![0.0; rates.len()], 0.0);
            for bytes in sizes {
                let parts = cut(&mut placer, &candidates, bytes);
                prop_assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), bytes);
                let inner = &parts[..parts.len() - 1];
                prop_assert!(inner.iter().all(|part| part.bytes % BLOCK == 0 && part.bytes > 0));
                prop_assert!(parts.windows(2).all(|pair| pair[0].path < pair[1].path));
                for part in parts {
                    placed[part.path.index()] += part.bytes as f64;
                }
                total += bytes as f64;
                for (placed, share) in placed.iter().zip(&shares) {
                    prop_assert!((placed - share * total).abs() <= 64.0 * MIB as f64);
                }
            }
        }
    }

    #[test]
    fn weights_are_kept_within_one_chunk_over_a_gibibyte() {
        let paths = candidates(&[1e8, 1.7e8, 5e8]);
        let mut placer = Placer::new(Placement::Stripe, 3);
        let mut placed = [0_u64; 3];
        for _ in 0..256 {
            for part in cut(&mut placer, &paths, 4 * MIB) {
                assert!(part.bytes >= MIB);
                placed[part.path.index()] += part.bytes;
            }
        }
        for (placed, weight) in placed.iter().zip([1.0, 1.7, 5.0]) {
            let due = weight / 7.7 * (1 << 30) as f64;
            assert!((*placed as f64 - due).abs() <= 4.0 * MIB as f64, "{placed} {due}");
        }
    }

    #[test]
    fn a_path_without_room_leaves_its_part_and_has_a_claim_on_one_chunk() {
        let mut two = candidates(&[1e9, 1e9]);
        let mut placer = Placer::new(Placement::Stripe, 2);
        two[1].ready = false;
        for _ in 0..20 {
            assert_eq!(cut(&mut placer, &two, 8 * MIB), [Part { path: PathId(0), bytes: 8 * MIB }]);
        }
        two[1].ready = true;
        let second = |parts: Vec<Part>| -> u64 {
            parts.iter().filter(|part| part.path == PathId(1)).map(|part| part.bytes).sum()
        };
        let back: Vec<_> = (0..4).map(|_| second(cut(&mut placer, &two, 8 * MIB))).collect();
        assert!(back[0] == 8 * MIB && back[3] == 4 * MIB, "{back:?}");
        assert!(back.iter().sum::<u64>() <= 28 * MIB, "{back:?}");
        two[0].ready = false;
        two[1].ready = false;
        assert_eq!(placer.choose(&two, 8 * MIB), Choice::Later);
        two[0].usable = false;
        two[1].usable = false;
        assert_eq!(placer.choose(&two, 1), Choice::Nowhere);
    }
}
