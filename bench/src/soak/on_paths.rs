//! Verbs on the paths, which one thread of a round does alone: paths that come, go, fill up, heal and
//! hang.

use std::time::Duration;

use tensortier_storage::error::Error;

use super::numbers::Numbers;
use super::operation::Operation;
use super::places::Place;
use super::worker::{Done, PATIENCE, Worker};

const MOST_PATHS: usize = 4;

/// How long a path hangs at most.
const LONGEST_HANG_MS: u64 = 120;

impl Worker<'_> {
    pub(super) fn add_path(&mut self, operation: &Operation) -> Done {
        let active = self.common.places.active().len();
        if self.id != 0 || !self.common.config.paths_move || active >= MOST_PATHS {
            return Ok(());
        }
        let config = self.common.config.draw_path(&mut Numbers::new(operation.seed));
        let failed = |error: Error| format!("adding a path: {error}");
        let place = Place::open(&self.common.base, &config).map_err(failed)?;
        place.trouble(true);
        let id = self.common.store.add_path_store(place.store.clone()).map_err(failed)?;
        self.common.places.add(id, place);
        Ok(())
    }

    pub(super) fn remove_path(&mut self, operation: &Operation) -> Done {
        let active = self.common.places.active();
        if self.id != 0 || !self.common.config.paths_move || active.len() < 2 {
            return Ok(());
        }
        let (id, place) = &active[(operation.a % active.len() as u64) as usize];
        match self.common.store.remove_path(*id, PATIENCE) {
            Ok(()) => {
                self.common.places.removed(*id);
                let used = place.store.counters().used_bytes;
                if used > 0 { Err(format!("{used} bytes stay on a removed path")) } else { Ok(()) }
            }
            Err(Error::Config { why, .. }) if why.contains("exclusive") => Ok(()),
            Err(error) => self.may_fail(&error),
        }
    }

    /// Takes the room of a path away, or gives it back.
    pub(super) fn room(&mut self, operation: &Operation) {
        let config = &self.common.config;
        if self.id == 0 && config.writes_fail && !self.common.config.single {
            let room = (operation.a.is_multiple_of(2)).then_some(config.budget / 4 + 1);
            for (_, place) in self.common.places.active() {
                place.set_room(room);
            }
        }
    }

    /// Ends what goes wrong on the paths for a while, or begins it again.
    pub(super) fn trouble(&mut self, operation: &Operation) {
        if self.id == 0 && !self.common.config.single {
            for (_, place) in self.common.places.active() {
                place.trouble(!operation.a.is_multiple_of(4));
            }
        }
    }

    /// Has a path stop answering for a while.
    pub(super) fn hang(&mut self, operation: &Operation) -> Done {
        let active = self.common.places.active();
        if self.id != 0 || !self.common.config.paths_hang {
            return Ok(());
        }
        if self.common.config.single {
            return self.hang_alone(operation);
        }
        let (_, place) = &active[(operation.a % active.len() as u64) as usize];
        place.stall(Duration::from_millis(operation.b % LONGEST_HANG_MS));
        Ok(())
    }
}
