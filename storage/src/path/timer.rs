//! The one timer of a path: its thread looks at the path when a cap or a deadline falls due.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::sync::slice;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};

/// Calls back at a time that is set, on a thread of its own.
#[derive(Debug)]
pub(super) struct Timer {
    clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    due: Option<Duration>,
    stopped: bool,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Timer { clock, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Starts the thread, which ends with [`Timer::stop`] or when `act` returns false.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no more threads.
    pub(super) fn start(timer: &Arc<Self>, act: impl Fn() -> bool + Send + 'static) -> Result<()> {
        let moved = Arc::downgrade(timer);
        timer.clock.on_advance(move || {
            let Some(timer) = moved.upgrade() else { return false };
            // With the lock, so that it falls before the look at the clock or into the wait.
            let state = timer.state.lock();
            timer.changed.notify_one();
            !state.stopped
        });
        let theirs = Arc::clone(timer);
        let thread = thread::Builder::new()
            .name(String::from("tensortier-timer"))
            .spawn(move || {
                slice::shorten();
                while theirs.wait() && act() {}
            })
            .map_err(|error| Error::System {
                attempted: String::from("start a thread for the timer of a path"),
                source: error.into(),
                remedy: String::from("raise the limit of threads (ulimit -u, pids.max)"),
            })?;
        timer.state.lock().thread = Some(thread);
        Ok(())
    }

    /// Asks for a call at `due`, or earlier.
    pub(super) fn set(&self, due: Duration) {
        let mut state = self.state.lock();
        if state.due.is_none_or(|set| due < set) {
            state.due = Some(due);
            self.changed.notify_one();
        }
    }

    /// Waits until the time has come; returns false once stopped.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            match state.due {
                _ if state.stopped => return false,
                None => self.changed.wait(&mut state),
                Some(due) if due > self.clock.now() => {
                    self.clock.wait_until(&self.changed, &mut state, due);
                }
                Some(_) => break,
            }
        }
        state.due = None;
        true
    }

    /// Ends the thread and waits for it, unless called on it.
    pub(super) fn stop(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.thread.take()
        };
        self.changed.notify_one();
        let own = thread::current().id();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            // It cannot panic: what callbacks do is caught.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn it_calls_when_a_manual_clock_comes_to_the_earliest_time_set() {
        let clock = Clock::manual();
        let timer = Timer::new(clock.clone());
        let (tell, told) = mpsc::channel();
        let seen = clock.clone();
        Timer::start(&timer, move || tell.send(seen.now()).is_ok()).unwrap();
        timer.set(Duration::from_secs(9));
        timer.set(Duration::from_secs(5));
        timer.set(Duration::from_secs(7));
        clock.advance(Duration::from_secs(4));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        clock.advance(Duration::from_secs(1));
        assert_eq!(told.recv().unwrap(), Duration::from_secs(5));
        clock.advance(Duration::from_secs(10));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "one call for what was set");
        timer.stop();
        assert!(told.recv().is_err(), "the thread has ended");
    }
}
