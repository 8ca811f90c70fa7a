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

/// Takes the room off paths that would write `bytes` only after all of them together could be through
/// with what they have, `bytes` and `rest` more. The one that writes them first keeps its own.
pub(super) fn leave_out_late(candidates: &mut [Candidate], bytes: u64, rest: u64) {
    let usable = |c: &&Candidate| c.usable;
    let bps = |c: &Candidate| c.sustained_bps.max(1.0);
    let seconds = |c: &Candidate| (c.queued_bytes + bytes) as f64 / bps(c);
    let queued: u64 = candidates.iter().filter(usable).map(|c| c.queued_bytes).sum();
    let rate: f64 = candidates.iter().filter(usable).map(bps).sum();
    let first = candidates.iter().filter(usable).map(seconds).fold(f64::INFINITY, f64::min);
    let in_time = first.max((queued + bytes + rest) as f64 / rate);
    for candidate in candidates {
        candidate.ready &= seconds(candidate) <= in_time;
    }
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

    /// Places chunks until all are placed, each path writing at its own rate and asked again when one
    /// of its chunks ends; returns how many chunks each got and when the last was written, in seconds.
    fn play(rates: &[f64], chunks: u64, waits: bool) -> (Vec<u64>, f64) {
        const CHUNK: u64 = 4 << 20;
        const QUEUE: u64 = 3 * CHUNK;
        let (mut whole, mut all) = (placer(rates.len()), candidates(rates));
        let (mut placed, mut free_at) = (vec![0; rates.len()], vec![0.0_f64; rates.len()]);
        let (mut now, mut left) = (0.0_f64, chunks);
        while left > 0 {
            for (candidate, free_at) in all.iter_mut().zip(&free_at) {
                candidate.queued_bytes = ((free_at - now) * candidate.sustained_bps).round() as u64;
                candidate.ready = candidate.queued_bytes < QUEUE;
            }
            let choice = match waits {
                true => whole.choose_in_time(all.clone(), CHUNK, (left - 1) * CHUNK),
                false => whole.choose(&all, CHUNK),
            };
            if let Some(path) = path(&choice).map(PathId::index) {
                placed[path] += 1;
                free_at[path] = free_at[path].max(now) + CHUNK as f64 / rates[path];
                left -= 1;
            } else {
                assert_eq!(choice, Choice::Later);
                let ends = |(at, rate): (&f64, &f64)| {
                    let chunk = CHUNK as f64 / rate;
                    at - ((at - now) / chunk - 1e-6).floor() * chunk
                };
                let busy = free_at.iter().zip(rates).filter(|(at, _)| **at > now);
                now = busy.map(ends).fold(f64::INFINITY, f64::min);
                assert!(now.is_finite(), "it says later, and nothing will end");
            }
        }
        (placed, free_at.into_iter().fold(0.0, f64::max))
    }

    #[test]
    fn who_waits_for_the_last_chunk_waits_no_longer_than_all_paths_together_take() {
        let sets: [&[f64]; 4] =
            [&[1e8, 1.7e8], &[1e8, 1.7e8, 5e8], &[1e8, 1.7e8, 5e8, 1e8], &[6e8, 3.5e8]];
        for rates in sets {
            let (sum, slowest) = (rates.iter().sum::<f64>(), rates[0].min(rates[1]));
            for rounds in [8.0, 32.0] {
                let chunks = (rounds * sum / slowest).ceil() as u64;
                let ideal = (chunks << 22) as f64 / sum;
                let (placed, took) = play(rates, chunks, true);
                assert!(took <= ideal * (1.0 + 0.5 / rounds), "{rates:?} {placed:?}: {took}");
                for (placed, rate) in placed.into_iter().zip(rates) {
                    let due = rate / sum * chunks as f64;
                    assert!((placed as f64 - due).abs() <= 1.0, "{rates:?}: {placed} of {due}");
                }
                let (_, without) = play(rates, chunks, false);
                assert!(took < without, "{rates:?}: {took} {without}");
            }
        }
    }

    #[test]
    fn only_what_ends_too_late_is_left_out_and_somebody_always_takes_the_last_chunk() {
        let mut two = candidates(&[100.0, 500.0]);
        let ready = |all: &[Candidate], rest| {
            let mut all = all.to_vec();
            leave_out_late(&mut all, 100, rest);
            all.iter().map(|c| c.ready).collect::<Vec<_>>()
        };
        // The slow one takes a second for it, and both are through with 600 bytes in one.
        assert_eq!(ready(&two, 500), [true, true]);
        assert_eq!(ready(&two, 499), [false, true]);
        assert_eq!(ready(&two, 0), [false, true]);
        two[1].queued_bytes = 500;
        assert_eq!(ready(&two, 0), [true, false]);
        two[1].usable = false;
        assert!(ready(&two, 0)[0]);
        let (placed, took) = play(&[35e6], 3, true);
        assert!(placed == [3] && took > 0.3);
    }

    #[test]
    fn a_path_on_probation_gets_little_but_is_tried() {
        let mut two = candidates(&[1e9, 1e9]);
        two[0].on_probation = true;
        let mut whole = placer(2);
        let mut next = || path(&whole.choose_in_time(two.clone(), 10, 1000)).unwrap();
        let tried = (0..200).filter(|_| next() == PathId(0)).count();
        assert!((1..=4).contains(&tried), "{tried}");
    }
}
