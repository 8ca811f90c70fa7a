//! Measures the kernels against memory: bytes per second of each, beside those of a probe that touches
//! the same streams with a trivial body, in turns.
//!
//! A row is one kernel over state that lies in DRAM: useful bytes per second of the kernel and of the
//! probe (median and best of all parts), and the median and the quartiles of the ratios kernel / probe of all pairs; `in
//! cache` is what the kernel does where memory is no limit. Then
//! come, from memory that fits a cache, steps without a gradient, for each policy on subnormals.
//!
//! Pages decide such figures, so on Linux the program starts itself once more with glibc told to ask
//! for huge pages (`GLIBC_TUNABLES`), unless that variable is set.

mod probe;
mod rows;
mod still;
mod work;

use std::error::Error;
use std::process::{Command, ExitCode};

use clap::Parser;
use tensortier::optimizer::kernel::Isa;

use rows::Row;

/// What a bench may fail with.
type Failure = Box<dyn Error + Send + Sync>;

/// Measures the kernels against what memory carries.
#[derive(Debug, Parser)]
#[command(name = "kernel")]
struct Options {
    /// Rows to measure, by name [default: all].
    rows: Vec<String>,
    /// Parameters, in millions.
    #[arg(long, default_value_t = 200)]
    params: usize,
    /// How often each row walks all parameters; a walk is many pairs of probe and kernel.
    #[arg(long, default_value_t = 3)]
    walks: usize,
    /// Instruction set of the kernels [default: the fastest of this machine].
    #[arg(long)]
    isa: Option<Isa>,
    /// Numbers of threads to measure with.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
}

const TUNABLES: &str = "GLIBC_TUNABLES";

fn main() -> Result<ExitCode, Failure> {
    let options = Options::parse();
    if cfg!(target_os = "linux") && std::env::var_os(TUNABLES).is_none() {
        let status = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(TUNABLES, "glibc.malloc.hugetlb=1")
            .status()?;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    measure(&options)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(options: &Options) -> Result<(), Failure> {
    let isa = options.isa.map_or_else(Isa::detect, Ok)?;
    let wants = |name: &str| options.rows.is_empty() || options.rows.iter().any(|row| row == name);
    println!("{} million parameters, {isa}", options.params);
    println!(
        "{:12} {:>7} {:>7} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>14} {:>6}",
        "row",
        "threads",
        "B/param",
        "in cache",
        "Mparam/s",
        "GB/s",
        "best",
        "probe",
        "best",
        "ratio",
        "quartiles",
        "pairs"
    );
    for &threads in &options.threads {
        for row in Row::ALL.into_iter().filter(|row| wants(row.name())) {
            let n = options.params * 1_000_000 / threads.max(1);
            let pairs = rows::pairs(row, isa, threads, n, options.walks)?;
            let bytes = row.bytes_per_param() * threads as f64;
            let (kernel, probe) = (pairs.kernel(), pairs.probe());
            println!(
                "{:12} {threads:>7} {:>7} {:>8.0} {:>8.0} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.3} {:>6.3}, {:.3} {:>6}",
                row.name(),
                row.bytes_per_param(),
                rows::in_cache(row, isa)? / 1e6,
                kernel.median * threads as f64 / 1e6,
                kernel.median * bytes / 1e9,
                kernel.best * bytes / 1e9,
                probe.median * bytes / 1e9,
                probe.best * bytes / 1e9,
                pairs.ratio(),
                pairs.quartiles().0,
                pairs.quartiles().1,
                pairs.count(),
            );
        }
    }
    if wants("still") {
        still::measure(isa)?;
    }
    Ok(())
}
