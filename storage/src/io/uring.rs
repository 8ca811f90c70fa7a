//! The io_uring engine: one ring and one thread, which sleeps in the kernel whenever it can.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use super::engine::{EngineKind, IoEngine, Operation, Transfer};
use super::progress::{KernelHook, Step};
use super::task::Task;
use crate::error::{Errno, Error, Result};
use crate::sync::Mutex;
use crate::sync::slice;
use crate::sync::thread::{self, JoinHandle};

/// Entries of the submission queue.
const ENTRIES: u32 = 128;

/// Most operations in the kernel at one time: each has at most one queue entry, and one entry is
/// left for the wake-up, so that the queue is never full.
const DEPTH: usize = ENTRIES as usize - 1;

/// The `user_data` of the wake-up; others carry their slot.
const WAKE: u64 = u64::MAX;

/// An io_uring ring and the thread that owns it.
#[derive(Debug)]
pub struct Uring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    /// Readable when the sleeping thread is to look at its inbox.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Inbox {
    tasks: VecDeque<Task>,
    /// The thread is in, or about to enter, the kernel: whoever adds a task must wake it.
    asleep: bool,
    closing: bool,
}

impl Uring {
    /// Sets a ring up and starts its thread.
    ///
    /// # Errors
    /// [`Error::System`] when the system refuses a ring; the remedy says why that may be.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// As [`Uring::start`]; each kernel call goes through `hook` first.
    ///
    /// # Errors
    /// As [`Uring::start`].
    #[cfg(any(test, feature = "testing"))]
    pub fn start_hooked(hook: KernelHook) -> Result<Self> {
        Self::start_with(Some(hook))
    }

    fn start_with(hook: Option<KernelHook>) -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| refusal("eventfd", e.into()))?;
        let shared = Arc::new(Shared { inbox: Mutex::default(), wake });
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(String::from("tensortier-uring"))
            .spawn(move || match set_up() {
                // The ring belongs to the thread that makes it: no other may submit.
                Ok(ring) => {
                    let _ = tell.send(Ok(()));
                    Worker::new(ring, theirs, hook).run();
                }
                Err(refused) => {
                    let _ = tell.send(Err(refused));
                }
            })
            .map_err(|error| Error::System {
                attempted: String::from("start an I/O thread"),
                source: error.into(),
                remedy: String::from("raise the limit of threads (ulimit -u, pids.max)"),
            })?;
        match told.recv() {
            Ok(Ok(())) => Ok(Uring { shared, thread: Some(thread) }),
            Ok(Err((attempted, errno))) => Err(refusal(attempted, errno)),
            Err(_) => Err(refusal("io_uring_setup", Errno(libc::EIO))),
        }
    }
}

/// Makes the ring, giving up the newer flags one after the other where the kernel is older.
fn set_up() -> std::result::Result<IoUring, (&'static str, Errno)> {
    let mut last = Errno(libc::EINVAL);
    for (single, defer, coop) in
        [(true, true, false), (true, false, true), (false, false, true), (false, false, false)]
    {
        let mut builder = IoUring::builder();
        builder.dontfork();
        if single {
            builder.setup_single_issuer();
        }
        if defer {
            builder.setup_defer_taskrun();
        }
        if coop {
            builder.setup_coop_taskrun();
        }
        match builder.build(ENTRIES) {
            Ok(mut ring) => {
                let tried = try_out(&mut ring);
                return tried.map(|()| ring).map_err(|errno| ("io_uring_enter", errno));
            }
            Err(error) => last = error.into(),
        }
        if last.0 != libc::EINVAL {
            break;
        }
    }
    Err(("io_uring_setup", last))
}

/// Passes an empty operation through the ring: one that is set up may still be forbidden to enter the
/// kernel, and whoever relied on it would wait for ever.
fn try_out(ring: &mut IoUring) -> std::result::Result<(), Errno> {
    let entry = opcode::Nop::new().build();
    // SAFETY: an empty operation has neither memory nor a file.
    let pushed = unsafe { ring.submission().push(&entry) };
    debug_assert!(pushed.is_ok());
    while let Err(error) = ring.submit_and_wait(1) {
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error.into());
        }
    }
    ring.completion().for_each(drop);
    Ok(())
}

