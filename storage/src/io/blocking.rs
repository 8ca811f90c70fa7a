//! The engine that works everywhere: worker threads that block in `pread` and `pwritev2`.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::ReadWriteFlags;

use super::engine::{EngineKind, IoEngine, Operation, Transfer};
use super::progress::{KernelHook, Step};
use super::task::Task;
use crate::error::{Errno, Error, Result};
use crate::sync::slice;
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Condvar, Mutex};

/// Blocking reads and writes on a fixed number of threads; one operation per thread at a time.
#[derive(Debug)]
pub struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    hook: Option<KernelHook>,
}

#[derive(Debug, Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closing: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Threads {
    /// Starts `workers` threads, at least one.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no more threads.
    pub fn start(workers: usize) -> Result<Self> {
        Self::start_with(workers, None)
    }

    /// As [`Threads::start`]; each kernel call goes through `hook` first.
    ///
    /// # Errors
    /// As [`Threads::start`].
    #[cfg(any(test, feature = "testing"))]
    pub fn start_hooked(workers: usize, hook: KernelHook) -> Result<Self> {
        Self::start_with(workers, Some(hook))
    }

    fn start_with(workers: usize, hook: Option<KernelHook>) -> Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new(), hook });
        // Built up inside the engine, so that a failure half way ends those already started.
        let mut engine = Threads { shared, workers: Vec::new() };
        for index in 0..workers.max(1) {
            let shared = Arc::clone(&engine.shared);
            let worker = thread::Builder::new()
                .name(format!("tensortier-io-{index}"))
                .spawn(move || shared.work())
                .map_err(|error| Error::System {
                    attempted: String::from("start an I/O thread"),
                    source: error.into(),
                    remedy: String::from("raise the limit of threads (ulimit -u, pids.max)"),
                })?;
            engine.workers.push(worker);
        }
        Ok(engine)
    }
}

impl Shared {
    fn work(&self) {
        slice::shorten();
        while let Some(task) = self.take() {
            let (task, result) = self.run(task);
            task.complete(result);
        }
    }

    fn take(&self) -> Option<Task> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closing {
                return None;
            }
            if let Some(task) = queue.tasks.pop_front() {
                return Some(task);
            }
            self.work.wait(&mut queue);
        }
    }

    fn run(&self, mut task: Task) -> (Task, Result<(), Errno>) {
        while task.progress.wanted() > 0 {
            let answer = task.start_call(self.hook.as_ref()).and_then(|len| call(&mut task, len));
            match task.answer(answer) {
                Step::Finished => break,
                Step::Again(None) => {}
                Step::Again(Some(pause)) => thread::sleep(pause),
                Step::Failed(errno) => return (task, Err(errno)),
            }
        }
        (task, Ok(()))
    }
}

/// Asks the kernel to move `len` bytes from where the task stands.
fn call(task: &mut Task, len: u64) -> Result<u64, Errno> {
    let moved = task.progress.moved();
    let range = moved as usize..(moved + len) as usize;
    let operation = &mut task.operation;
    let (file, at) = (&operation.file, operation.offset + moved);
    let count = match &mut operation.transfer {
        Transfer::Read(into) => rustix::io::pread(file, &mut into[range], at)?,
        Transfer::Write(from) if operation.dsync => write_through(file, &from[range], at)?,
        Transfer::Write(from) => rustix::io::pwrite(file, &from[range], at)?,
    };
    Ok(count as u64)
}

/// Writes and waits until the device has it, also where the kernel cannot do both in one call.
fn write_through(file: &std::fs::File, from: &[u8], at: u64) -> rustix::io::Result<usize> {
    match rustix::io::pwritev2(file, &[IoSlice::new(from)], at, ReadWriteFlags::DSYNC) {
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            let count = rustix::io::pwrite(file, from, at)?;
            rustix::fs::fdatasync(file)?;
            Ok(count)
        }
        other => other,
    }
}

impl IoEngine for Threads {
    fn submit(&self, operation: Operation) {
        let task = Task::new(operation);
        let mut queue = self.shared.queue.lock();
        if queue.closing {
            drop(queue);
            task.complete(Err(Errno(libc::ECANCELED)));
            return;
        }
        queue.tasks.push_back(task);
        drop(queue);
        self.shared.work.notify_one();
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Threads
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let waiting = {
            let mut queue = self.shared.queue.lock();
            queue.closing = true;
            std::mem::take(&mut queue.tasks)
        };
        self.shared.work.notify_all();
        for task in waiting {
            task.complete(Err(Errno(libc::ECANCELED)));
        }
        let own: ThreadId = thread::current().id();
        for worker in self.workers.drain(..).filter(|worker| worker.thread().id() != own) {
            // A worker cannot panic: what callbacks do is caught.
            let _ = worker.join();
        }
    }
}
