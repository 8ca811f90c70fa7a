//! The residency of one chunk as a pure state machine: events in, what to do out. It decides who
//! may hold the chunk, when it must be loaded, written, or dropped; it moves nothing itself.

use crate::id::Version;

/// What a lease wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// Shared, to read.
    Read,
    /// Exclusive, to write.
    Write,
}

/// The host copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Host {
    #[default]
    None,
    /// A frame is wanted or being filled.
    Filling,
    /// The newest version is in memory.
    Valid,
}

/// The write-back of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Drain {
    #[default]
    None,
    /// Decided; a lease may still take it back.
    Queued,
    /// The newest bytes are on their way to a path; nobody changes them meanwhile.
    Active,
}

/// The copy on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Stored {
    #[default]
    None,
    /// It is of a version before the newest.
    Older,
    /// It is of the newest version.
    Newest,
}

/// Whether the chunk is to leave memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Leaving {
    #[default]
    No,
    /// To make room; a new lease before the write-back starts keeps it.
    IfUnused,
    /// By a declared schedule: a lease to write waits until it has left and loads it again, so that
    /// what is read and written does not depend on timing.
    ForGood,
}

/// What an exclusive lease leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Left {
    /// The bytes that were there.
    Same,
    /// A new version.
    New,
    /// Bytes that are nobody's, since a copy into them failed: nobody must see them.
    Void,
}

/// The state of one chunk.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Residency {
    pub(crate) host: Host,
    pub(crate) readers: u32,
    pub(crate) writer: bool,
    pub(crate) drain: Drain,
    pub(crate) leaving: Leaving,
    /// The version of the newest contents; 0 was never written and reads as zeros.
    pub(crate) newest: Version,
    pub(crate) stored: Stored,
    pub(crate) deleted: bool,
    /// Writes that hang and still read the frame.
    pub(crate) pins: u8,
    /// Its contents can be made again: they are never written to a path, and are dropped when the
    /// chunk leaves memory.
    pub(crate) reproducible: bool,
}

/// The answer to a wish for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// It is granted. `rescued` says that a queued write-back was taken back.
    Granted { rescued: bool },
    /// It must wait for an event.
    Wait,
    /// It must wait, and the chunk must be loaded.
    Load,
    /// The object was deleted.
    Gone,
    /// A write that hangs reads the frame, and nothing under way ends that.
    Pinned,
    /// Its contents were dropped.
    Dropped,
}

/// The answer to a prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefetch {
    /// It must be loaded.
    Load,
    /// It is in memory or on its way. `rescued` says that a queued write-back was taken back.
    Needless { rescued: bool },
    /// It must leave first and can be loaded then.
    Leaving,
}

/// The answer to a wish that the chunk leave memory or be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evict {
    /// Its frame is free now.
    Dropped,
    /// It must be written first.
    WriteBack,
    /// A write-back is under way already.
    UnderWay,
    /// Leases hold it, or it is being filled.
    Held,
    /// It is not in memory, or (for a flush) not dirty.
    Nothing,
}

/// What follows from the end of a lease or of a write-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing but waking whoever waits.
    Stay,
    /// The chunk shall leave and is dirty: its write-back is queued.
    WriteBack,
    /// The frame is free.
    Drop,
}

impl Residency {
    /// Returns whether memory holds something that a path must have before it may leave.
    pub(crate) fn dirty(&self) -> bool {
        self.host == Host::Valid && !self.reproducible && self.only_in_memory()
    }

    /// Returns whether the contents were dropped: there were some, and they are nowhere.
    pub(crate) fn dropped(&self) -> bool {
        self.host == Host::None && self.only_in_memory()
    }

    fn only_in_memory(&self) -> bool {
        self.newest != Version(0) && self.stored != Stored::Newest
    }

    /// Returns whether a lease holds the chunk.
    pub(crate) fn leased(&self) -> bool {
        self.writer || self.readers > 0
    }

    /// Returns whether the frame lies still: nobody reads, writes, fills or drains it.
    pub(crate) fn at_rest(&self) -> bool {
        self.host == Host::Valid && !self.leased() && self.drain != Drain::Active && self.pins == 0
    }

