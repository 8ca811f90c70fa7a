//! A ticket has one answer, whoever comes first: the one who gives it, waits for it, or gives up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex, any_of, check, thread};
use crate::ticket::{Completer, Ticket, ticket};

/// Counts those that live, without being a place where another thread goes on.
struct Token(Arc<AtomicU64>);

impl Token {
    fn new(living: &Arc<AtomicU64>) -> Self {
        living.fetch_add(1, Ordering::SeqCst);
        Token(Arc::clone(living))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock() = true;
        self.changed.notify_one();
    }
}

/// Polls with a waker of its own each time, as an executor may that moves tasks about.
fn polled(mut ticket: Ticket<Token>) -> Result<Token> {
    loop {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        if let Poll::Ready(answer) = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)) {
            return answer;
        }
        let mut rung = bell.rung.lock();
        // Another look without having been woken.
        if any_of(3) == 0 {
            continue;
        }
        while !*rung {
            bell.changed.wait(&mut rung);
        }
    }
}

fn waited_by_and_by(mut ticket: Ticket<Token>) -> Result<Token> {
    loop {
        match ticket.wait_timeout(Duration::ZERO) {
            Ok(answer) => return answer,
            Err(again) => ticket = again,
        }
    }
}

fn answer(completer: Completer<Token>, living: &Arc<AtomicU64>) {
    match any_of(3) {
        0 => drop(completer),
        1 => completer.complete(Err(Error::Closed)),
        _ => completer.complete(Ok(Token::new(living))),
    }
}

#[test]
fn who_waits_gets_the_answer_in_every_way() {
    check(1, || {
        let living = Arc::new(AtomicU64::new(0));
        let (completer, ticket) = ticket();
        let (abandoned, kept) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
        let (calls, captured) = (Arc::clone(&abandoned), Arc::clone(&kept));
        let theirs = Arc::clone(&living);
        let answering = thread::spawn(move || {
            let given = any_of(2) == 0;
            match given {
                true => completer.complete(Ok(Token::new(&theirs))),
                false => drop(completer),
            }
            given
        });
        ticket.on_abandon(move || {
            drop(captured);
            calls.fetch_add(1, Ordering::SeqCst);
        });
        let answer = match any_of(3) {
            0 => ticket.wait(),
            1 => waited_by_and_by(ticket),
            _ => polled(ticket),
        };
        let given = answering.join().unwrap();
        assert_eq!(answer.is_ok(), given);
        assert_eq!(living.load(Ordering::SeqCst), u64::from(given));
        drop(answer);
        assert_eq!(living.load(Ordering::SeqCst), 0);
        assert_eq!(abandoned.load(Ordering::SeqCst), 0, "it was waited for");
        assert_eq!(Arc::strong_count(&kept), 1, "what was to be called is gone");
    });
}

#[test]
fn an_abandoned_answer_is_dropped_and_told_of_once() {
    check(1, || {
        let living = Arc::new(AtomicU64::new(0));
        let (completer, ticket) = ticket();
        let (told, kept) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
        let (calls, captured) = (Arc::clone(&told), Arc::clone(&kept));
        let theirs = Arc::clone(&living);
        let answering = thread::spawn(move || {
            let abandoned = completer.is_abandoned();
            answer(completer, &theirs);
            abandoned
        });
        ticket.on_abandon(move || {
            drop(captured);
            calls.fetch_add(1, Ordering::SeqCst);
        });
        let ticket = match any_of(2) {
            0 => Ok(ticket),
            _ => ticket.wait_timeout(Duration::ZERO).map_or_else(Ok, Err),
        };
        let taken = ticket.is_err();
        drop(ticket);
        let seen = answering.join().unwrap();
        let told = told.load(Ordering::SeqCst);
        assert!(told <= 1 && !(taken && told == 1) && !(seen && told == 0), "told {told} times");
        assert_eq!(living.load(Ordering::SeqCst), 0, "the answer is dropped");
        assert_eq!(Arc::strong_count(&kept), 1, "what was to be called is gone");
    });
}
