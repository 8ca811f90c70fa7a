//! How many bytes a path should have in flight: pure. It tries more and less now and then and keeps
//! what pays, so that it comes to bandwidth times latency whatever the two are.

use std::time::Duration;

use super::admission::{Direction, Load};

/// The least and the most that a direction has in flight, in bytes.
const LEAST_BYTES: u64 = 1 << 20;
pub(super) const MOST_BYTES: u64 = 64 << 20;

/// A trial changes the depth by this factor.
const FACTOR: f64 = 1.5;

/// More in flight is kept if it moves this much more. Anything less is latency without bandwidth.
const GAIN: f64 = 1.05;

/// Less in flight is kept if it moves no less than this part.
const LOSS: f64 = 0.98;

/// Less is not tried where all that is in flight is through in this time: nobody waits long for it,
/// and a few percent of bandwidth are more than a trial on a noisy device can see.
const SHORT: Duration = Duration::from_millis(10);

/// A window lasts that long at least, longer than the slices of throttles, and until so many times
/// the depth and so many bytes were moved: one operation more or less must not count.
const WINDOW: Duration = Duration::from_millis(250);
const TURNS: u64 = 4;
const WINDOW_BYTES: u64 = 96 << 20;

/// A direction was full in a window if it was for this part of it.
const FULL: f64 = 0.8;

/// Windows between two rounds of trials: at first, and at most when nothing changes.
const REST: u32 = 4;
const LONGEST_REST: u32 = 64;

/// A rate that differs this much from the one before says that the path has changed.
const CHANGED: f64 = 1.25;

/// Shares of reads that differ by more are not compared.
const SAME_MIX: f64 = 0.1;

/// What a window showed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    bps: f64,
    reads: f64,
    full: [bool; 2],
}

impl Seen {
    /// Returns how long it took to move what was in flight at a depth of so many bytes.
    fn seconds_in_flight(&self, depth_bytes: u64) -> f64 {
        let ways = self.full.iter().filter(|full| **full).count();
        depth_bytes as f64 * ways as f64 / self.bps
    }

    fn is_like(&self, other: &Seen) -> bool {
        self.full == other.full && (self.reads - other.reads).abs() < SAME_MIX
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No trial for so many windows.
    Rest(u32),
    /// More than `from` is tried.
    More { from: u64 },
    /// Less than `from` is tried.
    Less { from: u64 },
}

/// The depth of one path, the same for both directions: what both move together is what counts, or
/// each would take from the other.
#[derive(Debug)]
pub(super) struct Depth {
    bytes: u64,
    most: u64,
    state: State,
    rest: u32,
    /// What the depth before the trial moved.
    base: Option<Seen>,
    window: Window,
}

#[derive(Debug, Default)]
struct Window {
    /// Bytes to pass before it begins: what was in flight when the depth changed.
    skip: u64,
    seconds: f64,
    full: [f64; 2],
    bytes: [u64; 2],
    loads: [Load; 2],
    at: Duration,
}

impl Depth {
    /// Returns a depth that starts from `bytes` and never exceeds `most`.
    pub(super) fn new(bytes: u64, most: u64) -> Self {
        Depth {
            bytes,
            most: most.min(MOST_BYTES).max(bytes),
            state: State::Rest(0),
            rest: REST,
            base: None,
            window: Window::default(),
        }
    }

    /// Returns the present depth.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts bytes that were moved. To be called before the [`Depth::note`] that follows from it.
    pub(super) fn moved(&mut self, direction: Direction, bytes: u64) {
        let window = &mut self.window;
        let skipped = window.skip.min(bytes);
        window.skip -= skipped;
        window.bytes[usize::from(direction == Direction::Write)] += bytes - skipped;
    }

    /// Says what the directions have to do from now on, in the order of [`Direction::BOTH`]. Returns
    /// the depth when it may have changed.
    pub(super) fn note(&mut self, now: Duration, loads: [Load; 2]) -> Option<u64> {
        let window = &mut self.window;
        let passed = now.saturating_sub(window.at).as_secs_f64();
        let idle = window.loads == [Load::Idle; 2];
        if window.skip == 0 && !idle {
            window.seconds += passed;
            for (full, load) in window.full.iter_mut().zip(window.loads) {
                *full += if load == Load::Full { passed } else { 0.0 };
            }
        }
        (window.at, window.loads) = (now, loads);
        let moved: u64 = window.bytes.iter().sum();
        if window.seconds < WINDOW.as_secs_f64() || moved < WINDOW_BYTES.max(TURNS * self.bytes) {
            return None;
        }
        let full = window.full.map(|seconds| seconds >= FULL * window.seconds);
        let seen = Seen {
            bps: moved as f64 / window.seconds,
            reads: window.bytes[0] as f64 / moved as f64,
            full,
        };
        self.begin_window(0);
        // Where no direction was full the depth held nothing up.
        (full != [false; 2]).then(|| self.judge(seen)).flatten()
    }

