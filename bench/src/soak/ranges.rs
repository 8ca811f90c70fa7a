//! Verbs on byte ranges, blocking and not, and futures that are dropped half-way.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use tensortier_storage::dtype::DType;
use tensortier_storage::store::{BoxFuture, Returned};

use super::content::{Content, contents};
use super::held::Held;
use super::operation::Operation;
use super::worker::{Done, PATIENCE, Worker};

/// Wakes a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future to its end, or so often and then drops it.
pub(super) fn poll<T>(mut future: BoxFuture<T>, most: Option<u64>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut polls = 0;
    while most.is_none_or(|most| polls < most) {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut context) {
            return Some(output);
        }
        polls += 1;
        // An early wake-up does no harm; whoever waits for all of it is woken at the latest by then.
        if most.is_none_or(|most| polls < most) {
            std::thread::park_timeout(PATIENCE);
        }
    }
    None
}

impl Worker<'_> {
    /// Returns how often a future is polled: to its end, or fewer times. Alone, how far it gets by then
    /// would not repeat.
    fn polls(&self, operation: &Operation) -> Option<u64> {
        let alone = self.common.config.single;
        let half = operation.seed >> 20 & 3 == 0;
        half.then_some(if alone { 0 } else { operation.b % 6 })
    }

    /// Returns a range of an object that there is.
    fn range(&self, key: &str, operation: &Operation) -> Option<Range<u64>> {
        let len = self.expected(key)? as u64;
        let from = operation.a % (len + 1);
        Some(from..from + operation.b % (len - from + 1))
    }

    pub(super) fn get_range(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let Some(range) = self.range(&key, operation) else { return Ok(()) };
        let (at, mut into) = (range.start as usize, vec![0xA5; (range.end - range.start) as usize]);
        match self.common.store.get_range_into(&key, range, &mut into) {
            Ok(()) => self.verify(&key, at, &into),
            Err(error) => self.may_fail(&error),
        }
    }

    pub(super) fn put_async(&mut self, operation: &Operation) -> Done {
        let (key, len) = (self.own_key(operation.key), self.length(operation));
        let ((reproducible, store), bytes) =
            (self.making(operation), contents(operation.seed, len));
        match poll(store.put_async(&key, DType::U8, &[len], bytes), self.polls(operation)) {
            Some(Ok((_, bytes))) => {
                self.model.insert(key, Content::new(bytes, reproducible));
                Ok(())
            }
            Some(Err(Returned { error, buffer })) if buffer.len() as u64 == len => {
                self.may_fail(&error)
            }
            Some(Err(_)) => Err(format!("{key}: another buffer came back")),
            // The old object is there, or none.
            None => Ok(()),
        }
    }

    pub(super) fn get_async(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let into = vec![0xA5; self.expected(&key).unwrap_or(7)];
        let store = &self.common.store;
        let answer = if operation.a.is_multiple_of(3) {
            let all = 0..into.len() as u64;
            poll(store.get_range_into_async(&key, all, into), self.polls(operation))
        } else {
            poll(store.get_into_async(&key, into), self.polls(operation))
        };
        answer.map_or(Ok(()), |answer| self.got(&key, answer.map_err(|returned| returned.error)))
    }

    /// Writes a range, of which a part may be written when it fails or is given up.
    pub(super) fn write_range(&mut self, operation: &Operation) -> Done {
        let limit = self.exclusive_limit()?;
        let key = self.own_key(operation.key);
        if self.model.get(&key).is_some_and(|content| !content.is_certain()) {
            return self.get_into(&Operation { seed: 1, ..*operation });
        }
        let Some(range) = self.range(&key, operation) else { return Ok(()) };
        let bytes = contents(operation.seed, range.end - range.start);
        let store = &self.common.store;
        // What our own leases keep from coming is not waited for.
        let polls = if limit == PATIENCE { self.polls(operation) } else { Some(1) };
        let outcome = if operation.seed >> 24 & 1 == 0 && limit == PATIENCE {
            Some(store.write_range(&key, range.clone(), &bytes))
        } else {
            let writing = store.write_range_async(&key, range.clone(), bytes.clone());
            poll(writing, polls).map(|outcome| outcome.map(drop).map_err(|failed| failed.error))
        };
        let size = self.object(&key)?.stat().chunk_bytes;
        let content = self.model.get_mut(&key).ok_or("no model")?;
        if let Some(Ok(())) = outcome {
            content.write(range.start as usize, &bytes);
            return Ok(());
        }
        // Each chunk is written whole or not; one that was never polled wrote nothing.
        let mut at = if polls == Some(0) && outcome.is_none() { range.end } else { range.start };
        while at < range.end {
            let end = (at / size + 1).saturating_mul(size).min(range.end);
            let part = (at - range.start) as usize..(end - range.start) as usize;
            content.maybe_write(at as usize, &bytes[part]);
            at = end;
        }
        match outcome {
            Some(Err(error)) => self.may_fail(&error),
            _ => Ok(()),
        }
    }

    /// Leases a range, and keeps a view of a part.
    pub(super) fn hold_range(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let Some(mut range) = self.range(&key, operation) else { return Ok(()) };
        if self.common.config.single {
            // Two chunks at most: memory has room for them however what else is held lies.
            let size = self.object(&key)?.stat().chunk_bytes;
            range.end = range.end.min(range.start.saturating_add(size));
        }
        let (mut at, end) = (range.start as usize, range.end as usize);
        let lease = match self.common.store.lease_range_read(&key, range).wait_timeout(PATIENCE) {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return self.may_fail(&error),
            Err(_) => return Err(format!("{key}: leases on a range were never granted")),
        };
        let mut views = lease.into_views();
        for view in &views {
            self.verify(&key, at, view)?;
            at += view.len();
        }
        if at != end {
            return Err(format!("{key}: leases on a range end at {at}, not at {end}"));
        }
        let last = views.pop().filter(|_| operation.seed >> 24 & 1 == 0);
        let held = last.map(|view| Held::view(view, format!("a range of {key} up to {end}")));
        self.keep(&key, held);
        Ok(())
    }
}
