//! What a caller says about a path before it is opened.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::units::{Bytes, BytesPerSecond};

/// What kind of storage is behind a path; decides how much is kept in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// A local drive: short latency, few bytes in flight saturate it.
    #[default]
    Nvme,
    /// A network or parallel file system: long latency, only concurrency helps.
    Remote,
}

impl Kind {
    /// Returns how long such a path may be silent with operations in flight before it counts as
    /// hung: 30 s for a local drive, 120 s for a remote one.
    pub fn deadline(self) -> Duration {
        Duration::from_secs(match self {
            Kind::Nvme => 30,
            Kind::Remote => 120,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Nvme => "nvme",
            Kind::Remote => "remote",
        })
    }
}

/// How many processes use a path's device at one time. Those of one user that see the same `/dev/shm`
/// take turns, first come, first served: a process goes on with its other paths meanwhile, and one
/// that ends or is killed holds nobody up. Where there is no `/dev/shm`, nobody waits. All paths of a
/// process on a device take its turn together; where they, or processes, allow different numbers, the
/// least counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MaxProcesses {
    /// What pays, beginning with one, on a remote path and on a disk that rotates; any number on
    /// others.
    #[default]
    Auto,
    /// Any number: nobody waits for his turn.
    Any,
    /// So many.
    AtMost(NonZeroU32),
}

impl fmt::Display for MaxProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaxProcesses::Auto => f.pad("auto"),
            MaxProcesses::Any => f.pad("any"),
            MaxProcesses::AtMost(processes) => write!(f, "{processes}"),
        }
    }
}

impl FromStr for MaxProcesses {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(MaxProcesses::Auto),
            "any" => Ok(MaxProcesses::Any),
            _ => text.parse().map(MaxProcesses::AtMost).map_err(|_| Error::Config {
                what: format!("{text:?} as a number of processes"),
                why: String::from("write a number from 1, any, or auto"),
            }),
        }
    }
}

/// A directory to keep bytes in, and how to treat it. A store makes a directory of its own inside
/// and touches nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// The directory; it must exist.
    pub dir: PathBuf,
    /// What kind of storage it is.
    pub kind: Kind,
    /// At most this much is read per second, on average.
    pub read_cap: Option<BytesPerSecond>,
    /// At most this much is written per second, on average.
    pub write_cap: Option<BytesPerSecond>,
    /// At most this much space is taken in files.
    pub quota: Option<Bytes>,
    /// How long it may be silent with operations in flight before it counts as hung; if `None`,
    /// [`Kind::deadline`].
    pub deadline: Option<Duration>,
    /// How many processes use its device at one time.
    pub max_processes: MaxProcesses,
}

impl Path {
    /// Returns a local path without caps or quota.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Path {
            dir: dir.into(),
            kind: Kind::Nvme,
            read_cap: None,
            write_cap: None,
            quota: None,
            deadline: None,
            max_processes: MaxProcesses::Auto,
        }
    }

    /// Sets what kind of storage it is.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Caps the average read rate.
    #[must_use]
    pub fn read_cap(mut self, cap: BytesPerSecond) -> Self {
        self.read_cap = Some(cap);
        self
    }

    /// Caps the average write rate.
    #[must_use]
    pub fn write_cap(mut self, cap: BytesPerSecond) -> Self {
        self.write_cap = Some(cap);
        self
    }

    /// Limits the space taken in files; whole 4 KiB granules count.
    #[must_use]
    pub fn quota(mut self, quota: Bytes) -> Self {
        self.quota = Some(quota);
        self
    }

    /// Sets how long it may be silent with operations in flight before it counts as hung. The time
    /// that transfers wait in queues or for a cap does not count.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how many processes use its device at one time.
    #[must_use]
    pub fn max_processes(mut self, processes: MaxProcesses) -> Self {
        self.max_processes = processes;
        self
    }

    /// Returns the number of the device that the directory is on, if there is such a directory.
    pub(crate) fn device(&self) -> Option<u64> {
        rustix::fs::stat(&self.dir).ok().map(|stat| stat.st_dev)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_processes_is_read_as_it_is_shown() {
        let four = MaxProcesses::AtMost(NonZeroU32::MIN.saturating_add(3));
        for one in [MaxProcesses::Auto, MaxProcesses::Any, four] {
            assert_eq!(one.to_string().parse::<MaxProcesses>().unwrap(), one);
        }
        for wrong in ["", "0", "-1", "some", "4294967296"] {
            let error = wrong.parse::<MaxProcesses>().unwrap_err().to_string();
            assert!(error.contains("number from 1, any, or auto"), "{error}");
        }
    }
}
