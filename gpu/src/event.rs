//! A point in a stream's work that hosts and other streams can wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Done once all work queued on its stream before it is done. Clones are the same event.
#[derive(Debug, Clone)]
pub struct Event(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pending,
    Done,
    Lost,
}

/// The end that fires an event; dropped unfired, the event's waiters learn that the stream is lost.
#[derive(Debug)]
pub(crate) struct Trigger(Event);

impl Event {
    pub(crate) fn new() -> (Event, Trigger) {
        let shared = Shared { state: Mutex::new(State::Pending), changed: Condvar::new() };
        let event = Event(Arc::new(shared));
        (event.clone(), Trigger(event))
    }

    /// Returns whether the work is done, without waiting.
    pub fn is_done(&self) -> bool {
        *self.0.state.lock() == State::Done
    }

    /// Waits until the work is done. Blocks.
    ///
    /// # Errors
    /// [`Error::StreamLost`] if the stream ended before.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        while *state == State::Pending {
            self.0.changed.wait(&mut state);
        }
        state.result()
    }

    /// Waits for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the time is up, [`Error::StreamLost`] if the stream ended before.
    pub fn wait_for(&self, limit: Duration) -> Result<()> {
        let mut state = self.0.state.lock();
        // A limit beyond what the clock can count is no limit.
        let Some(end) = Instant::now().checked_add(limit) else {
            drop(state);
            return self.wait();
        };
        while *state == State::Pending {
            if self.0.changed.wait_until(&mut state, end).timed_out() && *state == State::Pending {
                return Err(Error::Timeout { after: limit });
            }
        }
        state.result()
    }

    fn set(&self, to: State) {
        let mut state = self.0.state.lock();
        if *state == State::Pending {
            *state = to;
            self.0.changed.notify_all();
        }
    }
}

impl State {
    fn result(self) -> Result<()> {
        if self == State::Done { Ok(()) } else { Err(Error::StreamLost) }
    }
}

impl Trigger {
    pub(crate) fn fire(self) {
        self.0.set(State::Done);
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        self.0.set(State::Lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_pending_then_done_or_lost() {
        let (event, trigger) = Event::new();
        let limit = Duration::from_millis(1);
        assert_eq!(event.wait_for(limit), Err(Error::Timeout { after: limit }));
        assert!(!event.is_done());
        trigger.fire();
        assert!(event.is_done());
        assert_eq!(event.wait(), Ok(()));
        let (event, trigger) = Event::new();
        drop(trigger);
        assert_eq!(event.wait(), Err(Error::StreamLost));
        assert_eq!(event.wait_for(Duration::MAX), Err(Error::StreamLost));
    }
}
