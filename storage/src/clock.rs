//! Where the store takes its time from, so that tests can set it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering};

/// A monotonic clock; clones share it.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Returns the system's monotonic clock, counted from now.
    pub fn system() -> Self {
        Clock(Source::System(Instant::now()))
    }

    /// Returns a clock that stands still until [`Clock::advance`] moves it.
    pub fn manual() -> Self {
        Clock(Source::Manual(Arc::new(AtomicU64::new(0))))
    }

    /// Returns the time since the clock was made.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Source::System(start) => start.elapsed(),
            Source::Manual(nanos) => Duration::from_nanos(nanos.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock forward; a system clock is left alone.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(nanos) = &self.0 {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_add(by, Ordering::SeqCst);
        }
    }
}
