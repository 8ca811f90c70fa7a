//! How much memory this process really takes: anonymous and shared, now and at its peak.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Resident memory that is the process's own: mapped files are left out, the kernel can drop those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// Anonymous memory (`RssAnon`).
    pub(crate) anonymous_bytes: u64,
    /// Shared memory (`RssShmem`).
    pub(crate) shared_bytes: u64,
}

impl Memory {
    /// Returns the memory of this process now.
    ///
    /// # Errors
    /// If `/proc/self/status` cannot be read or lacks the two lines.
    pub(crate) fn now() -> io::Result<Memory> {
        parse(&std::fs::read_to_string("/proc/self/status")?)
            .ok_or_else(|| io::Error::other("/proc/self/status has no RssAnon and RssShmem"))
    }

    /// Returns both kinds together.
    pub(crate) fn bytes(self) -> u64 {
        self.anonymous_bytes + self.shared_bytes
    }
}

fn parse(status: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(Memory { anonymous_bytes: field("RssAnon:")?, shared_bytes: field("RssShmem:")? })
}

/// Follows the peak by looking at fixed intervals, since the kernel keeps none for these two kinds.
/// What rises and falls between two looks is missed; memory that stays for one interval is not.
#[derive(Debug)]
pub(crate) struct PeakTracker {
    start: Memory,
    peak: Arc<AtomicU64>,
    stop: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl PeakTracker {
    /// Takes the memory now as the start and looks at it every `interval` from a thread of its own.
    ///
    /// # Errors
    /// If the memory cannot be read or the thread not be started.
    pub(crate) fn start(interval: Duration) -> io::Result<PeakTracker> {
        let start = Memory::now()?;
        let peak = Arc::new(AtomicU64::new(start.bytes()));
        let (stop, stopped) = mpsc::channel::<()>();
        let seen = Arc::clone(&peak);
        let watch = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                look(&seen);
            }
        };
        let watcher = std::thread::Builder::new().name("tt-memory".into()).spawn(watch)?;
        Ok(PeakTracker { start, peak, stop: Some(stop), watcher: Some(watcher) })
    }

    /// Returns the memory when the tracker was started.
    pub(crate) fn start_bytes(&self) -> u64 {
        self.start.bytes()
    }

    /// Looks now as well and returns the largest memory seen so far.
    pub(crate) fn peak_bytes(&self) -> u64 {
        look(&self.peak);
        self.peak.load(Ordering::Relaxed)
    }
}

/// Returns how much memory new work can take without swapping, if the system says so.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A look that fails once is made up for by the next one.
fn look(peak: &AtomicU64) {
    if let Ok(memory) = Memory::now() {
        peak.fetch_max(memory.bytes(), Ordering::Relaxed);
    }
}

impl Drop for PeakTracker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(watcher) = self.watcher.take() {
            // It ends at once and cannot fail in a way that matters here.
            let _ = watcher.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_lines_are_read_and_nothing_else() {
        let status =
            "Name:\tx\nVmHWM:\t 9 kB\nRssAnon:\t     12 kB\nRssFile:\t 7 kB\nRssShmem:\t 3 kB\n";
        let memory = parse(status).unwrap();
        assert_eq!((memory.anonymous_bytes, memory.shared_bytes), (12 << 10, 3 << 10));
        assert_eq!(memory.bytes(), 15 << 10);
        assert_eq!(parse("RssAnon:\t12 kB\n"), None);
        assert_eq!(parse("RssAnon:\t12 MB\nRssShmem:\t3 kB\n"), None);
    }

    #[test]
    fn memory_that_came_and_went_stays_in_the_peak() {
        let tracker = PeakTracker::start(Duration::from_millis(1)).unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let during = tracker.peak_bytes();
        drop(block);
        // Not compared with the start: other tests of this process let go of memory meanwhile.
        assert!(during >= 64 << 20, "{during}");
        assert!(tracker.peak_bytes() >= during);
    }
}
