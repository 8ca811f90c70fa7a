//! How fast a path is each way and how much the two ways share, and how that is learned.

use std::time::Duration;

use super::admission::{Direction, Load};

/// The speed of a path. Reading R and writing W bytes keeps it busy for
/// `max(R/r, W/w) + k * min(R/r, W/w)` seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathProfile {
    /// r: bytes per second when only reading.
    pub read_bps: f64,
    /// w: bytes per second when only writing.
    pub write_bps: f64,
    /// k: how much the directions share the device, from 0 (full duplex) to 1 (half duplex).
    pub sharing: f64,
}

/// A rate nobody would believe is cut to these, so that one odd window cannot spoil a profile.
const BELIEVABLE_BPS: (f64, f64) = (64e3, 200e9);

impl PathProfile {
    /// Returns a profile with rates and sharing cut to what is believable.
    pub fn new(read_bps: f64, write_bps: f64, sharing: f64) -> Self {
        let rate = |bps: f64| {
            if bps.is_nan() {
                BELIEVABLE_BPS.0
            } else {
                bps.clamp(BELIEVABLE_BPS.0, BELIEVABLE_BPS.1)
            }
        };
        let sharing = if sharing.is_nan() { 1.0 } else { sharing.clamp(0.0, 1.0) };
        PathProfile { read_bps: rate(read_bps), write_bps: rate(write_bps), sharing }
    }

    /// Returns the profile of one who gets this part of the path, 0 to 1.
    pub(super) fn part(self, part: f64) -> Self {
        PathProfile::new(self.read_bps * part, self.write_bps * part, self.sharing)
    }

    /// Returns how long reading and writing that much, both at once, keeps the path busy.
    pub fn busy_time(&self, read_bytes: f64, write_bytes: f64) -> Duration {
        Duration::try_from_secs_f64(self.busy_seconds(read_bytes, write_bytes))
            .unwrap_or(Duration::MAX)
    }

    fn busy_seconds(&self, read_bytes: f64, write_bytes: f64) -> f64 {
        let (read, write) = (read_bytes / self.read_bps, write_bytes / self.write_bps);
        read.max(write) + self.sharing * read.min(write)
    }

    /// Returns the bytes per second, of both ways together, that the path sustains for a mix in which
    /// `reads` (0 to 1) of the bytes are read.
    pub fn rate(&self, reads: f64) -> f64 {
        let reads = reads.clamp(0.0, 1.0);
        1.0 / self.busy_seconds(reads, 1.0 - reads)
    }

    /// Returns the bytes per second that the path sustains each way when it reads as much as it
    /// writes: its share in a placement.
    pub fn share(&self) -> f64 {
        1.0 / self.busy_seconds(1.0, 1.0)
    }
}

/// A window ends when the path was busy for that long: longer than the slices in which throttles hand
/// out their budgets (100 ms in the kernel's), which would be taken for a fast device and a slow one
/// in turn.
const WINDOW: Duration = Duration::from_millis(250);

/// It ends before that if so much was moved as the profile allows in this time: a path that is much
/// faster than it is believed gets little to do, and would take long to be busy for a window.
const FAST_WINDOW: Duration = Duration::from_millis(500);

/// Windows that differ from the view by less than [`CHANGED`] are averaged over about this much busy
/// time: a window has two or three slices of a throttle in it.
const MEMORY: Duration = Duration::from_secs(1);

/// A window that differs from the view by this factor is no noise: the path has changed, or was never
/// known, and what was seen before says nothing any more.
const CHANGED: f64 = 1.6;

/// At once a view becomes faster by this factor at most: a throttle lets what it saved up pass at any
/// speed, and a path that gets little to do shows no other.
const MOST_FASTER: f64 = 2.0;

/// A direction held its users up in a window if it was full for this part of the busy time...
const FULL: f64 = 0.8;

/// ...or had something to do for this part of all time: they may have had no more for it because they
/// waited for it.
const ALWAYS: f64 = 0.95;

/// A window is one-way if the other way's part of the time is below this.
const ONE_WAY: f64 = 0.02;

/// A window in which this much more was moved than the profile allows says so.
const TOO_SLOW: f64 = 1.05;