    fn begin_window(&mut self, skip: u64) {
        let Window { loads, at, .. } = self.window;
        self.window = Window { skip, loads, at, ..Window::default() };
    }

    fn judge(&mut self, seen: Seen) -> Option<u64> {
        let base = self.base.filter(|base| base.is_like(&seen));
        match (self.state, base) {
            (State::Rest(left), _) => {
                let changed = base.is_some_and(|base| {
                    !(base.bps / CHANGED..base.bps * CHANGED).contains(&seen.bps)
                });
                self.base = Some(seen);
                if changed {
                    self.rest = REST;
                }
                match if changed { 0 } else { left } {
                    0 => self.try_more(),
                    left => self.settle(left - 1),
                }
            }
            (State::More { .. }, Some(base)) if seen.bps >= base.bps * GAIN => {
                (self.base, self.rest) = (Some(seen), REST);
                self.try_more()
            }
            (State::More { from }, Some(_)) => self.try_less(from),
            (State::Less { .. }, Some(base)) if seen.bps >= base.bps * LOSS => {
                // One step at a time: the base may have been a bad moment.
                self.rest = REST;
                self.settle(1)
            }
            (State::Less { from }, Some(_)) => self.keep(from),
            // The load changed meanwhile: the trial says nothing.
            (State::More { from } | State::Less { from }, None) => {
                self.base = None;
                self.set(from);
                self.settle(self.rest)
            }
        }
    }

    fn try_more(&mut self) -> Option<u64> {
        let more = ((self.bytes as f64 * FACTOR) as u64).min(self.most);
        if more == self.bytes {
            return self.try_less(self.bytes);
        }
        self.state = State::More { from: self.bytes };
        self.set(more)
    }

    /// Tries less than `from`, which is what was seen to move most.
    fn try_less(&mut self, from: u64) -> Option<u64> {
        let seconds = self.base.map_or(f64::MAX, |base| base.seconds_in_flight(from));
        let less = ((from as f64 / FACTOR) as u64).max(LEAST_BYTES.min(from));
        if less == from || seconds <= SHORT.as_secs_f64() {
            return self.keep(from);
        }
        self.state = State::Less { from };
        self.set(less)
    }

    /// Nothing is better than `from`: the next round of trials is later than this one was.
    fn keep(&mut self, from: u64) -> Option<u64> {
        let rest = self.rest;
        self.rest = (self.rest * 2).min(LONGEST_REST);
        self.set(from);
        self.settle(rest)
    }

    fn settle(&mut self, windows: u32) -> Option<u64> {
        self.state = State::Rest(windows);
        Some(self.bytes)
    }