    /// Returns whether the frame could leave now or after a write-back that is not yet decided, and
    /// its memory with it.
    pub(crate) fn may_leave(&self) -> bool {
        self.host == Host::Valid
            && !self.leased()
            && self.drain == Drain::None
            && self.leaving == Leaving::No
            && self.pins == 0
    }

    /// Returns whether the chunk is in memory, or on its way in, to stay.
    pub(crate) fn stays(&self) -> bool {
        self.host != Host::None && self.leaving == Leaving::No && !self.deleted
    }

    /// Returns whether a prefetch would have to load the chunk.
    pub(crate) fn wants_load(&self) -> bool {
        self.host == Host::None && !self.deleted && !self.dropped()
    }

    /// Returns whether nothing will be read from or recorded as the copy on a path any more.
    pub(crate) fn disk_unused(&self) -> bool {
        self.deleted && self.drain != Drain::Active
    }

    /// The chunk's contents are on a path as this version, before anything of it was in memory.
    pub(crate) fn stored_already(&mut self, version: Version) {
        self.newest = version;
        self.stored = Stored::Newest;
    }

    /// The copy on a path shall be made anew: from now on memory alone has the contents, which must
    /// be valid and held by a lease. A write-back under way makes one already.
    pub(crate) fn rewrite(&mut self) {
        if self.host == Host::Valid && self.drain == Drain::None && self.newest != Version(0) {
            self.stored = Stored::Older;
        }
    }

    /// A lease is wanted; `queued` says that others wait already (they go first).
    pub(crate) fn lease(&mut self, mode: Mode, queued: bool) -> Lease {
        if self.deleted {
            return Lease::Gone;
        }
        match self.host {
            Host::None if self.dropped() => return Lease::Dropped,
            Host::None => {
                self.host = Host::Filling;
                return Lease::Load;
            }
            Host::Filling => return Lease::Wait,
            Host::Valid if queued || self.writer => return Lease::Wait,
            Host::Valid => {}
        }
        if mode == Mode::Write && self.pins > 0 {
            // Once it is written it leaves and is loaded afresh.
            let ends = self.drain != Drain::None || self.leaving != Leaving::No;
            return if ends { Lease::Wait } else { Lease::Pinned };
        }
        let rescued = self.leaving == Leaving::IfUnused && self.drain == Drain::Queued;
        let draining = self.drain != Drain::None && !rescued;
        let busy = self.readers > 0 || draining || self.leaving == Leaving::ForGood;
        if mode == Mode::Write && busy {
            return Lease::Wait;
        }
        if rescued {
            self.drain = Drain::None;
        }
        if self.leaving == Leaving::IfUnused {
            self.leaving = Leaving::No;
        }
        match mode {
            Mode::Read => self.readers += 1,
            Mode::Write => self.writer = true,
        }
        Lease::Granted { rescued }
    }

    /// A lease just granted could not be handed out after all.
    pub(crate) fn undo_lease(&mut self, mode: Mode) {
        match mode {
            Mode::Read => self.readers -= 1,
            Mode::Write => self.writer = false,
        }
    }

    /// A shared lease ended.
    pub(crate) fn unlease_read(&mut self) -> After {
        self.readers -= 1;
        self.after()
    }

    /// An exclusive lease ended.
    pub(crate) fn unlease_write(&mut self, left: Left) -> After {
        self.writer = false;
        match left {
            Left::Same => {}
            Left::New => self.change(),
            Left::Void if self.dirty() => self.deleted = true,
            // A path has them, or they are zeros: they come anew.
            Left::Void => self.leaving = self.leaving.max(Leaving::IfUnused),
        }
        self.after()
    }

    /// A prefetch wants the chunk.
    pub(crate) fn prefetch(&mut self) -> Prefetch {
        match self.host {
            _ if self.deleted || self.dropped() => Prefetch::Needless { rescued: false },
            Host::None => {
                self.host = Host::Filling;
                Prefetch::Load
            }
            Host::Valid if self.leaving == Leaving::IfUnused && self.drain == Drain::Queued => {
                self.leaving = Leaving::No;
                self.drain = Drain::None;
                Prefetch::Needless { rescued: true }
            }
            Host::Valid if self.leaving == Leaving::ForGood => Prefetch::Leaving,
            Host::Valid | Host::Filling => Prefetch::Needless { rescued: false },
        }
    }

