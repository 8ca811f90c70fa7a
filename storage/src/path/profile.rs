//! How fast a path is each way and how much the two ways share, and how that is learned.

use std::time::Duration;

use super::admission::Direction;

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

/// A window ends when it is that long: longer than the slices in which throttles hand out their
/// budgets (100 ms in the kernel's), which would be taken for a fast device and a slow one in turn.
const WINDOW: Duration = Duration::from_millis(250);

/// One that ends earlier because the load changed is used if it has carried that much...
const WINDOW_BYTES: u64 = 64 << 20;

/// ...in no less than this: below it, a window says more about the scheduler than about the device.
const SHORTEST: Duration = Duration::from_millis(20);

/// After that much time in windows, a 1/e of the old view is left; after 2 s less than 2 %. Windows
/// count by their length: otherwise short ones, which are the fast ones, would have most votes.
const MEMORY: Duration = Duration::from_millis(500);

/// A window is one-way if the other way's part of the time is below the first, and says something
/// about sharing above the second; in between it says neither well.
const MIX: (f64, f64) = (0.02, 0.2);

/// Learns a profile from windows during which a direction always had as much to do as it could take:
/// only then is the path, and not its user, what is measured.
#[derive(Debug)]
pub struct Meter {
    profile: PathProfile,
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    since: Duration,
    /// Which directions were full, in the order of [`Direction::BOTH`].
    full: [bool; 2],
    bytes: [u64; 2],
}

impl Meter {
    /// Returns a meter that starts from `seed`.
    pub fn new(seed: PathProfile) -> Self {
        Meter { profile: seed, window: None }
    }

    /// Returns the present view.
    pub fn profile(&self) -> PathProfile {
        self.profile
    }

    /// Counts bytes that were moved. To be called before the [`Meter::note`] that follows from it.
    pub fn moved(&mut self, direction: Direction, bytes: u64) {
        if let Some(window) = &mut self.window {
            window.bytes[usize::from(direction == Direction::Write)] += bytes;
        }
    }

    /// Says which directions are full now, in the order of [`Direction::BOTH`]; to be called whenever
    /// something was submitted, started or finished.
    pub fn note(&mut self, now: Duration, full: [bool; 2]) {
        if let Some(window) = &self.window {
            let length = now.saturating_sub(window.since);
            let changed = window.full != full;
            let bytes = window.bytes[0] + window.bytes[1];
            if !changed && length < WINDOW {
                return;
            }
            if length >= WINDOW || (bytes >= WINDOW_BYTES && length >= SHORTEST) {
                self.profile =
                    learn(self.profile, length.as_secs_f64(), window.bytes.map(|b| b as f64));
            }
        }
        let busy = full.contains(&true);
        self.window = busy.then_some(Window { since: now, full, bytes: [0; 2] });
    }
}

/// Returns `profile` corrected by a window of `seconds` in which that many bytes went each way.
fn learn(profile: PathProfile, seconds: f64, [read, write]: [f64; 2]) -> PathProfile {
    let PathProfile { read_bps: r, write_bps: w, sharing: k } = profile;
    let weight = 1.0 - (-seconds / MEMORY.as_secs_f64()).exp();
    let blend = |old: f64, new: f64| old + weight * (new - old);
    let (read_time, write_time) = (read / r, write / w);
    let (long, short) = (read_time.max(write_time), read_time.min(write_time));
    if long <= 0.0 {
        // A full queue and not a byte in a whole window: it hangs or crawls; that is another's case.
        profile
    } else if short < MIX.0 * long {
        if read_time > write_time {
            PathProfile::new(blend(r, read / seconds), w, k)
        } else {
            PathProfile::new(r, blend(w, write / seconds), k)
        }
    } else if short < MIX.1 * long {
        profile
    } else {
        let seen = ((seconds - long) / short).clamp(0.0, 1.0);
        // What no sharing explains is the device being faster or slower, both ways alike.
        let scale = (long + seen * short) / seconds;
        PathProfile::new(blend(r, r * scale), blend(w, w * scale), blend(k, seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 0.03
    }

    /// Plays a path of speed `real` under a full queue of the given mix for a while.
    fn play(meter: &mut Meter, real: PathProfile, reads: f64, seconds: f64, from: Duration) {
        let full = [reads > 0.0, reads < 1.0];
        let rate = real.rate(reads);
        let step = 0.01;
        for index in 0..(seconds / step) as u32 {
            let now = from + Duration::from_secs_f64(step) * index;
            meter.note(now, full);
            meter.moved(Direction::Read, (rate * step * reads) as u64);
            meter.moved(Direction::Write, (rate * step * (1.0 - reads)) as u64);
        }
        meter.note(from + Duration::from_secs_f64(seconds), [false, false]);
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
        assert_eq!(meter.profile().sharing, 1.0);
    }

    #[test]
    fn both_ways_at_once_teach_sharing() {
        for sharing in [0.0, 0.4, 1.0] {
            let real = PathProfile::new(600e6, 350e6, sharing);
            let mut meter = Meter::new(PathProfile::new(600e6, 350e6, 0.5));
            play(&mut meter, real, 0.5, 3.0, Duration::ZERO);
            assert!((meter.profile().sharing - sharing).abs() < 0.03, "{:?}", meter.profile());
            assert!(close(meter.profile().share(), real.share()), "{:?}", meter.profile());
        }
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
            meter.note(now, if index % 70 == 69 { [true, false] } else { [true, true] });
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
            meter.note(now, [true, false]);
            meter.moved(Direction::Read, 1 << 20);
            meter.note(now + Duration::from_millis(10), [false, false]);
        }
        assert_eq!(meter.profile(), seed);
    }

    #[test]
    fn odd_rates_are_cut_to_what_is_believable() {
        let odd = PathProfile::new(f64::NAN, f64::INFINITY, -3.0);
        assert_eq!((odd.read_bps, odd.write_bps, odd.sharing), (64e3, 200e9, 0.0));
        assert!(odd.busy_time(f64::MAX, 0.0) > Duration::from_secs(1));
    }
}
