//! A thread alone on its store: what comes of an operation does not depend on what happened to be in
//! memory or under way, so that it repeats however the store's own threads meet.

use tensortier_storage::path::memory::Mischief;

use super::check::eventually;
use super::content::contents;
use super::operation::{Operation, Verb};
use super::places::Place;
use super::worker::{PATIENCE, Worker};

impl Worker<'_> {
    /// Alone, some operations meet what goes wrong as a whole: all reads or all writes. They begin with
    /// nothing in memory, so that they all need the paths, and leave nothing there.
    ///
    /// # Errors
    /// What cannot leave memory.
    pub(super) fn trouble_alone(&mut self, operation: &Operation) -> Result<(), String> {
        let config = &self.common.config;
        if !config.single {
            return Ok(());
        }
        let happens = |on: bool, at: u64| u64::from(on && operation.seed >> 8 & 7 == at);
        // What a longer write gets done before it fails depends on what is in memory by then.
        let plain =
            matches!(operation.verb, Verb::Put | Verb::Change | Verb::GetInto | Verb::Evict);
        let mischief = Mischief {
            fail_read_every: happens(config.reads_fail, 0),
            flip_read_every: happens(config.bits_flip, 1),
            fail_write_every: happens(config.writes_fail && plain, 2),
            ..Mischief::default()
        };
        let troubled = mischief != Mischief::default();
        // What was read ahead while reads failed must not fail for the next operation.
        if std::mem::replace(&mut self.troubled, troubled) || troubled {
            self.empty_memory()?;
        }
        for (_, place) in self.common.places.active() {
            place.set_mischief(mischief);
        }
        Ok(())
    }

    /// Moves everything out of memory.
    fn empty_memory(&mut self) -> Result<(), String> {
        self.let_go()?;
        self.schedule.end();
        for (_, place) in self.common.places.active() {
            place.set_mischief(Mischief::default());
        }
        let store = &self.common.store;
        eventually(|| {
            let outcomes = store.evict_many(store.list("").iter().map(ToString::to_string));
            let failed = outcomes.into_iter().find_map(Result::err);
            let _ = store.barrier();
            let host = store.stats().host;
            (failed.is_some() || host.in_use > 0)
                .then(|| format!("evicting all: {failed:?}, {host:?}"))
        })
    }

    /// Drops what is held.
    ///
    /// # Errors
    /// What of it changed.
    pub(super) fn let_go(&mut self) -> Result<(), String> {
        self.held.drain(..).try_for_each(|held| held.check())
    }

    /// Alone, has all paths hang in the middle of a read or a write, and then answer.
    pub(super) fn hang_alone(&mut self, operation: &Operation) -> Result<(), String> {
        self.empty_memory()?;
        let store = self.common.store.clone();
        let answer = if operation.a.is_multiple_of(2) {
            let bytes = contents(operation.seed, 3000);
            self.put_bytes(&self.own_key(operation.key), bytes, false)?;
            self.stall_all();
            let asked = store.flush_async();
            self.expire_all(|| asked.is_ready())?;
            asked.wait_timeout(PATIENCE).map_err(drop)
        } else {
            let Some((object, index, _)) = self.chunk(&self.any_key(operation), operation.b)?
            else {
                return Ok(());
            };
            self.stall_all();
            let asked = store.lease_read(&object, index);
            self.expire_all(|| asked.is_ready())?;
            asked.wait_timeout(PATIENCE).map(|answer| answer.map(drop)).map_err(drop)
        };
        self.common.places.release();
        answer.map_err(|()| "a hang is not told of")?.or_else(|error| self.may_fail(&error))?;
        eventually(|| {
            let hung = self.common.places.all().iter().any(Place::is_hung);
            let (flushed, apart) = (store.flush(), store.stats().quarantined_bytes);
            let rests = !hung && apart == 0 && flushed.is_ok();
            (!rests).then(|| format!("after a hang: {apart} bytes hang, flush {flushed:?}"))
        })
    }

    fn stall_all(&self) {
        self.common.places.all().iter().for_each(Place::stall_for_good);
    }

    /// Lets the deadline of all paths pass once they have something to do, unless what was asked for
    /// needs no path.
    fn expire_all(&self, is_ready: impl Fn() -> bool) -> Result<(), String> {
        let places = self.common.places.all();
        eventually(|| {
            let begun = is_ready() || places.iter().any(Place::is_busy);
            (!begun).then(|| String::from("nothing is asked of the paths"))
        })?;
        places.iter().for_each(Place::expire);
        Ok(())
    }
}
