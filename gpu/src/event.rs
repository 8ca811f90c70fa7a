//! A point in a stream's work that hosts and other streams can wait for.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Done once all work queued on its stream before it is done. Clones are the same event.
#[derive(Debug, Clone)]
pub struct Event(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    state: State,
    /// Who is told when it is no longer pending.
    told: Vec<Call>,
}

type Call = Box<dyn FnOnce(Result<()>) + Send>;

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
        let inner = Mutex::new(Inner { state: State::Pending, told: Vec::new() });
        let event = Event(Arc::new(Shared { inner, changed: Condvar::new() }));
        (event.clone(), Trigger(event))
    }

    /// Returns whether the work is done, without waiting.
    pub fn is_done(&self) -> bool {
        self.0.inner.lock().state == State::Done
    }

    /// Has `call` called with what [`Event::wait`] would return: at once if the work is done or lost
    /// already, or by the thread that learns of it, which it must not hold up.
    pub fn then(&self, call: impl FnOnce(Result<()>) + Send + 'static) {
        let mut inner = self.0.inner.lock();
        match inner.state {
            State::Pending => inner.told.push(Box::new(call)),
            state => {
                drop(inner);
                call(state.result());
            }
        }
    }

    /// Waits until the work is done. Blocks.
    ///
    /// # Errors
    /// [`Error::StreamLost`] if the stream ended before.
    pub fn wait(&self) -> Result<()> {
        let mut inner = self.0.inner.lock();
        while inner.state == State::Pending {
            self.0.changed.wait(&mut inner);
        }
        inner.state.result()
    }

    /// Waits for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the time is up, [`Error::StreamLost`] if the stream ended before.
    pub fn wait_for(&self, limit: Duration) -> Result<()> {
        // A limit beyond what the clock can count is no limit.
        let Some(end) = Instant::now().checked_add(limit) else {
            return self.wait();
        };
        let mut inner = self.0.inner.lock();
        while inner.state == State::Pending {
            let timed_out = self.0.changed.wait_until(&mut inner, end).timed_out();
            if timed_out && inner.state == State::Pending {
                return Err(Error::Timeout { after: limit });
            }
        }
        inner.state.result()
    }

    fn set(&self, to: State) {
        let mut inner = self.0.inner.lock();
        if inner.state != State::Pending {
            return;
        }
        inner.state = to;
        let told = std::mem::take(&mut inner.told);
        drop(inner);
        self.0.changed.notify_all();
        told.into_iter().for_each(|call| call(to.result()));
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.lock().state.fmt(f)
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

    #[test]
    fn who_asked_is_told_once_also_when_asking_late() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let note = |event: &Event, who: u8| {
            let told = Arc::clone(&told);
            event.then(move |result| told.lock().push((who, result)));
        };
        let ((done, fires), (lost, drops)) = (Event::new(), Event::new());
        note(&done, 1);
        note(&lost, 2);
        assert!(told.lock().is_empty());
        fires.fire();
        drop(drops);
        note(&done, 3);
        let expected = [(1, Ok(())), (2, Err(Error::StreamLost)), (3, Ok(()))];
        assert_eq!(*told.lock(), expected);
    }
}
