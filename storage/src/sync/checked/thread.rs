//! Threads of the model checker, and what it does not have of them.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shuttle::thread as shuttle_thread;
pub(crate) use shuttle_thread::{Thread, ThreadId, current, sleep, yield_now};

/// As on a machine of two processors, whatever this one has.
pub(crate) fn available_parallelism() -> io::Result<NonZero<usize>> {
    Ok(NonZero::<usize>::MIN.saturating_add(1))
}

/// As `std::thread::Builder`.
pub(crate) struct Builder(shuttle_thread::Builder);

/// As `std::thread::JoinHandle`.
pub(crate) struct JoinHandle<T> {
    thread: shuttle_thread::JoinHandle<T>,
    finished: Arc<AtomicBool>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Builder(shuttle_thread::Builder::new())
    }

    pub(crate) fn name(self, name: String) -> Self {
        Builder(self.0.name(name))
    }

    pub(crate) fn spawn<T: Send + 'static>(
        self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let finished = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&finished);
        let thread = self.0.spawn(move || {
            let result = run();
            theirs.store(true, Ordering::SeqCst);
            result
        })?;
        Ok(JoinHandle { thread, finished })
    }
}

/// As `std::thread::spawn`.
pub(crate) fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(run).unwrap()
}

impl<T> JoinHandle<T> {
    pub(crate) fn join(self) -> std::thread::Result<T> {
        self.thread.join()
    }

    pub(crate) fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinHandle")
    }
}
