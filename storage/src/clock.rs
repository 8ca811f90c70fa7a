//! Where the store takes its time from, so that tests can set it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// A monotonic clock; clones share it.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System(Instant),
    Manual(Arc<Manual>),
}

#[derive(Default)]
struct Manual {
    nanos: AtomicU64,
    /// Called when the clock is moved, until one says that it is no longer needed.
    wakes: Mutex<Vec<Wake>>,
}

type Wake = Box<dyn Fn() -> bool + Send>;

impl fmt::Debug for Manual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manual").field("nanos", &self.nanos).finish_non_exhaustive()
    }
}

impl Clock {
    /// Returns the system's monotonic clock, counted from now.
    pub fn system() -> Self {
        Clock(Source::System(Instant::now()))
    }

    /// Returns a clock that stands still until [`Clock::advance`] moves it.
    pub fn manual() -> Self {
        Clock(Source::Manual(Arc::default()))
    }

    /// Returns the time since the clock was made.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Source::System(start) => start.elapsed(),
            Source::Manual(manual) => Duration::from_nanos(manual.nanos.load(Ordering::SeqCst)),
        }
    }

    /// Returns the time in nanoseconds, never 0. A manual clock goes on by one each time, so that
    /// what happens one after the other can be told apart.
    pub(crate) fn stamp(&self) -> u64 {
        match &self.0 {
            Source::System(start) => (start.elapsed().as_nanos() as u64).max(1),
            Source::Manual(manual) => manual.nanos.fetch_add(1, Ordering::SeqCst) + 1,
        }
    }

    /// Returns whether time goes by itself.
    pub(crate) fn is_system(&self) -> bool {
        matches!(self.0, Source::System(_))
    }

    /// Moves a manual clock forward; a system clock is left alone.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(manual) = &self.0 {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            manual.nanos.fetch_add(by, Ordering::SeqCst);
            manual.wakes.lock().retain(|wake| wake());
        }
    }

    /// Has `wake` called whenever a manual clock was moved, until it returns false. It must
    /// wake whoever waits (for [`Clock::wait_until`]: take its lock and notify the variable) and do no
    /// more. A system
    /// clock wakes by itself.
    pub(crate) fn on_advance(&self, wake: impl Fn() -> bool + Send + 'static) {
        if let Source::Manual(manual) = &self.0 {
            manual.wakes.lock().push(Box::new(wake));
        }
    }

    /// Returns how long to wait for that time, or `None` on a manual clock, which says when it was
    /// moved.
    pub(crate) fn real_wait(&self, until: Duration) -> Option<Duration> {
        match &self.0 {
            Source::System(start) => Some(until.saturating_sub(start.elapsed())),
            Source::Manual(_) => None,
        }
    }

    /// Waits until `changed` is notified or, on a system clock, that time has come.
    pub(crate) fn wait_until<T>(
        &self,
        changed: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        until: Duration,
    ) {
        match &self.0 {
            Source::System(start) => match start.checked_add(until) {
                Some(until) => {
                    changed.wait_until(guard, until);
                }
                None => changed.wait(guard),
            },
            Source::Manual(_) => changed.wait(guard),
        }
    }
}
