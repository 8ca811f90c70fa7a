//! Turns for asynchronous calls: what they hold leases on at one time stays within a part of the
//! budget, first come first served, so that many of them in little memory wait and do not fail.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_channel::oneshot;
use parking_lot::Mutex;

/// What the calls of one store may hold at one time.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free_bytes: u64,
    waiting: VecDeque<(u64, oneshot::Sender<Turn>)>,
}

/// A call's part; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    bytes: u64,
}

impl Turns {
    /// Returns turns that hold at most `all_bytes` together, or one call alone.
    pub(crate) fn new(all_bytes: u64) -> Self {
        let state = Mutex::new(State { free_bytes: all_bytes, waiting: VecDeque::new() });
        Turns(Arc::new(Shared { all_bytes, state }))
    }

    /// Waits until a call that holds at most `bytes` may begin; who holds none begins at once.
    pub(crate) async fn take(&self, bytes: u64) -> Turn {
        let bytes = bytes.min(self.0.all_bytes);
        let asked = {
            let mut state = self.0.state.lock();
            let next = state.waiting.is_empty() || bytes == 0;
            if next && state.free_bytes >= bytes {
                state.free_bytes -= bytes;
                return Turn { turns: self.clone(), bytes };
            }
            let (give, asked) = oneshot::channel();
            state.waiting.push_back((bytes, give));
            asked
        };
        // The other end is dropped only together with the last turn, which this call waits for.
        asked.await.unwrap_or_else(|_| Turn { turns: self.clone(), bytes: 0 })
    }

    fn give_back(&self, bytes: u64) {
        let mut ready = Vec::new();
        let mut state = self.0.state.lock();
        state.free_bytes += bytes;
        while let Some((wanted, give)) = state.waiting.pop_front() {
            if give.is_canceled() {
                continue;
            }
            if wanted > state.free_bytes {
                state.waiting.push_front((wanted, give));
                break;
            }
            state.free_bytes -= wanted;
            ready.push((wanted, give));
        }
        drop(state);
        for (bytes, give) in ready {
            // Who was dropped meanwhile gives it back at once.
            drop(give.send(Turn { turns: self.clone(), bytes }));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.give_back(self.bytes);
    }
}
