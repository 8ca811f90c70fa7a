//! Runs the randomized soak: `soak --seconds 600 --seed 1 [--threads 4] [--single] [--rounds N]
//! [--first N] [--dir DIR] [--linger SECONDS]`; bench/SOAK.md says what it does.

use std::process::ExitCode;
use std::time::Duration;

use tensortier_bench::soak::{Options, Summary, run};

fn options() -> Result<(Options, u64), String> {
    let mut options = Options {
        time: Duration::from_secs(60),
        rounds: u64::MAX,
        first: 0,
        seed: 1,
        threads: 4,
        single: false,
        dir: "/var/tmp".into(),
    };
    let mut linger = 0;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--single" {
            options.single = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        let number =
            || value.parse::<u64>().map_err(|error| format!("{argument} {value}: {error}"));
        match argument.as_str() {
            "--seconds" => options.time = Duration::from_secs(number()?),
            "--rounds" => options.rounds = number()?,
            "--first" => options.first = number()?,
            "--seed" => options.seed = number()?,
            "--threads" => options.threads = number()?.clamp(1, 64) as usize,
            "--linger" => linger = number()?,
            "--dir" => options.dir = value.into(),
            _ => return Err(format!("{argument} is not known")),
        }
    }
    Ok((options, linger))
}

fn main() -> ExitCode {
    let (options, linger) = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("soak: {error}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}, {} threads, single: {}", options.seed, options.threads, options.single);
    let hung = move |what| {
        println!("HANG: {what}");
        // For a debugger to look at it.
        std::thread::sleep(Duration::from_secs(linger));
        std::process::exit(1);
    };
    match run(&options, |line| println!("{line}"), hung) {
        Ok(summary) => {
            print(&summary);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("VIOLATION: {violation}");
            ExitCode::FAILURE
        }
    }
}

fn print(summary: &Summary) {
    println!(
        "passed: {} rounds, {} operations ({} refused), {} chunks loaded, {} written, {} faults, \
         {} MiB resident, drawn {:016x}, outcome {:016x}",
        summary.rounds,
        summary.operations,
        summary.refused,
        summary.loads,
        summary.written,
        summary.faults,
        summary.resident_kib >> 10,
        summary.drawn,
        summary.outcome,
    );
}
