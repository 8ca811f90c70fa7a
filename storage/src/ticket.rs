//! The one ticket type: a result that comes later. It can be waited for, waited for with a limit,
//! awaited on any executor, or dropped; dropping abandons the answer, never the memory under it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex};

/// A result that comes later. `wait` blocks; as a [`Future`] it runs on any executor.
#[must_use = "dropping a ticket abandons its answer"]
pub struct Ticket<T>(State<T>);

enum State<T> {
    /// It was answered before it was made; `None` once the answer was taken.
    Ready(Option<Result<T>>),
    Later(Later<T>),
}

/// The asking end of an answer that another thread gives.
struct Later<T>(Arc<Shared<T>>);

/// The other end of a [`Ticket`]. Dropped without an answer, it answers [`Error::Closed`].
pub(crate) struct Completer<T>(Arc<Shared<T>>);

struct Shared<T> {
    slot: Mutex<Slot<T>>,
    ready: Condvar,
}

/// There is one for everything that is waited for, so it holds no more than its state needs.
enum Slot<T> {
    Open(Asking),
    Answered(Result<T>),
    Taken,
    /// The ticket was dropped.
    Abandoned,
}

/// What belongs to a ticket that was not yet answered.
#[derive(Default)]
struct Asking {
    waker: Option<Waker>,
    /// Called when the ticket is dropped.
    on_abandon: Option<Box<dyn FnOnce() + Send>>,
}

/// Returns a ticket and what answers it.
pub(crate) fn ticket<T>() -> (Completer<T>, Ticket<T>) {
    let slot = Mutex::new(Slot::Open(Asking::default()));
    let shared = Arc::new(Shared { slot, ready: Condvar::new() });
    (Completer(Arc::clone(&shared)), Ticket(State::Later(Later(shared))))
}

impl<T> Slot<T> {
    /// Takes the answer, if it is there.
    fn take(&mut self) -> Option<Result<T>> {
        if !matches!(self, Slot::Answered(_)) {
            return None;
        }
        match std::mem::replace(self, Slot::Taken) {
            Slot::Answered(answer) => Some(answer),
            _ => None,
        }
    }
}

/// Nothing in a ticket is ever pinned, whatever its answer is.
impl<T> Unpin for Ticket<T> {}

impl<T> Ticket<T> {
    /// Returns a ticket that is answered already; allocates nothing.
    pub(crate) fn answered(answer: Result<T>) -> Self {
        Ticket(State::Ready(Some(answer)))
    }

    /// Has `call` called if the ticket is dropped before its answer came.
    pub(crate) fn on_abandon(&self, call: impl FnOnce() + Send + 'static) {
        let State::Later(later) = &self.0 else { return };
        if let Slot::Open(asking) = &mut *later.0.slot.lock() {
            asking.on_abandon = Some(Box::new(call));
        }
    }

    /// Blocks until the answer is there and returns it. There is one answer, so nobody waits twice:
    ///
    /// ```compile_fail,E0382
    /// # use tensortier_storage::store::Store;
    /// fn twice(store: &Store) {
    ///     let flushed = store.flush_async();
    ///     let _ = flushed.wait();
    ///     let _ = flushed.wait(); // it was given away
    /// }
    /// ```
    ///
    /// # Errors
    /// Whatever the operation failed with; [`Error::Closed`] if the store went away.
    pub fn wait(self) -> Result<T> {
        match self.0 {
            State::Ready(answer) => answer.unwrap_or(Err(Error::Closed)),
            State::Later(later) => later.wait(),
        }
    }

    /// Blocks at most `limit`; returns the answer, or the ticket if none is there yet.
    ///
    /// # Errors
    /// The ticket itself, to wait again.
    pub fn wait_timeout(self, limit: Duration) -> std::result::Result<Result<T>, Self> {
        match self.0 {
            State::Ready(answer) => Ok(answer.unwrap_or(Err(Error::Closed))),
            State::Later(later) => {
                later.wait_timeout(limit).map_err(|later| Ticket(State::Later(later)))
            }
        }
    }

    /// Returns whether the answer is there.
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            State::Ready(answer) => answer.is_some(),
            State::Later(later) => matches!(*later.0.slot.lock(), Slot::Answered(_)),
        }
    }
}

