//! Driving a future on the caller's thread, which sleeps until it is woken.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{Condvar, Mutex, thread_local};

/// Where a thread sleeps. Not [`std::thread::park`]: that belongs to whoever wrote the thread.
#[derive(Default)]
struct Bed {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Wake for Bed {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }
}

impl Bed {
    fn sleep(&self) {
        let mut woken = self.woken.lock();
        while !*woken {
            self.wake.wait(&mut woken);
        }
        *woken = false;
    }
}

thread_local! {
    /// The thread's bed while nobody sleeps in it: a call made within another gets its own.
    static BED: Cell<Option<Arc<Bed>>> = const { Cell::new(None) };
}

/// Runs a future to its end. Any thread may; one on which the future depends would wait for itself.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    // What is ready at once costs no bed.
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    // A thread that is ending has no bed to lend any more.
    let bed = BED.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let waker = Waker::from(Arc::clone(&bed));
    let mut context = Context::from_waker(&waker);
    let output = loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => break output,
            Poll::Pending => bed.sleep(),
        }
    };
    let _ = BED.try_with(|free| free.set(Some(bed)));
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::ticket::ticket;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_thread_sleeps_until_its_answer_comes_and_sleeps_again() {
        for round in 0..50 {
            let (first, first_asked) = ticket();
            let (second, second_asked) = ticket();
            let answering = thread::spawn(move || {
                thread::sleep(Duration::from_micros(round * 20));
                first.complete(Ok(1));
                drop(second);
            });
            let asked = async {
                let first: u64 = first_asked.await?;
                second_asked.await.map(|second: u64| first + second)
            };
            assert!(matches!(block_on(asked), Err(Error::Closed)));
            answering.join().unwrap();
        }
    }

    #[test]
    fn a_call_within_another_takes_no_wake_up_from_it() {
        let (outer, outer_asked) = ticket::<u8>();
        let answering = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            outer.complete(Ok(1));
        });
        let inner = || {
            let (inner, asked) = ticket::<u8>();
            let answering = thread::spawn(move || inner.complete(Ok(2)));
            let answer = block_on(asked);
            answering.join().unwrap();
            answer
        };
        let (mut asked, mut polls) = (pin!(outer_asked), 0);
        let sum = std::future::poll_fn(|cx| {
            polls += 1;
            let polled = asked.as_mut().poll(cx);
            polled.map(|answer| answer.unwrap() + inner().unwrap())
        });
        assert_eq!(block_on(sum), 3);
        // The first without a bed, the second before it sleeps, and those it was woken for.
        answering.join().unwrap();
        assert!((1..=4).contains(&polls), "{polls}");
    }
}
