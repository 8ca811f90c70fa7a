//! Leaving the end of the arena when metadata takes its part of the budget, so that the system has the
//! memory back.

use std::ops::Range;
use std::time::Duration;

use crate::residency::Leaving;

use super::room::Need;
use super::state::Mover;

/// A look at all frames costs as much as there are: what could not leave is looked at again after this
/// time.
const PAUSE: Duration = Duration::from_millis(250);

impl Mover {
    /// Gives committed memory back that metadata takes the place of. Chunks that lie there are moved, or
    /// evicted where there is no room for them; what does not lie still keeps its place until later.
    pub(super) fn retreat(&mut self) {
        let Some(owed) = self.give_back() else {
            self.retreat_again = None;
            return;
        };
        if self.retreat_again.is_none_or(|at| self.now() >= at) {
            self.leave(owed.start);
            self.retreat_again = self.give_back().map(|_| self.now() + PAUSE);
        }
    }

    /// Gives back what no frame covers; returns what else is owed. Once the system refused, nothing is.
    fn give_back(&mut self) -> Option<Range<u64>> {
        if self.retreat_refused {
            return None;
        }
        self.handle.shared.arena.give_back().unwrap_or_else(|error| {
            tracing::warn!("memory that metadata takes the place of stays committed: {error}");
            self.retreat_refused = true;
            None
        })
    }

    /// Moves or evicts what lies behind `start`, which new frames do not.
    fn leave(&mut self, start: u64) {
        let arena = self.handle.shared.arena.clone();
        // What comes free here is looked at right after this.
        arena.set_starving(false);
        let now = self.handle.stamp();
        for (_, chunk) in self.frames_at_rest(start) {
            match arena.try_alloc(chunk.bytes()) {
                Ok(Some(to)) => drop(self.move_to(&chunk, to)),
                // One that is being flushed leaves no sooner for being evicted, and one that no path
                // takes does not leave.
                _ if self.rank_at(&chunk, Need::Demand, now).is_some() => {
                    self.evict(&chunk, Leaving::IfUnused);
                }
                _ => {}
            }
        }
    }
}
