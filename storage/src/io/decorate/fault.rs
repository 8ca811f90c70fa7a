//! An engine that fails, delays, reorders or corrupts what the engine inside does, as told.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::error::Errno;
use crate::io::{Completion, Done, EngineKind, IoEngine, Operation, Transfer};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// What happens to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It goes through untouched.
    Pass,
    /// It fails at once; the kernel never sees it.
    Fail(Errno),
    /// It is done, but its completion comes that much later.
    Delay(Duration),
    /// It is done, but its completion is held back until that many are held in all; then they come
    /// last first. What is still held comes when the engine is dropped.
    Hold(usize),
    /// It is not done before [`Faulty::release`] or the drop of the engine.
    Hang,
    /// A read in which this bit is flipped afterwards, counted from the start of the memory and cut
    /// to its length; a write goes through untouched.
    FlipBit(u64),
}

type Decide = Box<dyn Fn(u64, &Operation) -> Fault + Send + Sync>;

/// An engine whose operations meet the [`Fault`] that a function decides on.
pub struct Faulty {
    inner: Arc<dyn IoEngine>,
    decide: Decide,
    count: AtomicU64,
    held: Arc<Held>,
    hung: Mutex<Vec<Operation>>,
}

type Answer = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Held(Mutex<Vec<Answer>>);

impl Held {
    /// Keeps `answer`, or gives all out when there are `most` of them.
    fn keep(&self, answer: Answer, most: usize) {
        let mut held = self.0.lock();
        held.push(answer);
        let out = if held.len() >= most { std::mem::take(&mut *held) } else { Vec::new() };
        drop(held);
        out.into_iter().rev().for_each(|answer| answer());
    }

    fn release(&self) {
        let out = std::mem::take(&mut *self.0.lock());
        out.into_iter().rev().for_each(|answer| answer());
    }
}

impl Drop for Held {
    // The last holder may be an operation that outlives the decorator.
    fn drop(&mut self) {
        self.release();
    }
}

impl Faulty {
    /// Wraps `inner`. `decide` gets the operation and how many came before it.
    pub fn new(
        inner: Arc<dyn IoEngine>,
        decide: impl Fn(u64, &Operation) -> Fault + Send + Sync + 'static,
    ) -> Self {
        let decide: Decide = Box::new(decide);
        Faulty {
            inner,
            decide,
            count: AtomicU64::new(0),
            held: Arc::default(),
            hung: Mutex::default(),
        }
    }

    /// Gives out all completions that are held back, last first, and lets all operations that hang
    /// go through. Returns how many hung.
    pub fn release(&self) -> usize {
        let hung = std::mem::take(&mut *self.hung.lock());
        let count = hung.len();
        self.held.release();
        hung.into_iter().for_each(|operation| self.inner.submit(operation));
        count
    }

    /// Returns how many operations hang.
    pub fn hanging(&self) -> usize {
        self.hung.lock().len()
    }
}

/// Answers on a thread of its own: the engine's must go on with what is not delayed.
fn later(by: Duration, done: Done, completion: Completion) {
    thread::spawn(move || {
        thread::sleep(by);
        done(completion);
    });
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl IoEngine for Faulty {
    fn submit(&self, operation: Operation) {
        let fault = (self.decide)(self.count.fetch_add(1, Ordering::SeqCst), &operation);
        let Operation { file, offset, transfer, dsync, done } = operation;
        let done: Done = match fault {
            Fault::Pass => done,
            Fault::Hang => {
                let operation = Operation { file, offset, transfer, dsync, done };
                return self.hung.lock().push(operation);
            }
            Fault::Fail(errno) => {
                let (result, took) = (Err(errno), Duration::ZERO);
                let completion = Completion { result, bytes: 0, took, transfer };
                return later(Duration::ZERO, done, completion);
            }
            Fault::Delay(by) => Box::new(move |completion| later(by, done, completion)),
            Fault::Hold(most) => {
                let held = Arc::clone(&self.held);
                Box::new(move |completion| held.keep(Box::new(move || done(completion)), most))
            }
            Fault::FlipBit(bit) => Box::new(move |mut completion| {
                if let Transfer::Read(into) = &mut completion.transfer
                    && !into.is_empty()
                {
                    let bit = bit % (into.len() as u64 * 8);
                    into[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
                done(completion);
            }),
        };
        self.inner.submit(Operation { file, offset, transfer, dsync, done });
    }

    fn kind(&self) -> EngineKind {
        self.inner.kind()
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.release();
    }
}
