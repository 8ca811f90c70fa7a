//! A path that becomes slow and recovers while the store writes: how soon it loses its share of what
//! is placed, and how soon it has it again.

use std::process::Command;
use std::time::{Duration, Instant};

use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::Store;

use crate::Failure;
use crate::options::Options;
use crate::table::{Bar, Figure, Spread, Table};

const ROW: &str = "recovery";
const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4 * MIB;
const PHASE: Duration = Duration::from_secs(8);

/// Throttles hand out their budgets in slices of 100 ms: shorter windows would show those.
const WINDOW: Duration = Duration::from_millis(400);

/// A window of the run: when it ended, and what each path wrote in it.
struct Seen {
    at: Duration,
    bps: Vec<f64>,
}

/// Measures the row: three phases of 8 s, before, slowed, restored.
///
/// # Errors
/// Those of the store, or of the commands that change the rate.
pub fn run(options: &Options, table: &Table) -> Result<(), Failure> {
    let known = options.known();
    let (Some(slow), Some(restore)) = (&options.slow_command, &options.restore_command) else {
        return Err("recovery needs --slow-command and --restore-command, see rig.sh".into());
    };
    if known.len() < 2 {
        return Err("recovery needs at least two --path DIR=MBPS".into());
    }
    let rates: Vec<f64> = known.iter().filter_map(|path| path.bps).collect();
    let builder = Store::builder().host_budget(128 * MIB).chunk_bytes(CHUNK);
    let add = |builder: tensortier::storage::store::StoreBuilder, path| builder.path(path);
    let store = known.iter().map(|path| Path::new(&path.dir)).fold(builder, add).open()?;
    let mut slowed = rates.clone();
    if let Some(last) = slowed.last_mut() {
        *last = options.slow_mbps * 1e6;
    }
    for (case, command, rates) in [
        ("before", None, &rates),
        ("slowed", Some(slow), &slowed),
        ("restored", Some(restore), &rates),
    ] {
        if let Some(command) = command {
            shell(command)?;
        }
        report(table, case, &phase(&store)?, rates);
    }
    Ok(())
}

fn shell(command: &str) -> Result<(), Failure> {
    let status = Command::new("sh").arg("-c").arg(command).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command}: {status}").into()) }
}

/// Writes without pause; returns what each path carried in each window.
fn phase(store: &Store) -> Result<Vec<Seen>, Failure> {
    let bytes = vec![3; CHUNK as usize];
    let written =
        || -> Vec<u64> { store.stats().paths.iter().map(|path| path.written_bytes).collect() };
    let begin = Instant::now();
    let (mut seen, mut last, mut last_at) = (Vec::new(), written(), Duration::ZERO);
    for i in 0_u64.. {
        store.put(&format!("ring.{}", i % 256), DType::U8, &[CHUNK], &bytes)?;
        let at = begin.elapsed();
        if at - last_at >= WINDOW {
            let now = written();
            let seconds = (at - last_at).as_secs_f64();
            let bps = now.iter().zip(&last).map(|(now, last)| (now - last) as f64 / seconds);
            seen.push(Seen { at, bps: bps.collect() });
            (last, last_at) = (now, at);
        }
        if at > PHASE {
            break;
        }
    }
    Ok(seen)
}

fn report(table: &Table, case: &str, seen: &[Seen], rates: &[f64]) {
    let sum: f64 = rates.iter().sum();
    let total = |seen: &Seen| seen.bps.iter().sum::<f64>();
    let share = |seen: &Seen| seen.bps.last().copied().unwrap_or(0.0) / total(seen);
    // The last half of the phase is the new state; how soon did the first window reach it?
    let late: Vec<&Seen> = seen.iter().filter(|seen| seen.at > PHASE / 2).collect();
    let figure = Figure::of_pairs(
        ROW,
        format!("{case}: put, last 4 s of 8"),
        "MB/s",
        &late.iter().map(|seen| (total(seen) / 1e6, sum / 1e6)).collect::<Vec<_>>(),
    );
    let shares = Spread::of(late.iter().map(|seen| share(seen)));
    let ideal = rates.last().copied().unwrap_or(0.0) / sum;
    table.push(&figure.note(format!("share of the last path {shares}, of its rate {ideal:.2}")));
    let reached = |seen: &&Seen| total(seen) >= 0.9 * sum;
    let soon = seen.iter().find(reached).map_or(f64::INFINITY, |seen| seen.at.as_secs_f64());
    let figure =
        Figure::new(ROW, format!("{case}: time to 0.9 of the sum"), "s", Spread::of([soon]));
    table.push(&figure.bar(Bar::AtMost(2.4)).note("seen in windows of 0.4 s"));
}
