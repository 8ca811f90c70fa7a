//! What this process has open: descriptors, threads, memory.

use std::fs;

/// Descriptors, threads and resident memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    pub(super) resident_kib: u64,
}

impl Resources {
    /// Counts what there is now. The descriptor that counting itself needs is always one of them.
    pub(super) fn now() -> Self {
        let count = |dir: &str| fs::read_dir(dir).map_or(0, Iterator::count);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        Resources {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            resident_kib: resident.unwrap_or(0),
        }
    }

    /// Returns what there is more of than `before`, but for memory, which an allocator keeps.
    pub(super) fn more_than(&self, before: &Resources) -> Option<String> {
        let more = self.descriptors > before.descriptors || self.threads > before.threads;
        more.then(|| {
            format!(
                "{} descriptors and {} threads, {} and {} before",
                self.descriptors, self.threads, before.descriptors, before.threads
            )
        })
    }
}
