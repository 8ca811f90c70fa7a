//! How many processes should use a device at one time: pure. It tries one more and one less now and
//! then, and keeps what pays, as `depth.rs` does for the bytes of one process.

use serde::{Deserialize, Serialize};

/// One more is kept if all together move this much more.
const GAIN: f64 = 1.05;

/// One less is kept if all together move no less than this part.
const LOSS: f64 = 0.98;

/// Judgements between two trials: at first, and at most when nothing changes.
const REST: u32 = 2;
const LONGEST_REST: u32 = 64;

/// Turns per process that are averaged for a judgement, after one that may have begun before.
const TURNS: u32 = 3;

/// Nobody profits from more processes at a time than this.
const MOST: u32 = 64;

/// What the processes before a device have found out together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Width {
    processes: u32,
    state: State,
    rest: u32,
    /// What all moved together, bytes per second, with the number that is kept.
    base: Option<f64>,
    turns: u32,
    /// Of the turns that count, of one process each.
    sum_bps: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum State {
    Rest(u32),
    More,
    Less,
}

impl Default for Width {
    fn default() -> Self {
        Width::at(1)
    }
}

impl Width {
    /// Returns one that starts with so many, within bounds.
    pub(super) fn at(processes: u32) -> Self {
        Width {
            processes: processes.clamp(1, MOST),
            state: State::Rest(0),
            rest: REST,
            base: None,
            turns: 0,
            sum_bps: 0.0,
        }
    }

    /// Returns how many processes should use the device at one time.
    pub(super) fn processes(&self) -> u32 {
        self.processes
    }

    /// Takes note of the turn of one of `together` processes that had something to do for all of it,
    /// in bytes per second of this one; `in_line` is how many there were, those that waited included.
    pub(super) fn note(&mut self, together: u32, in_line: u32, bps: f64) {
        if together != self.processes || !bps.is_finite() {
            // It began before the last change.
            return;
        }
        if in_line < together {
            return self.are_fewer(in_line);
        }
        self.turns += 1;
        if self.turns <= together {
            return;
        }
        self.sum_bps += bps;
        let counted = self.turns - together;
        if counted >= TURNS * together {
            let all = self.sum_bps / f64::from(counted) * f64::from(together);
            self.judge(all);
        }
    }

    /// There are not as many processes: no more can be tried, or known of more.
    fn are_fewer(&mut self, in_line: u32) {
        self.set(self.processes - 1);
        match self.state {
            State::More if in_line >= self.processes => self.try_less(),
            _ => {
                self.set(in_line);
                (self.base, self.state) = (None, State::Rest(0));
            }
        }
    }

    fn set(&mut self, processes: u32) {
        self.processes = processes.clamp(1, MOST);
        (self.turns, self.sum_bps) = (0, 0.0);
    }

    fn judge(&mut self, all: f64) {
        (self.turns, self.sum_bps) = (0, 0.0);
        match (self.state, self.base) {
            (State::Rest(0), _) => {
                self.base = Some(all);
                self.try_more();
            }
            (State::Rest(left), _) => {
                self.base = Some(all);
                self.state = State::Rest(left - 1);
            }
            (State::More, Some(base)) if all >= base * GAIN => {
                (self.base, self.rest) = (Some(all), REST);
                self.try_more();
            }
            (State::More, _) => {
                self.set(self.processes - 1);
                self.try_less();
            }
            (State::Less, Some(base)) if all >= base * LOSS => {
                self.rest = REST;
                self.state = State::Rest(1);
            }
            (State::Less, _) => {
                self.set(self.processes + 1);
                self.settle();
            }
        }
    }

    fn try_more(&mut self) {
        if self.processes == MOST {
            return self.try_less();
        }
        self.set(self.processes + 1);
        self.state = State::More;
    }

    fn try_less(&mut self) {
        if self.processes == 1 {
            return self.settle();
        }
        self.set(self.processes - 1);
        self.state = State::Less;
    }

    /// Nothing was better: it takes longer until the next trials.
    fn settle(&mut self) {
        self.state = State::Rest(self.rest);
        self.rest = (self.rest * 2).min(LONGEST_REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays turns on a device on which `all(n)` is what n processes move together; returns how many
    /// of the later turns had each number.
    fn play(width: &mut Width, all: impl Fn(u32) -> f64) -> Vec<usize> {
        let mut had = vec![0; MOST as usize + 1];
        for turn in 0..20_000u32 {
            let together = width.processes();
            // Some noise, the same in each run.
            let noise = 1.0 + f64::from(turn.wrapping_mul(2_654_435_761) >> 16) / 65536.0 * 0.04;
            width.note(together, MOST, all(together) / f64::from(together) * noise);
            if turn > 5_000 {
                had[width.processes() as usize] += 1;
            }
        }
        had
    }

    fn usual(had: &[usize]) -> u32 {
        (0u32..).zip(had).max_by_key(|(_, turns)| **turns).unwrap().0
    }

    #[test]
    fn it_comes_to_what_pays_from_both_sides() {
        // A disk that seeks is best alone; a far one gains from some; a fast one from none.
        let seeks = |n: u32| 150e6 / (0.6 + 0.4 * f64::from(n));
        let far = |n: u32| 200e6 * f64::from(n.min(4));
        let fast = |_| 2e9;
        for start in [1, 3, 8] {
            for (name, all, best) in
                [("seeks", &seeks as &dyn Fn(u32) -> f64, 1), ("far", &far, 4), ("fast", &fast, 1)]
            {
                let had = play(&mut Width::at(start), all);
                let usual = usual(&had);
                assert_eq!(usual, best, "{name} from {start}: {had:?}");
                assert!(had[usual as usize] > 8_000, "{name} from {start}: {had:?}");
            }
        }
    }

    #[test]
    fn turns_of_another_number_do_not_count() {
        let mut width = Width::at(2);
        let before = width.clone();
        for _ in 0..100 {
            width.note(1, 9, 1e9);
            width.note(2, 9, f64::NAN);
        }
        assert_eq!(width, before);
    }

    #[test]
    fn no_more_are_tried_than_there_are() {
        // Two that are better one by one, of which one turn after the other seemed to pay.
        let mut width = Width::at(2);
        let mut had = [0; 4];
        for _ in 0..2_000 {
            let together = width.processes();
            had[together as usize] += 1;
            width.note(together, 2, 100e6 / f64::from(together.pow(2)));
        }
        assert!(had[1] > 1_500 && had[3] < 5, "{had:?}");
        let mut width = Width::at(MOST);
        width.note(MOST, 5, 1e9);
        assert_eq!(width.processes(), 5);
    }

    #[test]
    fn it_follows_a_device_that_changes() {
        let mut width = Width::at(1);
        play(&mut width, |_| 100e6);
        let had = play(&mut width, |n| 100e6 * f64::from(n.min(3)));
        assert_eq!(usual(&had), 3, "{had:?}");
    }
}