/// Says to people why there is no ring.
fn refusal(attempted: &str, source: Errno) -> Error {
    let remedy = match source.0 {
        libc::EPERM | libc::EACCES => "blocked by a seccomp filter or io_uring_disabled",
        libc::ENOSYS => "the kernel has no io_uring, or a seccomp filter hides it",
        libc::ENOMEM => "the locked-memory limit (ulimit -l) or memory is too small",
        libc::EMFILE | libc::ENFILE => "the limit of open files (ulimit -n) is reached",
        _ => "the kernel does not support what is needed of io_uring",
    };
    Error::System { attempted: attempted.to_owned(), source, remedy: remedy.to_owned() }
}

impl Shared {
    /// Makes the thread's armed read of the eventfd complete.
    fn wake(&self) {
        // Any number but 0 does. It fails only if the counter would overflow: then it is readable.
        let _ = rustix::io::write(&self.wake, &1u64.to_le_bytes());
    }
}

impl IoEngine for Uring {
    fn submit(&self, operation: Operation) {
        let task = Task::new(operation);
        let mut inbox = self.shared.inbox.lock();
        if inbox.closing {
            drop(inbox);
            task.complete(Err(Errno(libc::ECANCELED)));
            return;
        }
        inbox.tasks.push_back(task);
        let asleep = std::mem::replace(&mut inbox.asleep, false);
        drop(inbox);
        if asleep {
            self.shared.wake();
        }
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Uring
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shared.inbox.lock().closing = true;
        self.shared.wake();
        let own = thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != own) {
            // The thread cannot panic: what callbacks do is caught.
            let _ = thread.join();
        }
    }
}

/// What the kernel may read and write at any moment. It is never dropped while the kernel has it:
/// should the thread ever unwind, it is leaked, memory, files and all.
struct InKernel {
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    wake_into: Box<[u8; 8]>,
    wake_armed: bool,
}

/// The ring's thread.
struct Worker {
    ring: IoUring,
    shared: Arc<Shared>,
    hook: Option<KernelHook>,
    /// Accepted, but not in the kernel.
    waiting: VecDeque<Task>,
    kernel: ManuallyDrop<InKernel>,
}

impl Worker {
    fn new(ring: IoUring, shared: Arc<Shared>, hook: Option<KernelHook>) -> Self {
        let kernel = InKernel {
            tasks: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            wake_into: Box::new([0; 8]),
            wake_armed: false,
        };
        Worker { ring, shared, hook, waiting: VecDeque::new(), kernel: ManuallyDrop::new(kernel) }
    }

    fn run(mut self) {
        slice::shorten();
        let mut answers = Vec::with_capacity(DEPTH + 1);
        loop {
            let closing = self.collect();
            if closing {
                for task in self.waiting.drain(..) {
                    task.complete(Err(Errno(libc::ECANCELED)));
                }
            }
            self.fill();
            if closing && self.kernel.free.len() == DEPTH {
                break;
            }
            self.arm_wake();
            self.wait(&mut answers);
            self.shared.inbox.lock().asleep = false;
            for (user_data, result) in answers.drain(..) {
                self.take_answer(user_data, result);
            }
        }
        self.disarm_wake(&mut answers);
        drop(ManuallyDrop::into_inner(self.kernel));
    }

    /// Empties the inbox and goes to sleep in one step, so that no wake-up is missed; returns
    /// whether the engine is closing.
    fn collect(&mut self) -> bool {
        let mut inbox = self.shared.inbox.lock();
        self.waiting.append(&mut inbox.tasks);
        inbox.asleep = true;
        inbox.closing
    }

    /// Gives waiting tasks to the kernel as far as it has slots.
    fn fill(&mut self) {
        while !self.waiting.is_empty()
            && let Some(slot) = self.kernel.free.pop()
        {
            self.kernel.tasks[slot] = self.waiting.pop_front();
            self.advance(slot, None);
        }
    }

    fn take_answer(&mut self, user_data: u64, result: i32) {
        if user_data == WAKE {
            self.kernel.wake_armed = false;
            if result < 0 {
                // Never seen; without the pause a read that always fails would spin.
                thread::sleep(Duration::from_millis(1));
            }
            return;
        }
        let answer = u64::try_from(result).map_err(|_| Errno(-result));
        self.advance(user_data as usize, Some(answer));
    }

