//! The transfers that paths have, by number: an answer says which it is of, so that a late one is
//! never taken for another. A chunk is moved in one part per path that holds some of it; it is done
//! when all its parts are. What hangs is kept apart with its memory and its extent.

use std::collections::{BTreeSet, HashMap};

use crate::arena::FrameRef;
use crate::catalog::{ChunkRef, Piece};
use crate::error::Errno;
use crate::id::{ChunkId, Class, PathId};
use crate::path::{Extent, TransferError};

use super::Sealed;

/// The number of a transfer; none is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TransferId(u64);

/// A part of a chunk that a path has.
pub(super) enum Part {
    Read { chunk: ChunkRef, path: PathId, extent: Extent },
    Write { chunk: ChunkRef, piece: Piece, index: usize },
}

impl Part {
    pub(super) fn path(&self) -> PathId {
        match self {
            Part::Read { path, .. } => *path,
            Part::Write { piece, .. } => piece.path(),
        }
    }

    fn chunk(&self) -> ChunkId {
        match self {
            Part::Read { chunk, .. } | Part::Write { chunk, .. } => chunk.id(),
        }
    }
}

/// A chunk being read.
pub(super) struct Load {
    pub(super) chunk: ChunkRef,
    pub(super) class: Class,
    /// How often it failed.
    pub(super) failed: u32,
    /// Parts not yet answered.
    pub(super) left: usize,
    pub(super) error: Option<(PathId, TransferError)>,
}

/// A chunk being written.
pub(super) struct Drain {
    pub(super) sealed: Sealed,
    /// Parts not yet answered.
    pub(super) left: usize,
    /// The parts that were written, by their order.
    pub(super) done: Vec<(usize, Piece)>,
    pub(super) errors: Vec<(PathId, Errno)>,
}

impl Drain {
    /// Returns whether paths and workers are done with it.
    fn is_done(&self) -> bool {
        self.left == 0 && !self.sealed.is_being_summed()
    }
}

/// A transfer that its path does not answer, or part of a chunk of which another path does not
/// answer one.
pub(super) enum Hung {
    Read {
        path: PathId,
        extent: Extent,
        /// What it keeps of the arena.
        bytes: u64,
    },
    Write {
        piece: Piece,
        /// What the path may still read.
        frame: FrameRef,
        /// What it keeps of the arena.
        bytes: u64,
        /// The chunk, if that is its own frame.
        pins: Option<ChunkRef>,
    },
}

impl Hung {
    pub(super) fn path(&self) -> PathId {
        match self {
            Hung::Read { path, .. } => *path,
            Hung::Write { piece, .. } => piece.path(),
        }
    }

    /// Returns how much memory it keeps, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Hung::Read { bytes, .. } | Hung::Write { bytes, .. } => *bytes,
        }
    }
}

/// An answer to a part.
pub(super) enum Answered<T> {
    /// It was the last of its chunk.
    Whole(T),
    /// Others are still out.
    Part,
    /// It hung before.
    Late,
}

/// All transfers of the mover.
#[derive(Default)]
pub(super) struct Transfers {
    last: u64,
    out: HashMap<TransferId, Part>,
    loads: HashMap<ChunkId, Load>,
    drains: HashMap<ChunkId, Drain>,
    hung: HashMap<TransferId, Hung>,
    /// Space to be given back when no transfer that hangs reads it any more.
    owed: Vec<Piece>,
}

impl Transfers {
    /// A chunk begins to be read; its parts follow.
    pub(super) fn begin_load(&mut self, load: Load) {
        self.loads.insert(load.chunk.id(), load);
    }

    /// A chunk begins to be written; its parts follow.
    pub(super) fn begin_drain(&mut self, drain: Drain) {
        self.drains.insert(drain.sealed.chunk.id(), drain);
    }

    /// Returns the number of a part that is about to be given to its path.
    pub(super) fn add(&mut self, part: Part) -> TransferId {
        self.last += 1;
        let id = TransferId(self.last);
        self.out.insert(id, part);
        id
    }

