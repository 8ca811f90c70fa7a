//! How much memory the process may lock, and how to say that it was not enough.

use std::fmt;

use rustix::process::{Resource, getrlimit};

use super::GRANULE;
use crate::error::Errno;
use crate::sync::{AtomicBool, Ordering};
use crate::units::Bytes;

/// Why committed memory is not locked. Its `Display` names what was needed, the limit, and what the
/// process had locked by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unlocked {
    /// How much was to be locked in one go, in bytes.
    pub needed: u64,
    /// Of that, what could be, in bytes.
    pub locked: u64,
    /// How much the whole process had locked before, in bytes.
    pub used: u64,
    /// The soft and the hard limit (`RLIMIT_MEMLOCK`), in bytes; `None` is no limit.
    pub limits: [Option<u64>; 2],
    /// What the system said.
    pub source: Errno,
}

impl Unlocked {
    /// Returns how things stand after `needed` bytes could not be locked, none of them so far.
    pub(super) fn after(needed: u64, source: Errno) -> Self {
        let limit = getrlimit(Resource::Memlock);
        let limits = [limit.current, limit.maximum];
        Unlocked { needed, locked: 0, used: locked_by_process(), limits, source }
    }

    /// Returns how much of what was needed the soft limit still allows, whole granules.
    pub(super) fn room(&self) -> u64 {
        let left = self.limits[0].map_or(0, |limit| limit.saturating_sub(self.used));
        left.min(self.needed) / GRANULE * GRANULE
    }

    /// Says so in the log, the first time in this process.
    pub(super) fn warn_once(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::SeqCst) {
            tracing::warn!("host memory can be swapped out: {self}");
        }
    }
}

impl fmt::Display for Unlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit =
            |limit: Option<u64>| limit.map_or(String::from("none"), |b| Bytes(b).to_string());
        let [soft, hard] = self.limits.map(limit);
        write!(
            f,
            "locking {} of memory: {}; {} of it could be locked; the limit is {soft} (hard {hard}), \
             the process had locked {}; raise it (ulimit -l) to keep the rest from being swapped",
            Bytes(self.needed),
            self.source,
            Bytes(self.locked),
            Bytes(self.used),
        )
    }
}

/// Returns how much memory the process has locked, as the kernel counts it; 0 where it does not say.
fn locked_by_process() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlocked(limits: [Option<u64>; 2], used: u64) -> Unlocked {
        let source = Errno(libc::ENOMEM);
        Unlocked { needed: 64 << 20, locked: 0, used, limits, source }
    }

    #[test]
    fn room_is_what_the_soft_limit_leaves() {
        assert_eq!(unlocked([Some(8 << 20), None], 4096).room(), (8 << 20) - 4096);
        assert_eq!(unlocked([Some(8 << 20), None], 9 << 20).room(), 0);
        assert_eq!(unlocked([Some(10_000), Some(10_000)], 0).room(), 8192);
        assert_eq!(unlocked([Some(1 << 40), None], 0).room(), 64 << 20);
        assert_eq!(unlocked([None, None], 0).room(), 0, "then it was not for the limit");
    }

    #[test]
    fn the_message_names_needed_limit_and_used() {
        let text = unlocked([Some(65536), None], 12288).to_string();
        for part in
            ["64.0 MiB", "limit is 64.0 KiB (hard none)", "had locked 12.0 KiB", "ulimit -l"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
