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
    /// Bytes that are nobody's, since a copy into them failed or never began: nobody must see them.
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

    /// The frame that was to be filled goes as it is to an exclusive lease that overwrites all of it.
    /// Returns whether it may.
    pub(crate) fn lend(&mut self) -> bool {
        let stays = !self.deleted && self.leaving == Leaving::No;
        let may = self.host == Host::Filling && stays && !self.leased() && self.pins == 0;
        if may {
            self.host = Host::Valid;
            self.writer = true;
        }
        may
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
mod interleavings;
