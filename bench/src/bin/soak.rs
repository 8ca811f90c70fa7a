//! Runs the randomized soak; `--help` lists the options and bench/SOAK.md says what it does.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tensortier_bench::soak::{Options, Summary, run};

/// Lets threads do everything to stores whose paths fail, and checks every byte and every leak.
///
/// Prints a line per store and a summary. Ends with 1 at the first thing that must not be, and says how
/// to repeat it; bench/SOAK.md explains the lines.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Arguments {
    /// How long to run, in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// What all operations and faults follow from
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Threads on each store
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// One thread, paths in memory, a clock moved by hand: equal seeds have equal outcomes
    #[arg(long, conflicts_with = "threads")]
    single: bool,
    /// Most rounds to run [default: as many as the time allows]
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// The first round, to repeat one that failed
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Where directories are made
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Stay so many seconds for a debugger when an operation hangs
    #[arg(long, value_name = "N", default_value_t = 0)]
    linger: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options {
        time: Duration::from_secs(arguments.seconds),
        rounds: arguments.rounds.unwrap_or(u64::MAX),
        first: arguments.first,
        seed: arguments.seed,
        threads: arguments.threads as usize,
        single: arguments.single,
        dir: arguments.dir,
    };
    match options.single {
        true => println!("soak: seed {}, one thread", options.seed),
        false => println!("soak: seed {}, {} threads", options.seed, options.threads),
    }
    let linger = Duration::from_secs(arguments.linger);
    let hung = move |what| {
        println!("HANG: {what}");
        // For a debugger to look at it.
        std::thread::sleep(linger);
        std::process::exit(1);
    };
    match run(&options, |line| println!("{line}"), hung) {
        Ok(summary) => {
            print(&summary);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("VIOLATION: {violation}");
            let single = if options.single { " --single" } else { "" };
            println!(
                "to repeat: soak --seed {} --first {} --rounds 1{single}",
                violation.seed, violation.round
            );
            ExitCode::FAILURE
        }
    }
}

fn print(summary: &Summary) {
    let row = |name: &str, value: String| println!("  {name:<12}{value}");
    println!("passed: no wrong byte, nothing leaked, nothing that hung for good");
    row("rounds", format!("{} ({} closed on a hung path)", summary.rounds, summary.closed_hung));
    row(
        "operations",
        format!("{} ({} refused as they may be)", summary.operations, summary.refused),
    );
    row("loaded", format!("{} chunks", summary.loads));
    row("written", format!("{} chunks ({} packed)", summary.written, summary.packed));
    row("faults", format!("{} met, {} transfers hung", summary.faults, summary.hung));
    row("resident", format!("{} MiB", summary.resident_kib >> 10));
    row("drawn", format!("{:016x}", summary.drawn));
    row("outcome", format!("{:016x}", summary.outcome));
}
