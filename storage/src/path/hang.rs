//! Whether a path answers: pure, from starts, completions and the time. What is in flight when it
//! hangs is set apart until it completes, however late, and does not count any more.

use std::time::Duration;

use super::store::{Condition, PathEvent};

/// So many operations in a row must succeed, one at a time, before a path that hung is trusted.
const PROBATION: u32 = 4;

/// Operations and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Amount {
    pub(super) operations: u64,
    pub(super) bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.operations += 1;
        self.bytes += bytes;
    }

    fn sub(&mut self, bytes: u64) {
        self.operations -= 1;
        self.bytes -= bytes;
    }
}

/// An operation in flight; to be returned by [`Watch::finished`].
#[derive(Debug)]
#[must_use = "an operation that is not returned counts as in flight"]
pub(super) struct Started {
    bytes: u64,
    hangs: u64,
}

/// What a completion meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finished {
    /// The path hung since the operation was started, and it was set apart.
    pub(super) late: bool,
    pub(super) event: Option<PathEvent>,
}

/// Watches over the deadline of one path. Times are those of one clock and never go back.
#[derive(Debug)]
pub(super) struct Watch {
    deadline: Duration,
    state: State,
    /// How often the path has hung.
    hangs: u64,
    in_flight: Amount,
    apart: Amount,
    /// The later of the last completion and the start of the oldest operation in flight.
    silent_since: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Good,
    Hung,
    Probation { succeeded: u32 },
}

impl Watch {
    pub(super) fn new(deadline: Duration) -> Self {
        Watch {
            deadline,
            state: State::Good,
            hangs: 0,
            in_flight: Amount::default(),
            apart: Amount::default(),
            silent_since: Duration::ZERO,
        }
    }

    /// Returns whether an operation may be started.
    pub(super) fn may_start(&self) -> bool {
        match self.state {
            State::Good => true,
            State::Hung => false,
            State::Probation { .. } => self.in_flight.operations == 0,
        }
    }

    /// An operation is about to be given to the kernel.
    pub(super) fn started(&mut self, now: Duration, bytes: u64) -> Started {
        if self.in_flight.operations == 0 {
            self.silent_since = now;
        }
        self.in_flight.add(bytes);
        Started { bytes, hangs: self.hangs }
    }

    /// An operation completed; `ok` says that it succeeded.
    pub(super) fn finished(&mut self, now: Duration, started: Started, ok: bool) -> Finished {
        let late = started.hangs != self.hangs;
        if late {
            self.apart.sub(started.bytes);
        } else {
            self.in_flight.sub(started.bytes);
        }
        self.silent_since = now;
        let mut event = None;
        match &mut self.state {
            State::Hung => {
                self.state = State::Probation { succeeded: 0 };
                event = Some(PathEvent::Answering);
            }
            State::Probation { succeeded } if ok && !late => {
                *succeeded += 1;
                if *succeeded == PROBATION {
                    self.state = State::Good;
                }
            }
            State::Probation { .. } | State::Good => {}
        }
        Finished { late, event }
    }

    /// Returns when the path will have hung if nothing completes before.
    pub(super) fn due(&self) -> Option<Duration> {
        (self.in_flight.operations > 0).then(|| self.silent_since.saturating_add(self.deadline))
    }

    /// Returns whether the path hangs as of now. Then what is in flight is set apart.
    pub(super) fn look(&mut self, now: Duration) -> bool {
        let hangs = self.due().is_some_and(|due| due <= now);
        if hangs {
            self.state = State::Hung;
            self.hangs += 1;
            self.apart.operations += self.in_flight.operations;
            self.apart.bytes += self.in_flight.bytes;
            self.in_flight = Amount::default();
        }
        hangs
    }

    pub(super) fn is_hung(&self) -> bool {
        self.state == State::Hung
    }

    pub(super) fn condition(&self, now: Duration) -> Condition {
        match self.state {
            State::Good => Condition::Good,
            State::Hung => Condition::Hung { silent: now.saturating_sub(self.silent_since) },
            State::Probation { .. } => Condition::Probation,
        }
    }

    /// Returns what was in flight when the path hung and has not completed.
    pub(super) fn apart(&self) -> Amount {
        self.apart
    }