    /// The frame was filled, or could not be.
    pub(crate) fn filled(&mut self, ok: bool) -> After {
        self.host = if ok { Host::Valid } else { Host::None };
        self.after()
    }

    /// New contents were put in a frame that was not filled from a path.
    pub(crate) fn put(&mut self) {
        self.host = Host::Valid;
        self.change();
    }

    /// The contents are new.
    fn change(&mut self) {
        self.newest.0 += 1;
        if self.stored == Stored::Newest {
            self.stored = Stored::Older;
        }
    }

    /// The chunk shall leave memory.
    pub(crate) fn evict(&mut self, leaving: Leaving) -> Evict {
        match self.host {
            _ if self.deleted => return Evict::Nothing,
            Host::None => return Evict::Nothing,
            Host::Filling => return Evict::Held,
            Host::Valid if self.leased() && leaving == Leaving::IfUnused => return Evict::Held,
            Host::Valid => {}
        }
        self.leaving = self.leaving.max(leaving);
        let under_way = self.drain != Drain::None;
        match self.after() {
            After::Drop => Evict::Dropped,
            After::WriteBack => Evict::WriteBack,
            After::Stay if under_way => Evict::UnderWay,
            After::Stay => Evict::Held,
        }
    }

    /// The newest version shall be on a path; the chunk may stay in memory.
    pub(crate) fn flush(&mut self) -> Evict {
        match self.drain {
            _ if self.deleted => Evict::Nothing,
            Drain::Queued | Drain::Active => {
                // From now on a lease must not take this write-back back.
                if self.leaving == Leaving::IfUnused {
                    self.leaving = Leaving::No;
                }
                Evict::UnderWay
            }
            Drain::None if self.writer => Evict::Held,
            Drain::None if self.dirty() => {
                self.drain = Drain::Queued;
                Evict::WriteBack
            }
            Drain::None => Evict::Nothing,
        }
    }

    /// A queued write-back comes to its turn; returns whether it is still wanted.
    pub(crate) fn start_drain(&mut self) -> bool {
        let wanted = self.drain == Drain::Queued && !self.deleted;
        if wanted {
            self.drain = Drain::Active;
        }
        wanted
    }

    /// A write-back ended. After a failure the chunk stays in memory, still dirty.
    pub(crate) fn drained(&mut self, ok: bool) -> After {
        if self.drain == Drain::Active {
            self.drain = Drain::None;
            if ok {
                self.stored = Stored::Newest;
                if self.pins > 0 {
                    self.leaving = Leaving::ForGood;
                }
            } else {
                self.leaving = Leaving::No;
            }
        }
        self.after()
    }

    /// The write under way hangs. It goes on reading the frame while another is tried.
    pub(crate) fn pin(&mut self) {
        self.pins = self.pins.saturating_add(1);
    }

    /// A write that hung ended after all.
    pub(crate) fn unpin(&mut self) {
        self.pins = self.pins.saturating_sub(1);
    }

    /// The object was deleted or replaced: leases keep their bytes, nobody gets new ones.
    pub(crate) fn delete(&mut self) -> After {
        self.deleted = true;
        if self.drain == Drain::Queued {
            self.drain = Drain::None;
        }
        self.after()
    }

    fn after(&mut self) -> After {
        let wanted_out = self.deleted || self.leaving != Leaving::No;
        if !wanted_out || self.host != Host::Valid || self.drain != Drain::None || self.writer {
            return After::Stay;
        }
        if self.dirty() && !self.deleted {
            self.drain = Drain::Queued;
            return After::WriteBack;
        }
        if self.readers > 0 {
            return After::Stay;
        }
        self.host = Host::None;
        self.leaving = Leaving::No;
        self.pins = 0;
        After::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Lease(Mode),
        Prefetch,
        UnleaseRead,
        UnleaseWrite(Left),
        Filled(bool),
        Evict(Leaving),
        Flush,
        StartDrain,
        Drained(bool),
        Delete,
        Pin,
        Unpin,
    }

    const EVENTS: [Event; 18] = [
        Event::Lease(Mode::Read),
        Event::Lease(Mode::Write),
        Event::Prefetch,
        Event::UnleaseRead,
        Event::UnleaseWrite(Left::New),
        Event::UnleaseWrite(Left::Same),
        Event::UnleaseWrite(Left::Void),
        Event::Filled(true),
        Event::Filled(false),
        Event::Evict(Leaving::IfUnused),
        Event::Evict(Leaving::ForGood),
        Event::Flush,
        Event::StartDrain,
        Event::Drained(true),
        Event::Drained(false),
        Event::Delete,
        Event::Pin,
        Event::Unpin,
    ];