    /// Takes an answer for the task of `slot`, if there is one, and goes on with it until the kernel
    /// has it again or it is complete.
    fn advance(&mut self, slot: usize, mut answer: Option<std::result::Result<u64, Errno>>) {
        let Some(mut task) = self.kernel.tasks[slot].take() else {
            return;
        };
        let result = loop {
            match answer.take().map(|answer| task.answer(answer)) {
                Some(Step::Finished) => break Ok(()),
                Some(Step::Failed(errno)) => break Err(errno),
                // The kernel is short of something: the whole ring pauses with it.
                Some(Step::Again(Some(pause))) => thread::sleep(pause),
                Some(Step::Again(None)) | None => {}
            }
            if task.progress.wanted() == 0 {
                break Ok(());
            }
            match task.start_call(self.hook.as_ref()) {
                Ok(len) => return self.push_call(slot, task, len),
                Err(errno) => answer = Some(Err(errno)),
            }
        };
        self.kernel.free.push(slot);
        task.complete(result);
    }

    /// Queues the kernel call for the next `len` bytes of `task`, which stays in `slot` meanwhile.
    fn push_call(&mut self, slot: usize, mut task: Task, len: u64) {
        let moved = task.progress.moved();
        let operation = &mut task.operation;
        let (offset, fd) = (operation.offset + moved, types::Fd(operation.file.as_raw_fd()));
        // At most `CALL_BYTES`, which fits.
        let len = len as u32;
        let entry = match &mut operation.transfer {
            Transfer::Read(into) => {
                let into = into.as_mut_ptr().wrapping_add(moved as usize);
                opcode::Read::new(fd, into, len).offset(offset).build()
            }
            Transfer::Write(from) => {
                let from = from.as_ptr().wrapping_add(moved as usize);
                let flags = if operation.dsync { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, from, len).offset(offset).rw_flags(flags).build()
            }
        };
        self.kernel.tasks[slot] = Some(task);
        self.push(&entry.user_data(slot as u64));
    }

    fn arm_wake(&mut self) {
        if self.kernel.wake_armed {
            return;
        }
        let fd = types::Fd(self.shared.wake.as_raw_fd());
        let into = self.kernel.wake_into.as_mut_ptr();
        self.kernel.wake_armed = true;
        self.push(&opcode::Read::new(fd, into, 8).build().user_data(WAKE));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory and the file of every entry are held in `kernel` (a frame's range by
        // its slice: exclusive for reads, shared for writes; the eventfd by `shared`) until its
        // completion was taken, and `kernel` is leaked rather than dropped before.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // The queue has an entry for each slot and one for the wake-up.
        debug_assert!(pushed.is_ok());
    }

    /// Submits what is queued and waits for at least one answer.
    fn wait(&mut self, answers: &mut Vec<(u64, i32)>) {
        if let Err(error) = self.ring.submit_and_wait(1)
            && error.raw_os_error() != Some(libc::EINTR)
        {
            // Short of memory or of completion entries: the queue is kept and tried again.
            tracing::debug!(%error, "io_uring_enter");
            thread::sleep(Duration::from_millis(1));
        }
        answers.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }

    /// Ends the armed read of the eventfd, so that the kernel has nothing of ours any more.
    fn disarm_wake(&mut self, answers: &mut Vec<(u64, i32)>) {
        while self.kernel.wake_armed {
            self.shared.wake();
            self.wait(answers);
            for (user_data, result) in answers.drain(..) {
                self.take_answer(user_data, result);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_may_be_behind_it() {
        let text = refusal("io_uring_setup", Errno(libc::EPERM)).to_string();
        assert!(text.contains("io_uring_setup: Operation not permitted (os error 1)"), "{text}");
        assert!(text.contains("seccomp"), "{text}");
        assert!(refusal("io_uring_setup", Errno(libc::ENOSYS)).to_string().contains("no io_uring"));
    }

    #[test]
    fn an_idle_ring_ends_when_dropped() {
        let Ok(engine) = Uring::start() else {
            eprintln!("io_uring is not available here: skipped");
            return;
        };
        assert_eq!(engine.kind(), EngineKind::Uring);
        drop(engine);
    }
}
