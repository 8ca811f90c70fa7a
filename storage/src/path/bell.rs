//! Tells whoever watches a path of its events, in their order and without a lock.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::store::{PathEvent, Tell};
use crate::sync::Mutex;

/// Who is to be told, and of what he was not told yet.
#[derive(Default)]
pub(super) struct Bell(Mutex<State>);

#[derive(Default)]
struct State {
    watchers: Vec<Arc<Tell>>,
    events: VecDeque<PathEvent>,
    /// A thread is telling; it tells of what is added meanwhile too.
    telling: bool,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("events", &self.0.lock().events).finish_non_exhaustive()
    }
}

impl Bell {
    /// Adds somebody to be told of all later events.
    pub(super) fn watch(&self, tell: Tell) {
        self.0.lock().watchers.push(Arc::new(tell));
    }

    /// Takes note of an event, under the lock that orders events; [`Bell::ring`] tells.
    pub(super) fn note(&self, event: PathEvent) {
        self.0.lock().events.push_back(event);
    }

    /// Tells of all that was noted, unless another thread does.
    pub(super) fn ring(&self) {
        loop {
            let (event, watchers) = {
                let mut state = self.0.lock();
                let others = std::mem::replace(&mut state.telling, true);
                if others {
                    return;
                }
                let Some(event) = state.events.pop_front() else {
                    state.telling = false;
                    return;
                };
                (event, state.watchers.clone())
            };
            for tell in watchers {
                if catch_unwind(AssertUnwindSafe(|| tell(event))).is_err() {
                    tracing::error!("who watches a path panicked; the path goes on");
                }
            }
            self.0.lock().telling = false;
        }
    }
}