    /// Returns how many operations the kernel has, late ones included.
    pub(super) fn operations(&self) -> u64 {
        self.in_flight.operations + self.apart.operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn watch() -> Watch {
        Watch::new(at(30))
    }

    fn finish(watch: &mut Watch, seconds: u64, started: Started) -> Finished {
        watch.finished(at(seconds), started, true)
    }

    #[test]
    fn time_without_anything_in_flight_does_not_count() {
        let mut watch = watch();
        assert!(!watch.look(at(1000)));
        assert_eq!(watch.due(), None);
        let one = watch.started(at(1000), 1);
        assert_eq!(watch.due(), Some(at(1030)));
        assert!(!watch.look(at(1029)));
        finish(&mut watch, 1029, one);
        assert!(!watch.look(at(2000)));
    }

    #[test]
    fn any_completion_counts_and_a_new_start_does_not() {
        let mut watch = watch();
        let (first, second) = (watch.started(at(0), 1), watch.started(at(10), 1));
        assert_eq!(finish(&mut watch, 20, second), Finished { late: false, event: None });
        let third = watch.started(at(40), 1);
        assert!(!watch.look(at(49)));
        assert!(watch.look(at(50)), "since the completion at 20, the start at 40 changes nothing");
        assert!(!watch.look(at(51)), "a path hangs once");
        assert_eq!(watch.condition(at(60)), Condition::Hung { silent: at(40) });
        assert_eq!(watch.apart(), Amount { operations: 2, bytes: 2 });
        assert!(!watch.may_start());
        let answering = Finished { late: true, event: Some(PathEvent::Answering) };
        assert_eq!(finish(&mut watch, 99, first), answering);
        assert_eq!(watch.operations(), 1);
        assert_eq!(finish(&mut watch, 99, third), Finished { late: true, event: None });
        assert_eq!(watch.apart(), Amount::default());
    }

    #[test]
    fn probation_ends_after_some_successes_one_at_a_time() {
        let mut watch = watch();
        let (late, never) = (watch.started(at(0), 1), watch.started(at(0), 1));
        assert!(watch.look(at(30)));
        finish(&mut watch, 31, late);
        for _ in 0..PROBATION {
            assert_eq!(watch.condition(at(31)), Condition::Probation);
            let probe = watch.started(at(31), 1);
            assert!(!watch.may_start());
            finish(&mut watch, 32, probe);
            assert!(watch.may_start());
        }
        assert_eq!(watch.condition(at(32)), Condition::Good);
        assert!(!watch.look(at(1000)), "what was set apart does not make it hang again");
        finish(&mut watch, 1000, never);
        assert_eq!((watch.condition(at(1000)), watch.operations()), (Condition::Good, 0));
    }

    #[test]
    fn failures_prove_nothing_and_a_probe_may_hang_too() {
        let mut watch = watch();
        let late = watch.started(at(0), 1);
        watch.look(at(30));
        finish(&mut watch, 31, late);
        for _ in 0..3 * PROBATION {
            let probe = watch.started(at(31), 1);
            watch.finished(at(31), probe, false);
        }
        assert_eq!(watch.condition(at(31)), Condition::Probation);
        let probe = watch.started(at(40), 1);
        assert!(watch.look(at(70)));
        assert_eq!(finish(&mut watch, 71, probe).event, Some(PathEvent::Answering));
    }

    proptest! {
        /// Against the rule as it is told: in flight, and silent since the last completion and the
        /// start of the oldest one in flight.
        #[test]
        fn it_hangs_when_the_rule_says(steps in prop::collection::vec((0u8..3, 0u64..20), 1..80)) {
            let mut watch = watch();
            let (mut now, mut last, mut hung) = (at(0), at(0), false);
            let mut in_flight: Vec<(Duration, Started)> = Vec::new();
            let mut apart = Vec::new();
            for (step, pick) in steps {
                now += at(pick);
                let oldest = in_flight.iter().map(|(since, _)| *since).min();
                let rule = oldest.is_some_and(|oldest| now >= oldest.max(last) + at(30));
                prop_assert_eq!(watch.look(now), rule);
                if rule {
                    hung = true;
                    apart.extend(in_flight.drain(..).map(|(_, started)| started));
                }
                prop_assert_eq!(watch.is_hung(), hung);
                match step {
                    0 if watch.may_start() => in_flight.push((now, watch.started(now, 7))),
                    1 if !in_flight.is_empty() => {
                        let (_, started) = in_flight.remove(pick as usize % in_flight.len());
                        prop_assert!(!watch.finished(now, started, true).late);
                        last = now;
                    }
                    2 if !apart.is_empty() => {
                        let started = apart.remove(pick as usize % apart.len());
                        let finished = watch.finished(now, started, true);
                        prop_assert!(finished.late && finished.event.is_some() == hung);
                        (last, hung) = (now, false);
                    }
                    _ => {}
                }
                prop_assert_eq!(watch.operations(), (in_flight.len() + apart.len()) as u64);
            }
        }
    }
}
