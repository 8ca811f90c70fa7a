//! What a caller says about a path before it is opened.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

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

    /// Returns the number of the device that the directory is on, if there is such a directory.
    pub(crate) fn device(&self) -> Option<u64> {
        rustix::fs::stat(&self.dir).ok().map(|stat| stat.st_dev)
    }

    /// Returns how many paths are on its device, itself included, if others are on these.
    pub(super) fn sharers(&self, others: impl IntoIterator<Item = u64>) -> usize {
        let own = self.device();
        1 + others.into_iter().filter(|device| Some(*device) == own).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_knows_how_many_share_its_device() {
        let path = Path::new(std::env::temp_dir());
        let own = path.device().unwrap();
        assert_eq!(path.sharers([]), 1);
        assert_eq!(path.sharers([own, own + 1, own]), 3);
        assert_eq!(Path::new("/not/there").sharers([own]), 1);
    }
}