    fn set(&mut self, bytes: u64) -> Option<u64> {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.begin_window(before + bytes);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const MIB: u64 = 1 << 20;

    /// A device that answers after `latency` and moves `bps` in all; its rate varies by `noise`.
    struct Device {
        latency: f64,
        bps: f64,
        noise: f64,
        free_at: f64,
        state: u64,
    }

    impl Device {
        fn new(latency: f64, bps: f64, noise: f64) -> Self {
            Device { latency, bps, noise, free_at: 0.0, state: 7 }
        }

        /// Returns when an operation that starts now ends.
        fn ends(&mut self, now: f64) -> f64 {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (self.state >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
            let service = MIB as f64 / self.bps * (1.0 + self.noise * random);
            self.free_at = self.free_at.max(now) + service;
            self.free_at + self.latency
        }
    }

    /// Keeps the directions of `ways` full for a while; returns the depths at which it rested in the
    /// last part, and the bytes per second moved in it, trials included.
    fn play(
        device: &mut Device,
        depth: &mut Depth,
        ways: &[Direction],
        from: f64,
        seconds: f64,
    ) -> (Vec<u64>, f64) {
        let mut limit = depth.bytes;
        let mut out: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut in_flight = [0; 2];
        let loads =
            Direction::BOTH.map(|way| if ways.contains(&way) { Load::Full } else { Load::Idle });
        let (mut now, mut depths, mut moved) = (from, Vec::new(), 0);
        let late = from + seconds * 0.6;
        while now < from + seconds {
            for way in ways {
                let way = usize::from(*way == Direction::Write);
                while in_flight[way] == 0 || in_flight[way] + MIB <= limit {
                    in_flight[way] += MIB;
                    out.push(Reverse(((device.ends(now) * 1e9) as u64, way)));
                }
            }
            let Some(Reverse((at, way))) = out.pop() else { break };
            now = at as f64 / 1e9;
            in_flight[way] -= MIB;
            depth.moved(Direction::BOTH[way], MIB);
            if let Some(bytes) = depth.note(Duration::from_nanos(at), loads) {
                limit = bytes;
            }
            if now > late {
                moved += MIB;
                depths.extend(matches!(depth.state, State::Rest(_)).then_some(limit));
            }
        }
        depths.dedup();
        (depths, moved as f64 / (from + seconds - late))
    }

    /// Bandwidth times the latency of one operation that is alone.
    fn product(latency: f64, bps: f64) -> f64 {
        bps * (latency + MIB as f64 / bps)
    }

    #[test]
    fn it_comes_to_bandwidth_times_latency_from_both_sides() {
        for (latency, bps) in [(0.1e-3, 2e9), (40e-3, 800e6), (5e-3, 100e6)] {
            for start in [4 * MIB, 32 * MIB] {
                for ways in [&[Direction::Read][..], &Direction::BOTH] {
                    for noise in [0.0, 0.1] {
                        let mut depth = Depth::new(start, MOST_BYTES);
                        let mut device = Device::new(latency, bps, noise);
                        let (depths, got) = play(&mut device, &mut depth, ways, 0.0, 150.0);
                        let case = format!("{latency} {bps} {start} {ways:?} {noise}: {depths:?}");
                        assert!(got > 0.93 * bps, "{got} {case}");
                        // Both directions together have twice the depth in flight.
                        let usual = depths[depths.len() / 2] as f64 * ways.len() as f64;
                        let product = product(latency, bps).max(SHORT.as_secs_f64() * bps);
                        assert!(usual < 3.0 * product.max(MIB as f64 * 2.0), "{case}");
                        // It does not go up and down by more than one step.
                        let (low, high) = (depths.iter().min(), depths.iter().max());
                        assert!(*high.unwrap() as f64 <= *low.unwrap() as f64 * 1.51, "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn it_stays_within_its_bounds_and_does_not_grow_for_nothing() {
        // No bandwidth to be had by more: latency alone would grow.
        let mut depth = Depth::new(4 * MIB, MOST_BYTES);
        let mut device = Device::new(0.0, 50e6, 0.05);
        let (depths, _) = play(&mut device, &mut depth, &[Direction::Write], 0.0, 120.0);
        assert!(depths.iter().all(|bytes| (MIB..=6 * MIB).contains(bytes)), "{depths:?}");
        // More bandwidth than the bounds can use.
        let mut depth = Depth::new(4 * MIB, MOST_BYTES);
        let mut device = Device::new(0.5, 10e9, 0.0);
        let (depths, _) = play(&mut device, &mut depth, &[Direction::Read], 0.0, 300.0);
        assert!(depths.contains(&MOST_BYTES), "{depths:?}");
        assert!(depths.iter().all(|bytes| *bytes <= MOST_BYTES));
    }

    #[test]
    fn it_follows_a_path_that_changes() {
        let mut depth = Depth::new(4 * MIB, MOST_BYTES);
        let mut device = Device::new(0.1e-3, 2e9, 0.02);
        play(&mut device, &mut depth, &[Direction::Read], 0.0, 60.0);
        let mut device = Device::new(40e-3, 800e6, 0.02);
        let (_, got) = play(&mut device, &mut depth, &[Direction::Read], 60.0, 60.0);
        assert!(got > 0.9 * 800e6, "{got}");
    }

    #[test]
    fn a_queue_that_is_not_full_teaches_nothing() {
        let mut depth = Depth::new(4 * MIB, MOST_BYTES);
        for index in 0..1000u64 {
            depth.moved(Direction::Read, MIB);
            let load = if index % 2 == 0 { Load::Some } else { Load::Idle };
            assert_eq!(depth.note(Duration::from_millis(10 * index), [load, Load::Idle]), None);
        }
    }
}
