//! Which paths get a chunk's bytes. Pure.

mod stripe;
mod whole;

use std::fmt;

use crate::id::PathId;

/// Every path keeps at least this share, so that its recovery is seen.
const LEAST_SHARE: f64 = 0.01;

/// How far a path's claim may grow while it cannot take anything, in chunks: one that was unusable
/// for long must not come back with a claim on everything.
const MOST_CLAIM: f64 = 64.0;

/// How chunks are spread over paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Each chunk on one path, neighbours on different ones: the fewest operations. All paths are
    /// busy as long as several chunks move at a time.
    #[default]
    Whole,
    /// Each chunk cut over the paths by their shares: one chunk alone moves at the speed of all.
    Stripe,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::Whole => "whole chunks",
            Placement::Stripe => "striped chunks",
        })
    }
}

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

/// A run of a chunk's stored bytes and the path that gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) path: PathId,
    pub(crate) bytes: u64,
}

/// The outcome of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// These parts, one after the other, whole blocks all but the last.
    Parts(Vec<Part>),
    /// A path whose turn it is has no room in its queue yet; ask again after a completion.
    Later,
    /// No path can take it.
    Nowhere,
}

/// Weighted fair placement: every placed byte earns each path credit by its share, and the path
/// with the most credit gets the next bytes. Shares are read anew at each choice, so placements
/// follow a path that became faster or slower at once, without paying back the past.
#[derive(Debug)]
pub(crate) struct Placer {
    rule: Placement,
    credit: Credit,
}

/// What each path is due, in bytes, by the index of its id; negative for one that is ahead.
#[derive(Debug)]
struct Credit(Vec<f64>);

impl Placer {
    pub(crate) fn new(rule: Placement, paths: usize) -> Self {
        Placer { rule, credit: Credit(vec![0.0; paths]) }
    }

    /// A path joins, with no claim on what was placed before.
    pub(crate) fn add_path(&mut self) {
        self.credit.0.push(0.0);
    }

    /// Chooses the paths for `bytes`.
    pub(crate) fn choose(&mut self, candidates: &[Candidate], bytes: u64) -> Choice {
        match self.rule {
            Placement::Whole => whole::choose(&mut self.credit, candidates, bytes),
            Placement::Stripe => stripe::choose(&mut self.credit, candidates, bytes),
        }
    }
}

impl Credit {
    /// Returns what each candidate is due if `bytes` more are placed.
    fn due(&self, candidates: &[Candidate], bytes: u64) -> Vec<f64> {
        let earned = |(c, share): (&Candidate, f64)| self.0[c.path.index()] + share * bytes as f64;
        candidates.iter().zip(shares(candidates)).map(earned).collect()
    }

    /// Takes note of what was placed of what was due.
    fn settle(&mut self, candidates: &[Candidate], due: &[f64], parts: &[Part]) {
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let most = MOST_CLAIM * bytes.max(1) as f64;
        for (candidate, due) in candidates.iter().zip(due) {
            self.0[candidate.path.index()] = due.clamp(-most, most);
        }
        for part in parts {
            self.0[part.path.index()] -= part.bytes as f64;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns usable and ready candidates of these rates.
    pub(super) fn candidates(rates: &[f64]) -> Vec<Candidate> {
        let one = |(i, rate): (usize, &f64)| Candidate {
            path: PathId(i as u16),
            sustained_bps: *rate,
            usable: true,
            ready: true,
        };
        rates.iter().enumerate().map(one).collect()
    }
}
