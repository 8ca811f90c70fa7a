//! What one round's store is like, drawn from the seed: budget, chunks, paths and what they do wrong.

use std::time::Duration;

use super::numbers::Numbers;

const GRANULE: u64 = 4096;

/// A round's settings.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) chunk_bytes: u64,
    pub(super) budget: u64,
    pub(super) checksums: bool,
    /// How long a demand waits for leases of others.
    pub(super) patience: Duration,
    pub(super) paths: Vec<PathConfig>,
    /// The longest object, in bytes.
    pub(super) longest: u64,
    /// Operations per thread.
    pub(super) operations: u64,
    /// Whether reads may fail, bits flip, writes fail or paths be full.
    pub(super) reads_fail: bool,
    pub(super) bits_flip: bool,
    pub(super) writes_fail: bool,
    /// Whether paths come and go.
    pub(super) paths_move: bool,
}

/// One path's settings.
#[derive(Debug, Clone)]
pub(super) struct PathConfig {
    pub(super) kind: PathKind,
    pub(super) seed: u64,
    pub(super) share_bps: f64,
    pub(super) quota: Option<u64>,
    pub(super) wrongs: Wrongs,
}

/// What is behind a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathKind {
    Memory,
    /// A directory; the engine is chosen by what the directory can do, or is the one with threads,
    /// and its kernel calls may be hooked.
    Directory {
        threads: bool,
        hooked: bool,
    },
}

/// How often an operation of a path goes wrong, per mille of its operations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wrongs {
    pub(super) reads_fail: u64,
    pub(super) bits_flip: u64,
    pub(super) writes_fail: u64,
    pub(super) delays: u64,
    pub(super) holds: u64,
    /// In such a burst of operations every write says that there is no room; 0 means never.
    pub(super) full_every: u64,
}

impl Config {
    /// Draws the settings of a round; `single` leaves out what depends on time.
    pub(super) fn draw(numbers: &mut Numbers, threads: u64, single: bool) -> Self {
        let chunk_bytes = numbers.pick(&[
            GRANULE,
            GRANULE,
            6000,
            4 * GRANULE,
            17 * GRANULE + 1,
            256 << 10,
            1 << 20,
            (2 << 20) + 4096,
        ]);
        let frames = 3 + numbers.below(if chunk_bytes > 256 << 10 { 8 } else { 40 });
        // One frame of slack: a budget of whole granules that no whole number of chunks fills.
        let budget = chunk_bytes.div_ceil(GRANULE) * GRANULE * frames + numbers.below(3) * GRANULE;
        let longest = (3 * budget).min(6 << 20).max(chunk_bytes);
        let checksums = !numbers.one_in(6);
        let reads_fail = numbers.one_in(2);
        let bits_flip = checksums && numbers.one_in(2);
        let count = if single { 1 + numbers.below(2) } else { 1 + numbers.below(4) };
        let writes_fail = numbers.one_in(2);
        let wrong = Wrong { reads_fail, bits_flip, writes_fail, single, budget };
        let paths = (0..count).map(|_| PathConfig::draw(numbers, &wrong)).collect();
        let (least, most) = if single { (150, 300) } else { (1500, 12_000) };
        let paths_move = numbers.one_in(2) && !single;
        let patience = numbers.pick(&[Duration::ZERO, Duration::from_millis(30)]);
        Config {
            chunk_bytes,
            budget,
            checksums,
            // Alone, time passes by operations, and none is made while one waits.
            patience: if single { Duration::ZERO } else { patience },
            paths,
            longest,
            operations: ((1 << 32) / threads / longest).clamp(least, most),
            reads_fail,
            bits_flip,
            writes_fail,
            paths_move,
        }
    }

    /// Draws a path that joins later.
    pub(super) fn draw_path(&self, numbers: &mut Numbers) -> PathConfig {
        let Config { reads_fail, bits_flip, writes_fail, budget, .. } = *self;
        let wrong = Wrong { reads_fail, bits_flip, writes_fail, single: false, budget };
        PathConfig::draw(numbers, &wrong)
    }

    /// Returns the settings in one line.
    pub(super) fn describe(&self) -> String {
        let kinds: Vec<_> = self.paths.iter().map(|path| path.kind.letter()).collect();
        let flag = |on: bool, letter: char| if on { letter } else { '-' };
        format!(
            "chunk {} budget {} paths {} sums {} wrong {}{}{}{}",
            self.chunk_bytes,
            self.budget,
            kinds.concat(),
            u8::from(self.checksums),
            flag(self.reads_fail, 'r'),
            flag(self.bits_flip, 'f'),
            flag(self.writes_fail, 'w'),
            flag(self.paths_move, 'm'),
        )
    }
}

impl PathKind {
    fn letter(self) -> &'static str {
        match self {
            PathKind::Memory => "M",
            PathKind::Directory { threads: true, hooked: false } => "t",
            PathKind::Directory { threads: true, hooked: true } => "T",
            PathKind::Directory { threads: false, hooked: false } => "u",
            PathKind::Directory { threads: false, hooked: true } => "U",
        }
    }
}

/// What may go wrong in a round at all.
struct Wrong {
    reads_fail: bool,
    bits_flip: bool,
    writes_fail: bool,
    single: bool,
    budget: u64,
}

impl PathConfig {
    fn draw(numbers: &mut Numbers, wrong: &Wrong) -> Self {
        let memory = wrong.single || numbers.one_in(3);
        let (threads, hooked) = (numbers.one_in(2), numbers.one_in(2));
        let kind = if memory { PathKind::Memory } else { PathKind::Directory { threads, hooked } };
        let full = wrong.writes_fail && !wrong.single;
        let mut rate = |on: bool, rates: &[u64]| {
            let rate = numbers.pick(rates);
            if on { rate } else { 0 }
        };
        let wrongs = Wrongs {
            reads_fail: rate(wrong.reads_fail, &[0, 10, 100, 300]),
            bits_flip: rate(wrong.bits_flip, &[0, 10, 100]),
            writes_fail: rate(wrong.writes_fail, &[0, 10, 100, 300]),
            delays: rate(!wrong.single, &[0, 20, 200]),
            holds: rate(!wrong.single, &[0, 50, 500]),
            full_every: rate(full, &[0, 0, 7, 3]),
        };
        let share_bps = numbers.pick(&[1e8, 1e9, 3e9]);
        let quota = (full && numbers.one_in(3)).then(|| wrong.budget * 2);
        PathConfig { kind, seed: numbers.next(), share_bps, quota, wrongs }
    }
}
