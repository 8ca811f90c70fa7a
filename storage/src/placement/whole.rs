//! `Whole`: each chunk goes to one path, of those with room the one furthest below its share.

use super::{Candidate, Choice, Credit, Part};

/// Chooses a path for `bytes`.
pub(super) fn choose(credit: &mut Credit, candidates: &[Candidate], bytes: u64) -> Choice {
    if !candidates.iter().any(|c| c.usable) {
        return Choice::Nowhere;
    }
    let due = credit.due(candidates, bytes);
    let open = candidates.iter().zip(&due).filter(|(c, _)| c.usable && c.ready);
    let Some((picked, _)) = open.max_by(|(_, a), (_, b)| a.total_cmp(b)) else {
        return Choice::Later;
    };
    let parts = vec![Part { path: picked.path, bytes }];
    credit.settle(candidates, &due, &parts);
    Choice::Parts(parts)
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::super::{Placement, Placer, shares};
    use super::*;
    use crate::id::PathId;
    use proptest::prelude::*;

    fn placer(paths: usize) -> Placer {
        Placer::new(Placement::Whole, paths)
    }

    fn path(choice: &Choice) -> Option<PathId> {
        match choice {
            Choice::Parts(parts) if parts.len() == 1 => Some(parts[0].path),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn shares_are_kept_within_one_chunk(
            rates in prop::collection::vec(2e7f64..1e9, 1..6),
            sizes in prop::collection::vec(1u64..100, 1..200),
        ) {
            let candidates = candidates(&rates);
            let shares = shares(&candidates);
            let mut whole = placer(rates.len());
            let (mut placed, mut total) = (vec![0.0; rates.len()], 0.0);
            for bytes in sizes {
                let path = path(&whole.choose(&candidates, bytes)).unwrap();
                placed[path.index()] += bytes as f64;
                total += bytes as f64;
                for (placed, share) in placed.iter().zip(&shares) {
                    prop_assert!((placed - share * total).abs() <= 100.0 * rates.len() as f64);
                }
            }
        }
    }

    #[test]
    fn weights_are_kept_within_one_chunk_over_a_gibibyte() {
        const MIB: u64 = 1 << 20;
        let paths = candidates(&[1e8, 1.7e8, 5e8]);
        for largest in [MIB, 4 * MIB, 16 * MIB] {
            let (mut whole, mut placed, mut total) = (placer(3), [0_u64; 3], 0_u64);
            for i in 0.. {
                // Chunks of one size, and now and then the shorter last one of a tensor.
                let bytes = if i % 7 == 6 { largest / 3 } else { largest };
                placed[path(&whole.choose(&paths, bytes)).unwrap().index()] += bytes;
                total += bytes;
                for (placed, weight) in placed.iter().zip([1.0, 1.7, 5.0]) {
                    let due = weight / 7.7 * total as f64;
                    assert!((*placed as f64 - due).abs() <= largest as f64, "{placed} {due}");
                }
                if total >= 1 << 30 {
                    break;
                }
            }
        }
    }

    #[test]
    fn neighbours_alternate_and_shares_follow() {
        let mut two = candidates(&[1e9, 1e9]);
        let mut whole = placer(2);
        let mut next = |two: &[Candidate]| whole.choose(two, 10);
        let first: Vec<_> = (0..4).map(|_| next(&two)).collect();
        assert_ne!(first[0], first[1]);
        assert_eq!(first[..2], first[2..]);
        two[0].sustained_bps = 0.0;
        let slow = (0..100).filter(|_| path(&next(&two)) == Some(PathId(0))).count();
        assert!(slow <= 3, "{slow}");
        two[1].usable = false;
        assert_eq!(path(&next(&two)), Some(PathId(0)));
        two[0].ready = false;
        assert_eq!(next(&two), Choice::Later);
        two[0].usable = false;
        assert_eq!(next(&two), Choice::Nowhere);
    }

    #[test]
    fn a_path_without_room_is_not_waited_for_and_comes_back_with_a_claim_on_one_chunk() {
        let mut two = candidates(&[1e9, 1e9]);
        let mut whole = placer(2);
        let mut next = |two: &[Candidate]| path(&whole.choose(two, 10)).unwrap().0;
        two[0].ready = false;
        assert_eq!((0..100).map(|_| next(&two)).sum::<u16>(), 100);
        two[0].ready = true;
        let back: Vec<_> = (0..6).map(|_| next(&two)).collect();
        assert!(back.starts_with(&[0, 0, 1]) || back.starts_with(&[0, 1]), "{back:?}");
        assert_eq!(back[4..].iter().sum::<u16>(), 1, "they alternate again: {back:?}");
    }
}