impl<T> Later<T> {
    fn wait(self) -> Result<T> {
        let mut slot = self.0.slot.lock();
        loop {
            if let Some(answer) = slot.take() {
                return answer;
            }
            self.0.ready.wait(&mut slot);
        }
    }

    fn wait_timeout(self, limit: Duration) -> std::result::Result<Result<T>, Self> {
        // `None`: the clock does not reach that far.
        let deadline = Instant::now().checked_add(limit);
        let mut slot = self.0.slot.lock();
        loop {
            if let Some(answer) = slot.take() {
                return Ok(answer);
            }
            let Some(deadline) = deadline else {
                self.0.ready.wait(&mut slot);
                continue;
            };
            if self.0.ready.wait_until(&mut slot, deadline).timed_out() {
                let answer = slot.take();
                drop(slot);
                return answer.ok_or(self);
            }
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let mut slot = self.0.slot.lock();
        if let Slot::Open(asking) = &mut *slot {
            asking.waker = Some(cx.waker().clone());
        }
        slot.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Ready(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            State::Later(later) => later.poll(cx),
        }
    }
}

impl<T> Drop for Later<T> {
    fn drop(&mut self) {
        // An answer may own a lease, whose drop takes other locks: it goes after ours is free.
        let left = std::mem::replace(&mut *self.0.slot.lock(), Slot::Abandoned);
        if let Slot::Open(Asking { on_abandon: Some(call), .. }) = left {
            call();
        }
    }
}

impl<T> Completer<T> {
    /// Gives the answer. If the ticket was dropped the answer is dropped here.
    pub(crate) fn complete(self, answer: Result<T>) {
        self.answer(answer);
    }

    /// Returns whether nobody will ever take the answer.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(*self.0.slot.lock(), Slot::Abandoned)
    }

    fn answer(&self, answer: Result<T>) {
        let mut slot = self.0.slot.lock();
        // Whatever is dropped here may take other locks: it goes after ours is free.
        if !matches!(*slot, Slot::Open(_)) {
            drop(slot);
            return drop(answer);
        }
        let asked = std::mem::replace(&mut *slot, Slot::Answered(answer));
        drop(slot);
        self.0.ready.notify_all();
        if let Slot::Open(Asking { waker: Some(waker), .. }) = asked {
            waker.wake();
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.answer(Err(Error::Closed));
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket(ready: {})", self.is_ready())
    }
}

impl<T> fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn an_answer_reaches_a_waiter_on_another_thread() {
        let (completer, ticket) = ticket();
        let waiter = thread::spawn(move || ticket.wait());
        completer.complete(Ok(5));
        assert_eq!(waiter.join().unwrap().unwrap(), 5);
    }

    #[test]
    fn a_limited_wait_gives_the_ticket_back() {
        let (completer, ticket) = ticket::<u8>();
        let ticket = ticket.wait_timeout(Duration::from_millis(1)).unwrap_err();
        completer.complete(Ok(1));
        assert_eq!(ticket.wait_timeout(Duration::ZERO).unwrap().unwrap(), 1);
    }

    #[test]
    fn a_dropped_completer_answers_closed_and_a_dropped_ticket_drops_the_answer() {
        let (completer, ticket1) = ticket::<u8>();
        drop(completer);
        assert!(matches!(ticket1.wait(), Err(Error::Closed)));
        let (completer, ticket2) = ticket::<Arc<()>>();
        let value = Arc::new(());
        drop(ticket2);
        assert!(completer.is_abandoned());
        completer.complete(Ok(Arc::clone(&value)));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_ticket_is_a_future() {
        struct Flag(Mutex<bool>);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                *self.0.lock() = true;
            }
        }
        let flag = Arc::new(Flag(Mutex::new(false)));
        let waker = Waker::from(Arc::clone(&flag));
        let mut cx = Context::from_waker(&waker);
        let (completer, mut ticket) = ticket();
        assert!(Pin::new(&mut ticket).poll(&mut cx).is_pending());
        completer.complete(Ok(3));
        assert!(*flag.0.lock());
        assert!(matches!(Pin::new(&mut ticket).poll(&mut cx), Poll::Ready(Ok(3))));
    }
}
