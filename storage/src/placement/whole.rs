//! `Whole`: each chunk goes to one path, the one furthest below its share. Pure.

use crate::id::PathId;

/// Every path keeps at least this share, so that its recovery is seen.
const LEAST_SHARE: f64 = 0.01;

/// What placement knows of one path at the moment of a choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) path: PathId,
    /// The rate it sustains each way for an equal mix of reads and writes, in bytes per second.
    pub(crate) sustained_bps: f64,
    /// Whether it can take a chunk at all (not full, not sick).
    pub(crate) usable: bool,
    /// Whether its queue has room for another chunk now.
    pub(crate) ready: bool,
}

/// Weighted fair placement: every placed byte earns each path credit by its share, and the path
/// with the most credit gets the next chunk. Shares are read anew at each choice, so placements
/// follow a path that became faster or slower at once, without paying back the past.
#[derive(Debug)]
pub(crate) struct Whole {
    credit: Vec<f64>,
}

/// The outcome of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This path.
    Path(PathId),
    /// The path whose turn it is has no room in its queue yet; ask again after a completion.
    Later,
    /// No path can take it.
    Nowhere,
}

/// Returns each candidate's share of new bytes; the shares of usable paths add up to 1.
pub(crate) fn shares(candidates: &[Candidate]) -> Vec<f64> {
    let total: f64 = candidates.iter().filter(|c| c.usable).map(|c| c.sustained_bps.max(1.0)).sum();
    let floored = candidates
        .iter()
        .map(|c| if c.usable { (c.sustained_bps.max(1.0) / total).max(LEAST_SHARE) } else { 0.0 });
    let floored: Vec<f64> = floored.collect();
    let sum: f64 = floored.iter().sum();
    floored.into_iter().map(|share| if sum > 0.0 { share / sum } else { 0.0 }).collect()
}

impl Whole {
    pub(crate) fn new(paths: usize) -> Self {
        Whole { credit: vec![0.0; paths] }
    }

    /// A path joins, with no claim on what was placed before.
    pub(crate) fn add_path(&mut self) {
        self.credit.push(0.0);
    }

    /// Chooses a path for `bytes`. A path that is not its turn but ready takes the chunk only when
    /// it is within that one chunk of its turn; otherwise the choice waits.
    pub(crate) fn choose(&mut self, candidates: &[Candidate], bytes: u64) -> Choice {
        let shares = shares(candidates);
        let bytes = bytes.max(1) as f64;
        let earned = |c: &Candidate, share: f64| self.credit[c.path.index()] + share * bytes;
        let usable = || candidates.iter().zip(&shares).filter(|(c, _)| c.usable);
        let Some(turn) = usable().map(|(c, share)| earned(c, *share)).reduce(f64::max) else {
            return Choice::Nowhere;
        };
        let pick = usable()
            .filter(|(c, share)| c.ready && earned(c, **share) + bytes > turn)
            .max_by(|(a, x), (b, y)| earned(a, **x).total_cmp(&earned(b, **y)));
        let Some(path) = pick.map(|(c, _)| c.path) else { return Choice::Later };
        for (candidate, share) in candidates.iter().zip(&shares) {
            let credit = &mut self.credit[candidate.path.index()];
            // A path that was unusable for long must not come back with a claim on everything.
            *credit = (*credit + share * bytes).clamp(-64.0 * bytes, 64.0 * bytes);
        }
        self.credit[path.index()] -= bytes;
        Choice::Path(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidates(rates: &[f64]) -> Vec<Candidate> {
        let one = |(i, rate): (usize, &f64)| Candidate {
            path: PathId(i as u16),
            sustained_bps: *rate,
            usable: true,
            ready: true,
        };
        rates.iter().enumerate().map(one).collect()
    }

    proptest! {
        #[test]
        fn shares_are_kept_within_one_chunk(
            rates in prop::collection::vec(2e7f64..1e9, 1..6),
            sizes in prop::collection::vec(1u64..100, 1..200),
        ) {
            let candidates = candidates(&rates);
            let shares = shares(&candidates);
            let mut whole = Whole::new(rates.len());
            let (mut placed, mut total) = (vec![0.0; rates.len()], 0.0);
            for bytes in sizes {
                let Choice::Path(path) = whole.choose(&candidates, bytes) else { panic!() };
                placed[path.index()] += bytes as f64;
                total += bytes as f64;
                for (placed, share) in placed.iter().zip(&shares) {
                    prop_assert!((placed - share * total).abs() <= 100.0 * rates.len() as f64);
                }
            }
        }
    }

    #[test]
    fn neighbours_alternate_and_shares_follow() {
        let mut two = candidates(&[1e9, 1e9]);
        let mut whole = Whole::new(2);
        let mut next = |two: &[Candidate]| whole.choose(two, 10);
        let first: Vec<_> = (0..4).map(|_| next(&two)).collect();
        assert_ne!(first[0], first[1]);
        assert_eq!(first[..2], first[2..]);
        two[0].sustained_bps = 0.0;
        let slow = (0..100).filter(|_| next(&two) == Choice::Path(PathId(0))).count();
        assert!(slow <= 3, "{slow}");
        two[1].usable = false;
        assert_eq!(next(&two), Choice::Path(PathId(0)));
        two[0].ready = false;
        assert_eq!(next(&two), Choice::Later);
        two[0].usable = false;
        assert_eq!(next(&two), Choice::Nowhere);
    }

    #[test]
    fn an_unready_path_is_waited_for_beyond_one_chunk() {
        let mut two = candidates(&[1e9, 1e8]);
        two[0].ready = false;
        let mut whole = Whole::new(2);
        let choices: Vec<_> = (0..3).map(|_| whole.choose(&two, 10)).collect();
        assert_eq!(choices[0], Choice::Path(PathId(1)));
        assert_eq!(choices[2], Choice::Later);
    }
}
