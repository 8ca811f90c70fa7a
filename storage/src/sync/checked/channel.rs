//! An unbounded channel of any number of ends over the model checker's lock and variable.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use crossbeam_channel::{RecvError, RecvTimeoutError, SendError, TryRecvError};

use super::{Condvar, Mutex, is_over};

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    receivers: usize,
}

pub(crate) struct Sender<T>(Arc<Shared<T>>);
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), senders: 1, receivers: 1 };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    pub(crate) fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        if state.receivers == 0 {
            drop(state);
            return Err(SendError(value));
        }
        state.queue.push_back(value);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(value) = state.queue.pop_front() {
                return Ok(value);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            self.0.changed.wait(&mut state);
        }
    }

    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock();
        let ended = state.senders == 0;
        let none = if ended { TryRecvError::Disconnected } else { TryRecvError::Empty };
        state.queue.pop_front().ok_or(none)
    }

    pub(crate) fn recv_timeout(&self, _limit: Duration) -> Result<T, RecvTimeoutError> {
        loop {
            match self.try_recv() {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if is_over() => return Err(RecvTimeoutError::Timeout),
                Err(TryRecvError::Empty) => shuttle::thread::yield_now(),
            }
        }
    }

    pub(crate) fn recv_deadline(&self, _deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.recv_timeout(Duration::ZERO)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.state.lock().queue.len()
    }
}

impl<T> Iterator for Receiver<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.recv().ok()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().receivers += 1;
        Receiver(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.senders -= 1;
        if state.senders == 0 {
            drop(state);
            self.0.changed.notify_all();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.receivers -= 1;
        // With the last of them goes what nobody will take, as it does in the real one.
        let unwanted =
            if state.receivers == 0 { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        drop(unwanted);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
