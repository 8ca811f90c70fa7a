//! What one round's store is like, drawn from the seed: budget, chunks, paths and what they do wrong.

use std::time::Duration;

use tensortier_storage::codec::Compression;
use tensortier_storage::store::Placement;

use super::numbers::Numbers;

const GRANULE: u64 = 4096;

/// Lengths of chunks.
const CHUNKS: [u64; 8] =
    [GRANULE, GRANULE, 6000, 4 * GRANULE, 17 * GRANULE + 1, 256 << 10, 1 << 20, (2 << 20) + 4096];

/// Lengths of chunks where they are cut over paths; each gets 1 MiB at least.
const STRIPED: [u64; 5] = [17 * GRANULE + 1, 1 << 20, 2 << 20, (2 << 20) + 4096, (3 << 20) + 5];

/// A round's settings.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) chunk_bytes: u64,
    pub(super) budget: u64,
    pub(super) checksums: bool,
    pub(super) placement: Placement,
    pub(super) compression: Compression,
    /// What of the budget is set aside for stored bytes.
    pub(super) packing: u64,
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
    /// Whether paths stop answering for a while.
    pub(super) paths_hang: bool,
    /// Whether some objects are reproducible.
    pub(super) caches: bool,
    /// Whether some objects begin as tensors of a file.
    pub(super) adopts: bool,
    /// The memory of a device that is attached.
    pub(super) device_budget: Option<u64>,
    /// One thread, and nothing that depends on time.
    pub(super) single: bool,
}

/// One path's settings.
#[derive(Debug, Clone)]
pub(super) struct PathConfig {
    pub(super) kind: PathKind,
    pub(super) seed: u64,
    pub(super) share_bps: f64,
    pub(super) quota: Option<u64>,
    /// How long a directory may be silent, where that is less than usual.
    pub(super) deadline: Option<Duration>,
    /// Whether a directory takes turns with those of other processes that do.
    pub(super) turns: bool,
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
        let placement = numbers.pick(&[Placement::Whole, Placement::Whole, Placement::Stripe]);
        let chunk_bytes = numbers.pick(match placement {
            Placement::Stripe => &STRIPED,
            _ => &CHUNKS,
        });
        let frames = match (single, chunk_bytes > 256 << 10) {
            // Room for what is held, wherever it lies, and for one more chunk.
            (true, large) => 12 + numbers.below(if large { 4 } else { 30 }),
            (false, large) => 3 + numbers.below(if large { 8 } else { 40 }),
        };
        let chunk = chunk_bytes.div_ceil(GRANULE) * GRANULE;
        let compression = numbers.pick(&[Compression::Off, Compression::Lz4]);
        let packs = compression != Compression::Off && numbers.one_in(2);
        let packing = if packs { chunk * (1 + numbers.below(3)) } else { 0 };
        // One frame of slack: a budget of whole granules that no whole number of chunks fills.
        let arena = chunk * frames + numbers.below(3) * GRANULE;
        let most = if single || placement == Placement::Stripe { 12 << 20 } else { 6 << 20 };
        let longest = (3 * arena).min(most).max(chunk_bytes);
        let checksums = !numbers.one_in(6);
        let [reads_fail, flips, writes_fail, moves, hangs, caches] =
            std::array::from_fn(|_| numbers.one_in(2));
        let [adopts, device] = std::array::from_fn(|_| numbers.one_in(3));
        let device_budget = chunk * (1 + numbers.below(5)) + numbers.below(chunk);
        let patience = numbers.pick(&[Duration::ZERO, Duration::from_millis(30)]);
        let (least, most) = if single { (150, 300) } else { (1500, 12_000) };
        let count = 1 + numbers.below(if single { 2 } else { 4 });
        let mut config = Config {
            chunk_bytes,
            budget: arena + packing,
            checksums,
            placement,
            compression,
            packing,
            // Alone, time passes by operations, and none is made while one waits.
            patience: if single { Duration::ZERO } else { patience },
            paths: Vec::new(),
            longest,
            operations: ((1 << 32) / threads / longest).clamp(least, most),
            reads_fail,
            bits_flip: checksums && flips,
            writes_fail,
            paths_move: moves && !single,
            paths_hang: hangs && numbers.one_in(2),
            caches,
            adopts,
            device_budget: (device && !single).then_some(device_budget),
            single,
        };
        config.paths = (0..count).map(|_| config.draw_path(numbers)).collect();
        config
    }

    /// Draws a path, to begin with or to join later.
    pub(super) fn draw_path(&self, numbers: &mut Numbers) -> PathConfig {
        let memory = numbers.one_in(3) || self.single;
        let (threads, hooked) = (numbers.one_in(2), numbers.one_in(2));
        let kind = if memory { PathKind::Memory } else { PathKind::Directory { threads, hooked } };
        // Alone, an operation meets what goes wrong as a whole.
        let several = !self.single;
        let full = self.writes_fail && several;
        let mut rate = |on: bool, rates: &[u64]| {
            let rate = numbers.pick(rates);
            if on { rate } else { 0 }
        };
        let wrongs = Wrongs {
            reads_fail: rate(self.reads_fail && several, &[0, 10, 100, 300]),
            bits_flip: rate(self.bits_flip && several, &[0, 10, 100]),
            writes_fail: rate(self.writes_fail && several, &[0, 10, 100, 300]),
            delays: rate(several, &[0, 20, 200]),
            holds: rate(several, &[0, 50, 500]),
            full_every: rate(full, &[0, 0, 7, 3]),
        };
        let share_bps = numbers.pick(&[1e8, 1e9, 3e9]);
        let quota = (full && numbers.one_in(3)).then(|| self.budget * 2);
        let deadline = Duration::from_millis(20 + numbers.below(40));
        let deadline = self.paths_hang.then_some(deadline);
        // What is held until more comes would never end where no more may start.
        let turns = numbers.one_in(2) && wrongs.holds == 0;
        PathConfig { kind, seed: numbers.next(), share_bps, quota, deadline, turns, wrongs }
    }

    /// Returns the settings in one line.
    pub(super) fn describe(&self) -> String {
        let kind = |path: &PathConfig| {
            let turns = path.turns && path.kind != PathKind::Memory;
            format!("{}{}", path.kind.letter(), if turns { "2" } else { "" })
        };
        let kinds: Vec<_> = self.paths.iter().map(kind).collect();
        let flag = |on: bool, letter: char| if on { letter } else { '-' };
        let flags = [
            flag(self.reads_fail, 'r'),
            flag(self.bits_flip, 'f'),
            flag(self.writes_fail, 'w'),
            flag(self.paths_move, 'm'),
            flag(self.paths_hang, 'h'),
        ];
        let uses = [flag(self.caches, 'c'), flag(self.adopts, 'a')];
        format!(
            "chunk {} budget {} {} paths {} sums {} lz4 {} wrong {} with {} device {}",
            self.chunk_bytes,
            self.budget,
            if self.placement == Placement::Stripe { "striped" } else { "whole" },
            kinds.concat(),
            u8::from(self.checksums),
            match (self.compression, self.packing) {
                (Compression::Off, _) => String::from("off"),
                (_, packing) => packing.to_string(),
            },
            String::from_iter(flags),
            String::from_iter(uses),
            self.device_budget.map_or(String::from("-"), |bytes| bytes.to_string()),
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
