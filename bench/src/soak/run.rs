//! A whole run: rounds one after the other until its time is over.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::numbers::mix;
use super::resources::Resources;
use super::round::{Outcome, Setting, count_panics, round, until};
use super::worker::Violation;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// For how long; the round under way is ended early, except with `single`.
    pub time: Duration,
    /// At most so many rounds.
    pub rounds: u64,
    /// The first round; to repeat one that failed.
    pub first: u64,
    /// What all operations and faults follow from.
    pub seed: u64,
    /// How many threads use each store.
    pub threads: usize,
    /// One thread, paths in memory, nothing that depends on time: a run repeats exactly.
    pub single: bool,
    /// Where directories are made.
    pub dir: PathBuf,
}

/// What a run came to.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Rounds run.
    pub rounds: u64,
    /// Operations of all threads.
    pub operations: u64,
    /// Of those, how many failed as they may.
    pub refused: u64,
    /// Faults that engines met.
    pub faults: u64,
    /// Chunks read from paths.
    pub loads: u64,
    /// Chunks written to paths.
    pub written: u64,
    /// Of those, how many in fewer bytes.
    pub packed: u64,
    /// Transfers that a path did not answer for longer than it may.
    pub hung: u64,
    /// Stores that were closed meanwhile.
    pub closed_hung: u64,
    /// Of all operations drawn.
    pub drawn: u64,
    /// Of what came of them; equal for equal seeds with `single`.
    pub outcome: u64,
    /// Resident memory at the end, in KiB.
    pub resident_kib: u64,
}

impl Summary {
    fn add(&mut self, round: &Outcome) {
        self.rounds += 1;
        self.operations += round.operations;
        self.refused += round.refused;
        self.faults += round.faults;
        self.loads += round.loads;
        self.written += round.written;
        self.packed += round.packed;
        self.hung += round.hung;
        self.closed_hung += u64::from(round.closed_hung);
        self.drawn = mix(self.drawn ^ round.drawn);
        self.outcome = mix(self.outcome ^ round.outcome);
    }
}

/// Runs rounds until the time is over and tells `line` of each. `hung` is called with what is known
/// when an operation hangs; nothing but the end of the process can end it then.
///
/// # Errors
/// The first thing that must not be.
pub fn run(
    options: &Options,
    mut line: impl FnMut(&str),
    hung: impl Fn(String) + Send + Clone + 'static,
) -> Result<Summary, Box<Violation>> {
    let end = Instant::now() + options.time;
    let base = options.dir.join(format!("tensortier-soak-{}", std::process::id()));
    let violation = |number, (thread, operation, what)| {
        Box::new(Violation { seed: options.seed, round: number, thread, operation, what })
    };
    let panics = count_panics();
    let before = panics.load(Ordering::SeqCst);
    let mut summary = Summary::default();
    let threads = if options.single { 1 } else { options.threads };
    for number in options.first..options.first.saturating_add(options.rounds) {
        if Instant::now() >= end {
            break;
        }
        let begun = Instant::now();
        // Even and odd rounds end differently: see `hammer`.
        let seed = mix(options.seed ^ mix(number)) & !1 | number & 1;
        let until = until(end, options.single);
        let setting = Setting { base: &base, seed, threads, single: options.single, until };
        let (hung, own) = (hung.clone(), options.seed);
        let told = move |what| hung(format!("seed {own} round {number}: {what}"));
        let outcome = round(&setting, told).map_err(|wrong| violation(number, wrong))?;
        if panics.load(Ordering::SeqCst) > before {
            let what = String::from("a thread panicked; see what it wrote");
            return Err(violation(number, (None, 0, what)));
        }
        summary.add(&outcome);
        line(&format!(
            "round {number}: {}, {} operations ({} refused), {} loads, {} written ({} packed), \
             {} faults, {} hung{}, {:.1} s, drawn {:016x}, outcome {:016x}",
            outcome.config,
            outcome.operations,
            outcome.refused,
            outcome.loads,
            outcome.written,
            outcome.packed,
            outcome.faults,
            outcome.hung,
            if outcome.closed_hung { " to the end" } else { "" },
            begun.elapsed().as_secs_f64(),
            outcome.drawn,
            outcome.outcome,
        ));
    }
    summary.resident_kib = Resources::now().resident_kib;
    match std::fs::remove_dir(&base) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let what = format!("{} stays: {error}", base.display());
            Err(violation(summary.rounds, (None, 0, what)))
        }
        _ => Ok(summary),
    }
}
