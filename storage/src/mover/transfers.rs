//! The transfers that paths have, by number: an answer says which it is of, so that a late one is
//! never taken for another. What hangs is kept apart with its memory and its extent.

use std::collections::HashMap;

use crate::arena::{FillGuard, FrameRef};
use crate::catalog::{ChunkRef, Piece};
use crate::id::{Class, PathId};
use crate::path::Extent;

use super::Sealed;

/// The number of a transfer; none is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TransferId(u64);

/// A transfer that a path has.
pub(super) enum Transfer {
    Read(Read),
    Write { sealed: Sealed, piece: Piece },
}

/// A chunk being read.
pub(super) struct Read {
    pub(super) chunk: ChunkRef,
    pub(super) path: PathId,
    pub(super) class: Class,
    /// How often it failed.
    pub(super) failed: u32,
}

/// A transfer that its path does not answer.
pub(super) enum Hung {
    Read {
        path: PathId,
        extent: Extent,
        _memory: FillGuard,
        bytes: u64,
    },
    Write {
        piece: Piece,
        /// What the path may still read.
        frame: FrameRef,
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
            Hung::Read { bytes, .. } => *bytes,
            Hung::Write { frame, .. } => frame.memory_bytes(),
        }
    }
}

/// All transfers of the mover.
#[derive(Default)]
pub(super) struct Transfers {
    last: u64,
    out: HashMap<TransferId, Transfer>,
    hung: HashMap<TransferId, Hung>,
    /// Space to be given back when no transfer that hangs reads it any more.
    owed: Vec<Piece>,
}

impl Transfers {
    /// Returns the number of a transfer that is about to be given to its path.
    pub(super) fn add(&mut self, transfer: Transfer) -> TransferId {
        self.last += 1;
        let id = TransferId(self.last);
        self.out.insert(id, transfer);
        id
    }

    /// Takes out a transfer that was answered, unless it hung before.
    pub(super) fn take(&mut self, id: TransferId) -> Option<Transfer> {
        self.out.remove(&id)
    }

    /// Takes out all that a path has, oldest first.
    pub(super) fn take_all(&mut self, path: PathId) -> Vec<(TransferId, Transfer)> {
        let on_it = |transfer: &Transfer| match transfer {
            Transfer::Read(read) => read.path == path,
            Transfer::Write { piece, .. } => piece.path() == path,
        };
        let mut taken: Vec<_> = self.out.extract_if(|_, transfer| on_it(transfer)).collect();
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