    /// A part was read, or not.
    pub(super) fn read(
        &mut self,
        id: TransferId,
        result: Result<(), TransferError>,
    ) -> Answered<Load> {
        let Some(Part::Read { chunk, path, .. }) = self.out.remove(&id) else {
            return Answered::Late;
        };
        let Some(load) = self.loads.get_mut(&chunk.id()) else { return Answered::Part };
        load.left -= 1;
        if let Err(error) = result {
            load.error.get_or_insert((path, error));
        }
        match load.left {
            0 => self.loads.remove(&chunk.id()).map_or(Answered::Part, Answered::Whole),
            _ => Answered::Part,
        }
    }

    /// A part was written, or not; space of one that was not is returned at once.
    pub(super) fn wrote(
        &mut self,
        id: TransferId,
        result: Result<(), Errno>,
    ) -> (Answered<Drain>, Option<Piece>) {
        let Some(Part::Write { chunk, piece, index }) = self.out.remove(&id) else {
            return (Answered::Late, None);
        };
        let Some(drain) = self.drains.get_mut(&chunk.id()) else {
            return (Answered::Part, Some(piece));
        };
        drain.left -= 1;
        let mut unused = None;
        match result {
            Ok(()) => drain.done.push((index, piece)),
            Err(errno) => {
                drain.errors.push((piece.path(), errno));
                unused = Some(piece);
            }
        }
        let whole = if drain.is_done() { self.drains.remove(&chunk.id()) } else { None };
        (whole.map_or(Answered::Part, Answered::Whole), unused)
    }

    /// The checksums of a chunk are known; returns it if that was all it waited for.
    pub(super) fn summed(&mut self, chunk: ChunkId) -> Option<Drain> {
        self.drains.get(&chunk).filter(|drain| drain.is_done())?;
        self.drains.remove(&chunk)
    }

    /// Takes out the chunks of which a path has parts to be read, each with all parts that any path
    /// has of it, in a fixed order.
    pub(super) fn take_loads(&mut self, path: PathId) -> Vec<(Load, Vec<(TransferId, Part)>)> {
        let chunks = self.chunks_on(path, |part| matches!(part, Part::Read { .. }));
        let take = |chunk| Some((self.loads.remove(&chunk)?, self.take_parts(chunk)));
        chunks.into_iter().filter_map(take).collect()
    }

    /// As [`Transfers::take_loads`], of chunks to be written.
    pub(super) fn take_drains(&mut self, path: PathId) -> Vec<(Drain, Vec<(TransferId, Part)>)> {
        let chunks = self.chunks_on(path, |part| matches!(part, Part::Write { .. }));
        let take = |chunk| Some((self.drains.remove(&chunk)?, self.take_parts(chunk)));
        chunks.into_iter().filter_map(take).collect()
    }

    fn chunks_on(&self, path: PathId, wanted: impl Fn(&Part) -> bool) -> BTreeSet<ChunkId> {
        let parts = self.out.values().filter(|part| part.path() == path && wanted(part));
        parts.map(Part::chunk).collect()
    }

    fn take_parts(&mut self, chunk: ChunkId) -> Vec<(TransferId, Part)> {
        let mut taken: Vec<_> = self.out.extract_if(|_, part| part.chunk() == chunk).collect();
        taken.sort_unstable_by_key(|(id, _)| *id);
        taken
    }

    /// Sets a transfer apart until it is answered.
    pub(super) fn set_apart(&mut self, id: TransferId, hung: Hung) {
        self.hung.insert(id, hung);
    }

    /// Takes out a transfer that hung and was answered, and the space that only it still read.
    pub(super) fn answered_late(&mut self, id: TransferId) -> Option<(Hung, Vec<Piece>)> {
        let late = self.hung.remove(&id)?;
        let (free, owed) = std::mem::take(&mut self.owed).into_iter().partition(|p| !self.reads(p));
        self.owed = owed;
        Some((late, free))
    }

    /// Takes space that is to be given back; returns it if no transfer that hangs reads it.
    pub(super) fn give_back(&mut self, piece: Piece) -> Option<Piece> {
        if self.reads(&piece) {
            self.owed.push(piece);
            return None;
        }
        Some(piece)
    }

    fn reads(&self, piece: &Piece) -> bool {
        self.hung.values().any(|hung| match hung {
            Hung::Read { path, extent, .. } => *path == piece.path() && *extent == piece.extent(),
            Hung::Write { .. } => false,
        })
    }

    /// Returns what hangs.
    pub(super) fn hung(&self) -> impl Iterator<Item = &Hung> {
        self.hung.values()
    }
}