/// Learns a profile from windows of busy time. What held a direction up was the path only while the
/// direction was full or never without work; but what was moved was moved, so a profile that allows
/// less than that is too slow whoever was waiting. Views near the present one are averaged, others
/// replace it: so the first window replaces the seed, and a path that slows down or recovers is known
/// after one whole window of the new state.
#[derive(Debug)]
pub struct Meter {
    profile: PathProfile,
    window: Window,
    /// Whether a direction's own rate was seen in a one-way window, in the order of
    /// [`Direction::BOTH`]; before, a mix says nothing about sharing.
    seen_alone: [bool; 2],
    loads: [Load; 2],
    at: Duration,
    /// Another process has the device since then.
    away: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// All seconds.
    wall: f64,
    /// Seconds in which at least one direction had something to do.
    busy: f64,
    /// Seconds in which each direction had something to do.
    active: [f64; 2],
    /// Seconds in which each direction was full.
    full: [f64; 2],
    bytes: [u64; 2],
}

impl Meter {
    /// Returns a meter that starts from `seed`.
    pub fn new(seed: PathProfile) -> Self {
        Meter {
            profile: seed,
            window: Window::default(),
            seen_alone: [false; 2],
            loads: [Load::Idle; 2],
            at: Duration::ZERO,
            away: false,
        }
    }

    /// Returns the present view.
    pub fn profile(&self) -> PathProfile {
        self.profile
    }

    /// Counts bytes that were moved. To be called before the [`Meter::note`] that follows from it.
    pub fn moved(&mut self, direction: Direction, bytes: u64) {
        self.window.bytes[usize::from(direction == Direction::Write)] += bytes;
    }

    /// Says what the directions have to do from now on, in the order of [`Direction::BOTH`]; to be
    /// called whenever something was submitted, started or finished.
    pub fn note(&mut self, now: Duration, loads: [Load; 2]) {
        let away = std::mem::take(&mut self.away);
        let passed = if away { Duration::ZERO } else { now.saturating_sub(self.at) };
        let passed = passed.as_secs_f64();
        self.window.wall += passed;
        if self.loads != [Load::Idle; 2] {
            self.window.busy += passed;
        }
        for (way, load) in self.loads.into_iter().enumerate() {
            self.window.active[way] += if load == Load::Idle { 0.0 } else { passed };
            self.window.full[way] += if load == Load::Full { passed } else { 0.0 };
        }
        (self.at, self.loads) = (now, loads);
        let [read, write] = self.window.bytes.map(|bytes| bytes as f64);
        // In a window without a byte the path crawls: how slowly, the next completion says.
        let seen = read + write > 0.0;
        let allowed = self.profile.busy_seconds(read, write);
        let is_over =
            self.window.busy >= WINDOW.as_secs_f64() || allowed >= FAST_WINDOW.as_secs_f64();
        if seen && is_over && self.window.busy > 0.0 {
            let window = std::mem::take(&mut self.window);
            self.learn(&window);
        }
    }

    /// Says that the device is another process's from now on: until the next [`Meter::note`] no time
    /// passes for this one.
    pub fn leave(&mut self, now: Duration) {
        self.note(now, [Load::Idle; 2]);
        self.away = true;
    }

    /// Forgets the present window: the path hangs, which says nothing of its speed.
    pub fn forget(&mut self) {
        self.window = Window::default();
    }

    fn learn(&mut self, window: &Window) {
        let PathProfile { read_bps, write_bps, sharing } = self.profile;
        let rates = [read_bps, write_bps];
        let bytes = window.bytes.map(|bytes| bytes as f64);
        let times = [bytes[0] / rates[0], bytes[1] / rates[1]];
        let full = [0, 1].map(|way| {
            window.full[way] >= FULL * window.busy || window.active[way] >= ALWAYS * window.wall
        });
        let (long, short) = if times[0] >= times[1] { (0, 1) } else { (1, 0) };
        let said = times[long] + sharing * times[short];
        let new = if times[short] < ONE_WAY * times[long] {
            self.seen_alone[long] |= full[long];
            alone(rates, sharing, long, bytes[long] / window.busy, full[long])
        } else if said > TOO_SLOW * window.busy {
            faster(rates, bytes, times, window.busy)
        } else if full == [true, true] {
            self.slower(rates, sharing, times, window.busy)
        } else if full[0] || full[1] {
            held_up(rates, sharing, bytes, times, usize::from(full[1]), window.busy)
        } else {
            return;
        };
        let weight = 1.0 - (-window.busy / MEMORY.as_secs_f64()).exp();
        let (seen_rates, seen_sharing) = new;
        let rate = |way: usize| follow(rates[way], seen_rates[way], weight);
        let sharing = sharing + weight * (seen_sharing - sharing);
        self.profile = PathProfile::new(rate(0), rate(1), sharing);
    }

