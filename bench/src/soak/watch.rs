//! A thread beside a round: gives out answers that are held back, and finds operations that hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::worker::Common;

/// Longer than any operation may take, waits inside it and slow machines included.
const HANG: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(1);

/// Watches while it lives.
#[derive(Debug)]
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Begins to watch. When an operation hangs `hung` is called with what is known of it; it may end
    /// the process, as nothing else can end such a thread.
    pub(super) fn start(common: &Arc<Common>, hung: impl Fn(String) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        // The store itself must not be held here: its last owner closes it.
        let (ends, places) = (Arc::clone(&over), Arc::clone(&common.places));
        let common = Arc::downgrade(common);
        let thread = thread::spawn(move || {
            let mut seen: Vec<(u64, Instant)> = Vec::new();
            while !ends.load(Ordering::SeqCst) {
                thread::sleep(TICK);
                places.tick();
                let Some(common) = common.upgrade() else { continue };
                let now: Vec<u64> =
                    common.progress.iter().map(|p| p.load(Ordering::SeqCst)).collect();
                seen.resize(now.len(), (0, Instant::now()));
                for (thread, (seen, now)) in seen.iter_mut().zip(now).enumerate() {
                    if seen.0 != now {
                        *seen = (now, Instant::now());
                    } else if now != 0 && seen.1.elapsed() > HANG {
                        let (operation, verb) = ((now >> 8) - 1, now & 0xFF);
                        hung(format!(
                            "thread {thread} hangs in operation {operation} (verb {verb}); {:?}",
                            common.store.stats()
                        ));
                        seen.1 = Instant::now();
                    }
                }
            }
        });
        Watch { over, thread: Some(thread) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
