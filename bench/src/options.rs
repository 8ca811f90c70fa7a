//! The command line of the `store` bench, and the directories that a run works in.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::Failure;

/// Measures the store: one table row per figure, each as achieved / limit.
#[derive(Debug, Parser)]
#[command(name = "store")]
pub struct Options {
    /// Rows to measure: one-path, paths, recovery, lease, small, one-gib, overheads [default: all but
    /// recovery].
    pub rows: Vec<String>,
    /// Directory to work in; DIR=MBPS says what it is known to carry each way (see README.md).
    #[arg(long = "path", value_name = "DIR[=MBPS]")]
    pub paths: Vec<BenchPath>,
    /// Stop repeating a case after this long, though never before three repeats.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Bytes moved per repeat of one-path and overheads, in MiB; compression moves at least 512.
    #[arg(long, default_value_t = 2048)]
    pub total_mib: u64,
    /// Chunks of one-path, in MiB.
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_values_t = [8, 16, 64])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=128))]
    pub chunk_mib: Vec<u64>,
    /// Objects of the row `small`.
    #[arg(long, default_value_t = 1_000_000)]
    pub objects: u64,
    /// Print one JSON object per figure instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Recovery: command that slows the last path, and the rate it then has.
    #[arg(long, value_name = "COMMAND")]
    pub slow_command: Option<String>,
    /// Recovery: what the last path carries once slowed, in MB/s.
    #[arg(long, default_value_t = 35.0)]
    pub slow_mbps: f64,
    /// Recovery: command that makes the last path as fast as before.
    #[arg(long, value_name = "COMMAND")]
    pub restore_command: Option<String>,
}

/// A directory, and what is known of its speed.
#[derive(Debug, Clone)]
pub struct BenchPath {
    /// The directory.
    pub dir: PathBuf,
    /// What it carries each way at once, in bytes per second, if that is known.
    pub bps: Option<f64>,
}

impl FromStr for BenchPath {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (dir, mbps) =
            text.split_once('=').map_or((text, None), |(dir, mbps)| (dir, Some(mbps)));
        let parse = |mbps: &str| mbps.parse::<f64>().map(|mbps| mbps * 1e6);
        let bps = mbps.map(parse).transpose().map_err(|error| format!("{text}: {error}"))?;
        Ok(BenchPath { dir: dir.into(), bps })
    }
}

impl Options {
    /// Returns whether a row was asked for.
    pub fn wants(&self, row: &str) -> bool {
        self.rows.iter().any(|wanted| wanted == row) || (self.rows.is_empty() && row != "recovery")
    }

    /// Returns the first directory, by default the system's for temporary files.
    pub fn dir(&self) -> PathBuf {
        self.paths.first().map_or_else(std::env::temp_dir, |path| path.dir.clone())
    }

    /// Returns the directories given whose speed is known.
    pub fn known(&self) -> Vec<BenchPath> {
        self.paths.iter().filter(|path| path.bps.is_some()).cloned().collect()
    }

    /// Calls `once` up to `most` times, at least three times, and not again once the time is up.
    ///
    /// # Errors
    /// The first of `once`.
    pub fn repeat(
        &self,
        most: usize,
        mut once: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        for round in 0..most.max(3) {
            if round >= 3 && begin.elapsed() > Duration::from_secs(self.seconds) {
                break;
            }
            once()?;
        }
        Ok(())
    }
}

/// A directory of the bench's own, removed with all in it when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory in `parent`.
    ///
    /// # Errors
    /// What the system said.
    pub fn new(parent: &Path, name: &str) -> Result<Self, Failure> {
        let dir = parent.join(format!("tensortier-bench-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Scratch(dir))
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} could not be removed: {error}", self.0.display());
        }
    }
}
