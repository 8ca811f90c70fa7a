//! Which paths get a chunk's bytes. Pure.

mod stripe;
mod whole;

use std::fmt;

use crate::id::PathId;

/// Every path keeps at least this share, so that its recovery is seen.
const LEAST_SHARE: f64 = 0.01;

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
    /// What it has to write already, in bytes.
    pub(crate) queued_bytes: u64,
    /// Whether it can take a chunk at all (not full, not sick).
    pub(crate) usable: bool,
    /// It did not answer for a while: it gets the least share until it is trusted again.
    pub(crate) on_probation: bool,
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
    /// No path has room in its queue yet; ask again after a completion.
    Later,
    /// No path can take it.
    Nowhere,
}

/// Weighted fair placement: every placed byte earns each path credit by its share, and of the paths
/// whose queues have room the one with the most credit gets the next bytes. Shares are read anew at
/// each choice, so placements follow a path that became faster or slower, without paying back the past.
///
/// Shares are the plan for as long as the paths keep up with it. A path that has no room at its turn
/// is slower than it was believed, or more is written than all paths take: it is not waited for, and
/// of the turns it lets pass it keeps a claim on one chunk. So when every queue is full each path gets
/// as much as it completes, whatever is believed of it: a wrong first view, a path that slows down and
/// one that recovers cost nothing before they are understood.
///
/// Where somebody waits for the last of what is to be written, whole chunks at the end go where they
/// end in time rather than where a queue happens to have room: a slow path that took one chunk more
/// than it is due would keep him, and later every reader of the object, for as long as that takes.
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

    /// As [`Placer::choose`], where somebody waits until these bytes and `rest` more are written.
    pub(crate) fn choose_in_time(
        &mut self,
        mut candidates: Vec<Candidate>,
        bytes: u64,
        rest: u64,
    ) -> Choice {
        if self.rule == Placement::Whole {
            whole::leave_out_late(&mut candidates, bytes, rest);
        }
        self.choose(&candidates, bytes)
    }
}

impl Credit {
    /// Returns what each candidate is due if `bytes` more are placed.
    fn due(&self, candidates: &[Candidate], bytes: u64) -> Vec<f64> {
        let earned = |(c, share): (&Candidate, f64)| self.0[c.path.index()] + share * bytes as f64;
        candidates.iter().zip(shares(candidates)).map(earned).collect()
    }

    /// Takes note of what was placed of what was due. What a path without room is due beyond one
    /// chunk goes to who took its turn, so that neither owes the other anything.
    fn settle(&mut self, candidates: &[Candidate], due: &[f64], parts: &[Part]) {
        let bytes = parts.iter().map(|part| part.bytes).sum::<u64>().max(1) as f64;
        let mut passed = 0.0;
        for (candidate, due) in candidates.iter().zip(due) {
            let most = if candidate.usable && !candidate.ready { bytes } else { f64::INFINITY };
            self.0[candidate.path.index()] = due.min(most);
            passed += (due - most).max(0.0);
        }
        for part in parts {
            self.0[part.path.index()] += part.bytes as f64 * (passed / bytes - 1.0);
        }
    }
}