    /// A chunk as it begins, of either kind.
    fn starts() -> Vec<Residency> {
        let kind = |reproducible| Residency { reproducible, ..Residency::default() };
        vec![kind(false), kind(true)]
    }

    /// Whether the world can produce the event in this state.
    fn possible(state: &Residency, event: Event) -> bool {
        match event {
            Event::Lease(Mode::Read) => state.readers < 2,
            Event::Lease(_) | Event::Prefetch | Event::Evict(_) | Event::Flush => true,
            Event::UnleaseRead => state.readers > 0,
            Event::UnleaseWrite(_) => state.writer && state.newest < Version(3),
            Event::Filled(_) => state.host == Host::Filling,
            Event::StartDrain => true,
            Event::Drained(_) => state.drain == Drain::Active,
            Event::Delete => !state.deleted,
            Event::Pin => state.drain == Drain::Active && state.pins < 2,
            Event::Unpin => state.pins > 0,
        }
    }

    /// Applies an event and checks what it says against what it did.
    fn apply(state: &Residency, event: Event) -> Residency {
        let (old, mut new) = (state.clone(), state.clone());
        let dropped = match event {
            Event::Lease(mode) => {
                match new.lease(mode, false) {
                    Lease::Granted { rescued } => {
                        assert_eq!(old.host, Host::Valid);
                        assert!(!old.writer && !old.deleted);
                        assert!(mode == Mode::Read || (old.readers, old.pins) == (0, 0));
                        assert!(mode == Mode::Read || old.drain != Drain::Active);
                        assert_eq!(rescued, old.drain == Drain::Queued && new.drain == Drain::None);
                    }
                    Lease::Load => assert_eq!((old.host, new.host), (Host::None, Host::Filling)),
                    Lease::Wait => assert_eq!(old, new),
                    Lease::Pinned => assert!(old == new && old.pins > 0 && mode == Mode::Write),
                    Lease::Gone => assert!(old.deleted),
                    Lease::Dropped => assert!(old.reproducible && old.dropped() && old == new),
                }
                false
            }
            Event::Prefetch => {
                let load = new.prefetch() == Prefetch::Load;
                assert_eq!(load, old.wants_load());
                false
            }
            Event::UnleaseRead => new.unlease_read() == After::Drop,
            Event::UnleaseWrite(left) => {
                let dropped = new.unlease_write(left) == After::Drop;
                assert!(dropped || left != Left::Void, "somebody may see them: {old:?}");
                dropped
            }
            Event::Filled(ok) => new.filled(ok) == After::Drop,
            Event::Evict(leaving) => new.evict(leaving) == Evict::Dropped,
            Event::Flush => {
                let answer = new.flush();
                assert!(answer != Evict::Nothing || !old.dirty() || old.deleted);
                assert!(!old.reproducible || !matches!(answer, Evict::WriteBack | Evict::UnderWay));
                false
            }
            Event::StartDrain => {
                assert_eq!(new.start_drain(), old.drain == Drain::Queued);
                false
            }
            Event::Drained(ok) => new.drained(ok) == After::Drop,
            Event::Delete => new.delete() == After::Drop,
            Event::Pin => {
                new.pin();
                false
            }
            Event::Unpin => {
                new.unpin();
                false
            }
        };
        let left = old.host == Host::Valid && new.host == Host::None;
        let filled_and_gone = matches!(event, Event::Filled(true)) && new.host == Host::None;
        assert_eq!(dropped, left || filled_and_gone, "{old:?} {event:?}");
        new
    }