    /// Both directions were full and moved less than the profile allows: they share more, which only
    /// shows when their own rates are known, or the path is slower both ways alike.
    fn slower(&self, rates: [f64; 2], sharing: f64, times: [f64; 2], busy: f64) -> ([f64; 2], f64) {
        let (long, short) = (times[0].max(times[1]), times[0].min(times[1]));
        let shares = if self.seen_alone == [true, true] {
            ((busy - long) / short).clamp(sharing, 1.0)
        } else {
            sharing
        };
        let scale = (long + shares * short) / busy;
        (rates.map(|rate| rate * scale), shares)
    }
}

/// Moves a rate to what was seen, or a part of the way if that is not far.
fn follow(old: f64, seen: f64, weight: f64) -> f64 {
    if (old / CHANGED..=old * CHANGED).contains(&seen) {
        old + weight * (seen - old)
    } else {
        seen.min(old * MOST_FASTER)
    }
}

/// One direction alone moved `seen` bytes per second.
fn alone(mut rates: [f64; 2], sharing: f64, way: usize, seen: f64, full: bool) -> ([f64; 2], f64) {
    if full || seen > rates[way] {
        rates[way] = seen;
    }
    (rates, sharing)
}

/// More was moved than the profile allows: the directions share less than it says, and what not even
/// full duplex explains is a faster direction.
fn faster(mut rates: [f64; 2], bytes: [f64; 2], times: [f64; 2], busy: f64) -> ([f64; 2], f64) {
    let (long, short) = (times[0].max(times[1]), times[0].min(times[1]));
    for way in 0..2 {
        rates[way] = rates[way].max(bytes[way] / busy);
    }
    (rates, ((busy - long) / short).clamp(0.0, 1.0))
}

