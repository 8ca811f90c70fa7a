//! Leaving the end of the arena when metadata takes its part of the budget, so that the system has the
//! memory back.

use std::time::Duration;

use crate::residency::Leaving;

use super::state::Mover;

/// A look at all frames costs as much as there are: what does not lie still is looked at again after
/// this time.
const PAUSE: Duration = Duration::from_millis(250);

impl Mover {
    /// Gives committed memory back that metadata takes the place of. Chunks that lie there are moved, or
    /// evicted where there is no room for them; what does not lie still keeps its place until later.
    pub(super) fn retreat(&mut self) {
        let arena = self.handle.shared.arena.clone();
        let Some(owed) = arena.owed() else {
            self.retreat_again = None;
            return;
        };
        let too_early = self.retreat_again.is_some_and(|at| self.now() < at);
        if self.gave_back() || too_early {
            return;
        }
        let frames = self.frames_at_rest();
        let first = frames.partition_point(|(range, _)| range.end <= owed.start);
        for (_, chunk) in &frames[first..] {
            match arena.try_alloc(chunk.bytes()) {
                Ok(Some(to)) => drop(self.move_to(chunk, to)),
                _ => drop(self.evict(chunk, Leaving::IfUnused)),
            }
        }
        self.retreat_again = (!self.gave_back()).then(|| self.now() + PAUSE);
    }

    fn gave_back(&self) -> bool {
        self.handle.shared.arena.give_back().unwrap_or_else(|error| {
            tracing::warn!("memory stays committed: {error}");
            false
        })
    }
}
