//! Leaving the end of the arena when metadata takes its part of the budget, so that the system has the
//! memory back.

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
        if self.retreat_refused {
            return;
        }
        let now = self.now();
        let early = self.retreat_again.is_some_and(|at| now < at);
        if self.give_back() && !early {
            self.leave_what_is_owed();
            self.retreat_again = self.give_back().then(|| self.now() + PAUSE);
        }
    }

    /// Gives back what no frame covers. Returns whether more is owed.
    fn give_back(&mut self) -> bool {
        let arena = &self.handle.shared.arena;
        if arena.owed().is_none() {
            self.retreat_again = None;
            return false;
        }
        if let Err(error) = arena.give_back() {
            tracing::warn!("memory that metadata takes the place of stays committed: {error}");
            self.retreat_refused = true;
            self.retreat_again = None;
            return false;
        }
        arena.owed().is_some()
    }

    fn leave_what_is_owed(&mut self) {
        let arena = self.handle.shared.arena.clone();
        let Some(owed) = arena.owed() else { return };
        // What comes free here is looked at right after this.
        arena.set_starving(false);
        let now = self.handle.stamp();
        for (_, chunk) in self.frames_at_rest(owed.start) {
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