    fn check(state: &Residency, event: Event, old: &Residency) {
        assert!(!(state.writer && state.readers > 0), "{old:?} {event:?}");
        assert!(!(state.writer && state.drain != Drain::None), "{old:?} {event:?}");
        assert!(!state.leased() || state.host == Host::Valid, "{old:?} {event:?}");
        // What a write that hangs reads is neither changed nor taken for another frame.
        assert!(
            state.pins == 0 || (state.host == Host::Valid && !state.writer),
            "{old:?} {event:?}"
        );
        // Nothing newest is ever lost: only a deleted, a stored, a never written or a reproducible
        // chunk leaves.
        assert!(!state.dropped() || state.deleted || state.reproducible, "{old:?} {event:?}");
        // What is reproducible costs no I/O, and what was dropped never comes back as something else.
        if state.reproducible {
            assert_eq!(
                (state.drain, state.stored),
                (Drain::None, Stored::None),
                "{old:?} {event:?}"
            );
            assert!(!old.dropped() || state.dropped(), "{old:?} {event:?}");
        }
        if state.drain == Drain::Active {
            assert_eq!(state.newest, old.newest, "what drains does not change: {old:?} {event:?}");
        }
    }

    #[test]
    fn every_reachable_state_keeps_the_invariants() {
        let mut seen: HashSet<Residency> = HashSet::new();
        let mut open = starts();
        while let Some(state) = open.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            for event in EVENTS {
                if possible(&state, event) {
                    let next = apply(&state, event);
                    check(&next, event, &state);
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
    }

    #[test]
    fn whatever_happens_a_quiet_end_leaves_every_chunk_reachable() {
        // From every reachable state: finish what is under way, end the leases; then a write lease
        // must be granted at once or after one load, unless the object is deleted.
        let mut seen: HashSet<Residency> = HashSet::new();
        let mut open = starts();
        while let Some(state) = open.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            let mut quiet = state.clone();
            while quiet.readers > 0 {
                quiet.unlease_read();
            }
            if quiet.writer {
                quiet.unlease_write(Left::New);
            }
            if quiet.host == Host::Filling {
                quiet.filled(true);
            }
            quiet.start_drain();
            if quiet.drain == Drain::Active {
                quiet.drained(true);
            }
            let granted = match quiet.lease(Mode::Write, false) {
                Lease::Load => {
                    quiet.filled(true);
                    quiet.lease(Mode::Write, false)
                }
                Lease::Pinned => {
                    // No path took it: only the end of the write that hangs helps.
                    (0..quiet.pins).for_each(|_| quiet.unpin());
                    quiet.lease(Mode::Write, false)
                }
                other => other,
            };
            // A chunk told to leave for good while dirty and leased is written by a later flush.
            let owed = quiet.leaving == Leaving::ForGood && quiet.dirty();
            assert!(
                matches!(granted, Lease::Granted { .. } | Lease::Gone)
                    || owed
                    || (granted == Lease::Dropped && quiet.reproducible),
                "{state:?} {quiet:?}"
            );
            let events = EVENTS.into_iter().filter(|event| possible(&state, *event));
            open.extend(events.map(|event| apply(&state, event)));
        }
    }

    #[test]
    fn a_chunk_whose_write_hangs_leaves_once_it_is_written_elsewhere() {
        let mut chunk = Residency::default();
        chunk.put();
        chunk.flush();
        assert!(chunk.start_drain());
        chunk.pin();
        assert_eq!(chunk.lease(Mode::Write, false), Lease::Wait);
        assert_eq!(chunk.lease(Mode::Read, false), Lease::Granted { rescued: false });
        assert_eq!(chunk.drained(true), After::Stay);
        assert_eq!(chunk.lease(Mode::Write, false), Lease::Wait);
        assert_eq!(chunk.unlease_read(), After::Drop);
        assert_eq!(chunk.lease(Mode::Write, false), Lease::Load);
        chunk.filled(true);
        assert_eq!(chunk.lease(Mode::Write, false), Lease::Granted { rescued: false });
    }

    #[test]
    fn a_chunk_whose_write_hangs_and_that_no_path_takes_is_read_only_until_it_ends() {
        let mut chunk = Residency::default();
        chunk.put();
        chunk.flush();
        assert!(chunk.start_drain());
        chunk.pin();
        assert_eq!(chunk.drained(false), After::Stay);
        assert_eq!(chunk.lease(Mode::Write, false), Lease::Pinned);
        assert_eq!(chunk.lease(Mode::Read, false), Lease::Granted { rescued: false });
        assert!(!chunk.at_rest() && chunk.dirty());
        chunk.unlease_read();
        assert!(!chunk.may_leave(), "its memory would not come back");
        chunk.unpin();
        assert_eq!(chunk.lease(Mode::Write, false), Lease::Granted { rescued: false });
    }
}