/// Returns each candidate's share of new bytes; the shares of usable paths add up to 1.
pub(crate) fn shares(candidates: &[Candidate]) -> Vec<f64> {
    let weight = |c: &Candidate| if c.on_probation { 1.0 } else { c.sustained_bps.max(1.0) };
    let total: f64 = candidates.iter().filter(|c| c.usable).map(weight).sum();
    let share = |c: &Candidate| if c.usable { (weight(c) / total).max(LEAST_SHARE) } else { 0.0 };
    let floored: Vec<f64> = candidates.iter().map(share).collect();
    let sum: f64 = floored.iter().sum();
    floored.into_iter().map(|share| if sum > 0.0 { share / sum } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::path::PathProfile;
    use crate::path::admission::{Direction, Load};
    use crate::path::profile::Meter;

    const MIB: f64 = (1 << 20) as f64;
    const CHUNK: u64 = 4 << 20;
    const BLOCKS: f64 = 4.0 * CHUNK as f64;

    /// Paths that only write, each at its real rate, fed by a placer that believes their meters.
    struct Rig {
        placer: Placer,
        meters: Vec<Meter>,
        rates: Vec<f64>,
        queued: Vec<f64>,
        placed: Vec<f64>,
        written: Vec<f64>,
        now: Duration,
    }

    impl Rig {
        /// Returns paths of these real rates that are believed to have those.
        fn new(rule: Placement, rates: &[f64], seeds: &[f64]) -> Self {
            let zeros = vec![0.0; rates.len()];
            let meter = |bps: &f64| Meter::new(PathProfile::new(*bps, *bps, 0.0));
            Rig {
                placer: Placer::new(rule, rates.len()),
                meters: seeds.iter().map(meter).collect(),
                rates: rates.to_vec(),
                queued: zeros.clone(),
                placed: zeros.clone(),
                written: zeros,
                now: Duration::ZERO,
            }
        }

        fn feed(&mut self, bytes: u64) {
            loop {
                let one = |i: usize| Candidate {
                    path: PathId(i as u16),
                    sustained_bps: self.meters[i].profile().write_bps,
                    queued_bytes: self.queued[i] as u64,
                    usable: true,
                    on_probation: false,
                    ready: self.queued[i] < 2.0 * CHUNK as f64,
                };
                let all: Vec<_> = (0..self.rates.len()).map(one).collect();
                let Choice::Parts(parts) = self.placer.choose(&all, bytes) else { return };
                for part in parts {
                    self.queued[part.path.index()] += part.bytes as f64;
                    self.placed[part.path.index()] += part.bytes as f64;
                }
            }
        }

        /// Goes on until `end` says so of the time that has passed and what each path has written.
        fn run(&mut self, end: impl Fn(Duration, &[f64]) -> bool) {
            const STEP: Duration = Duration::from_millis(5);
            let begin = self.now;
            self.placed.fill(0.0);
            self.written.fill(0.0);
            while !end(self.now - begin, &self.written) {
                self.feed(CHUNK);
                let load = |queued: f64| match queued {
                    queued if queued >= 4.0 * MIB => Load::Full,
                    queued if queued > 0.0 => Load::Some,
                    _ => Load::Idle,
                };
                for i in 0..self.rates.len() {
                    self.meters[i].note(self.now, [Load::Idle, load(self.queued[i])]);
                    let moved = self.queued[i].min(self.rates[i] * STEP.as_secs_f64());
                    self.queued[i] -= moved;
                    self.written[i] += moved;
                    self.meters[i].moved(Direction::Write, moved as u64);
                }
                self.now += STEP;
            }
        }

        fn share_of_first(&self) -> f64 {
            self.placed[0] / self.placed.iter().sum::<f64>()
        }
    }

    fn for_a(seconds: f64) -> impl Fn(Duration, &[f64]) -> bool {
        move |passed, _| passed.as_secs_f64() >= seconds
    }

    #[test]
    fn a_path_that_slows_down_loses_its_share_within_four_blocks_and_gets_it_back() {
        for rule in [Placement::Whole, Placement::Stripe] {
            let mut rig = Rig::new(rule, &[600e6; 3], &[600e6; 3]);
            rig.run(for_a(3.0));
            assert!((rig.share_of_first() - 1.0 / 3.0).abs() < 0.02, "{}", rig.share_of_first());
            rig.rates[0] /= 10.0;
            rig.run(|_, written| written[0] >= BLOCKS);
            rig.run(for_a(5.0));
            let slow = rig.share_of_first();
            assert!((0.01..0.06).contains(&slow), "{rule}: {slow}, due is 0.048");
            rig.rates[0] *= 10.0;
            rig.run(|_, written| written[0] >= BLOCKS);
            for _ in 0..5 {
                rig.run(for_a(1.0));
                let fast = rig.share_of_first();
                assert!((fast - 1.0 / 3.0).abs() < 0.03, "{rule}: {fast} after it recovered");
            }
        }
    }

    #[test]
    fn a_wrong_first_view_costs_nothing_after_four_blocks() {
        let sets: [&[f64]; 3] =
            [&[600e6, 350e6], &[100e6, 170e6, 500e6], &[100e6, 170e6, 500e6, 100e6]];
        for rule in [Placement::Whole, Placement::Stripe] {
            for rates in sets {
                // All are believed to be as fast as memory, or in the opposite order.
                for seeds in [vec![8e9; rates.len()], rates.iter().rev().copied().collect()] {
                    let mut rig = Rig::new(rule, rates, &seeds);
                    rig.run(|_, written| written.iter().all(|bytes| *bytes >= BLOCKS));
                    rig.run(for_a(1.0));
                    let (placed, sum): (f64, f64) = (rig.written.iter().sum(), rates.iter().sum());
                    assert!(placed > 0.99 * sum, "{rule} {rates:?} {seeds:?}: {placed}");
                    let share = rig.share_of_first();
                    let due = rates[0] / sum;
                    assert!((share / due - 1.0).abs() < 0.1, "{rule} {rates:?}: {share} of {due}");
                }
            }
        }
    }

    /// Returns usable and ready candidates of these rates.
    pub(super) fn candidates(rates: &[f64]) -> Vec<Candidate> {
        let one = |(i, rate): (usize, &f64)| Candidate {
            path: PathId(i as u16),
            sustained_bps: *rate,
            queued_bytes: 0,
            usable: true,
            on_probation: false,
            ready: true,
        };
        rates.iter().enumerate().map(one).collect()
    }
}