/// Only direction `way` was full: its own rate is what was wrong.
fn held_up(
    mut rates: [f64; 2],
    sharing: f64,
    bytes: [f64; 2],
    times: [f64; 2],
    way: usize,
    busy: f64,
) -> ([f64; 2], f64) {
    let left = busy - sharing * times[1 - way];
    // With less time left than the other direction took, the model says nothing about this one.
    if left >= times[1 - way] {
        rates[way] = bytes[way] / left;
    }
    (rates, sharing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 0.03
    }

    /// Plays a path of speed `real` under a full queue of the given mix for a while.
    fn play(meter: &mut Meter, real: PathProfile, reads: f64, seconds: f64, from: Duration) {
        let load = |has: bool| if has { Load::Full } else { Load::Idle };
        let full = [load(reads > 0.0), load(reads < 1.0)];
        let rate = real.rate(reads);
        let step = 0.01;
        for index in 0..(seconds / step) as u32 {
            let now = from + Duration::from_secs_f64(step) * index;
            meter.note(now, full);
            meter.moved(Direction::Read, (rate * step * reads) as u64);
            meter.moved(Direction::Write, (rate * step * (1.0 - reads)) as u64);
        }
        meter.note(from + Duration::from_secs_f64(seconds), [Load::Idle; 2]);
    }

    #[test]
    fn shares_are_those_of_half_and_full_duplex() {
        let half = PathProfile::new(600e6, 300e6, 1.0);
        assert!(close(half.share(), 200e6), "{}", half.share());
        let full = PathProfile::new(600e6, 300e6, 0.0);
        assert!(close(full.share(), 300e6));
        assert!(close(half.busy_time(600e6, 300e6).as_secs_f64(), 2.0));
        assert!(close(full.rate(1.0), 600e6) && close(full.rate(0.0), 300e6));
    }

    #[test]
    fn one_way_windows_teach_the_one_way_rates() {
        let real = PathProfile::new(1.2e9, 400e6, 0.0);
        let mut meter = Meter::new(PathProfile::new(3e8, 3e8, 1.0));
        play(&mut meter, real, 1.0, 3.0, Duration::ZERO);
        assert!(close(meter.profile().read_bps, 1.2e9), "{:?}", meter.profile());
        assert_eq!(meter.profile().write_bps, 3e8);
        play(&mut meter, real, 0.0, 3.0, Duration::from_secs(10));
        assert!(close(meter.profile().write_bps, 400e6), "{:?}", meter.profile());
        // The last window of reads ends with the first writes, which may pass for both at once.
        assert!(meter.profile().sharing > 0.8, "{:?}", meter.profile());
    }

    #[test]
    fn both_ways_at_once_teach_sharing_when_each_was_seen_alone() {
        for sharing in [0.0, 0.4, 1.0] {
            let real = PathProfile::new(600e6, 350e6, sharing);
            let mut meter = Meter::new(PathProfile::new(5e9, 5e9, 0.5));
            play(&mut meter, real, 1.0, 3.0, Duration::ZERO);
            play(&mut meter, real, 0.0, 3.0, Duration::from_secs(3));
            play(&mut meter, real, 0.5, 3.0, Duration::from_secs(6));
            let got = meter.profile();
            assert!((got.sharing - sharing).abs() < 0.15, "{got:?}");
            assert!((got.share() / real.share() - 1.0).abs() < 0.06, "{got:?}");
        }
    }

    #[test]
    fn both_ways_at_once_teach_the_share_whatever_the_seed_was() {
        for sharing in [0.0, 0.4, 1.0] {
            for seed in [(8e9, 5e9, 1.0), (1e8, 1e8, 1.0), (8e9, 1e8, 0.0)] {
                let real = PathProfile::new(600e6, 600e6, sharing);
                let mut meter = Meter::new(PathProfile::new(seed.0, seed.1, seed.2));
                play(&mut meter, real, 0.5, 4.0, Duration::ZERO);
                let (got, want) = (meter.profile().share(), real.share());
                assert!((got / want - 1.0).abs() < 0.1, "{seed:?} {:?}", meter.profile());
            }
        }
    }

    #[test]
    fn a_path_that_is_only_half_loaded_is_not_taken_for_a_slow_one() {
        // A full-duplex path taken for a half-duplex one: its reads come in bursts, its writes when
        // there is something to write; neither direction is full for long, both move at once.
        let mut meter = Meter::new(PathProfile::new(600e6, 600e6, 1.0));
        for index in 0..600u64 {
            let now = Duration::from_millis(10 * index);
            let load = if index % 3 < 2 { Load::Full } else { Load::Some };
            meter.note(now, [load, Load::Some]);
            meter.moved(Direction::Read, 5_000_000);
            meter.moved(Direction::Write, 4_500_000);
        }
        let share = meter.profile().share();
        assert!((450e6..650e6).contains(&share), "{:?}", meter.profile());
    }

    #[test]
    fn a_path_that_slows_down_is_seen_within_two_seconds_also_under_a_mix() {
        let mut meter = Meter::new(PathProfile::new(600e6, 600e6, 1.0));
        let slow = PathProfile::new(150e6, 150e6, 1.0);
        play(&mut meter, slow, 0.5, 2.01, Duration::ZERO);
        assert!(
            (meter.profile().share() / slow.share() - 1.0).abs() < 0.1,
            "{:?}",
            meter.profile()
        );
    }

    #[test]
    fn a_throttle_that_works_in_slices_looks_like_its_average() {
        let mut meter = Meter::new(PathProfile::new(600e6, 600e6, 1.0));
        // 60 MB each way in the first 25 ms of every 100 ms, and the load changes now and then.
        for index in 0..400u64 {
            let now = Duration::from_millis(10 * index);
            let writes = if index % 70 == 69 { Load::Some } else { Load::Full };
            meter.note(now, [Load::Full, writes]);
            if index % 10 < 3 {
                meter.moved(Direction::Read, 20_000_000);
                meter.moved(Direction::Write, 20_000_000);
            }
        }
        let profile = meter.profile();
        assert!((profile.share() / 600e6 - 1.0).abs() < 0.15, "{profile:?}");
        assert!(profile.sharing < 0.15, "{profile:?}");
    }

    #[test]
    fn a_queue_that_runs_dry_teaches_nothing() {
        let seed = PathProfile::new(1e9, 1e9, 0.5);
        let mut meter = Meter::new(seed);
        for index in 0..100 {
            let now = Duration::from_millis(40) * index;
            meter.note(now, [Load::Some, Load::Idle]);
            meter.moved(Direction::Read, 1 << 20);
            meter.note(now + Duration::from_millis(10), [Load::Idle; 2]);
        }
        assert_eq!(meter.profile(), seed);
    }

    #[test]
    fn a_path_that_is_never_without_work_is_what_holds_up() {
        // One chunk at a time, the next as soon as it is done: never full, never idle.
        let mut meter = Meter::new(PathProfile::new(8e9, 8e9, 0.0));
        for index in 0..300u64 {
            meter.note(Duration::from_millis(10 * index), [Load::Idle, Load::Some]);
            meter.moved(Direction::Write, 350_000);
        }
        assert!(close(meter.profile().write_bps, 35e6), "{:?}", meter.profile());
        assert_eq!(meter.profile().read_bps, 8e9);
    }

    #[test]
    fn the_first_window_replaces_a_seed_and_a_slow_path_is_known_after_two() {
        let mut meter = Meter::new(PathProfile::new(8e9, 8e9, 1.0));
        play(&mut meter, PathProfile::new(350e6, 350e6, 0.0), 0.0, 0.26, Duration::ZERO);
        assert!(close(meter.profile().write_bps, 350e6), "{:?}", meter.profile());
        let slow = PathProfile::new(35e6, 35e6, 0.0);
        play(&mut meter, slow, 0.0, 0.52, Duration::from_millis(260));
        assert!((30e6..50e6).contains(&meter.profile().write_bps), "{:?}", meter.profile());
    }

    #[test]
    fn a_path_that_recovered_is_known_from_the_little_it_gets_to_do() {
        let mut meter = Meter::new(PathProfile::new(35e6, 35e6, 0.0));
        // 4 MiB now and then, written in 12 ms.
        let mut block = |index: u64| {
            let at = Duration::from_millis(80 * index);
            meter.note(at, [Load::Idle, Load::Full]);
            meter.moved(Direction::Write, 4 << 20);
            meter.note(at + Duration::from_millis(12), [Load::Idle; 2]);
            meter.profile().write_bps
        };
        let seen: Vec<_> = (0..60).map(&mut block).collect();
        assert!(seen[4] > 60e6 && seen[15] > 120e6 && seen[59] > 250e6, "{seen:?}");
        assert!(seen.iter().all(|bps| *bps < 400e6), "{seen:?}");
        assert!(seen.windows(2).all(|pair| pair[1] <= pair[0] * MOST_FASTER), "{seen:?}");
    }

    #[test]
    fn noisy_completions_do_not_make_the_view_swing() {
        let mut meter = Meter::new(PathProfile::new(8e9, 8e9, 0.0));
        let mut state = 7_u64;
        for index in 0..2000_u64 {
            meter.note(Duration::from_millis(10 * index), [Load::Idle, Load::Full]);
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // From nothing to twice the average.
            meter.moved(Direction::Write, ((state >> 40) * 7_000_000) >> 24);
            let bps = meter.profile().write_bps;
            assert!(index < 100 || (297e6..403e6).contains(&bps), "{bps} at {index}");
        }
    }

    #[test]
    fn a_path_without_work_keeps_its_profile() {
        let mut meter = Meter::new(PathProfile::new(8e9, 8e9, 1.0));
        play(&mut meter, PathProfile::new(600e6, 350e6, 0.0), 0.5, 3.0, Duration::ZERO);
        let known = meter.profile();
        for second in 3..100 {
            meter.note(Duration::from_secs(second), [Load::Idle; 2]);
        }
        assert_eq!(meter.profile(), known);
        // Nor does a moment of work say that it is slow.
        meter.note(Duration::from_secs(100), [Load::Some, Load::Idle]);
        meter.moved(Direction::Read, 4096);
        meter.note(Duration::from_secs(101), [Load::Idle; 2]);
        assert_eq!(meter.profile(), known);
    }

    #[test]
    fn odd_rates_are_cut_to_what_is_believable() {
        let odd = PathProfile::new(f64::NAN, f64::INFINITY, -3.0);
        assert_eq!((odd.read_bps, odd.write_bps, odd.sharing), (64e3, 200e9, 0.0));
        assert!(odd.busy_time(f64::MAX, 0.0) > Duration::from_secs(1));
    }
}
