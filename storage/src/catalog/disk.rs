//! The copy of a chunk on the paths: which extents hold it, and in which form.

use std::num::NonZeroU32;

use crate::arena::GRANULE;
use crate::codec::Form;
use crate::id::PathId;
use crate::path::Extent;

/// An extent and its path, kept small because there is one per stored chunk. As with an extent,
/// there is one value per range.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a piece keeps its space until it is freed"]
pub(crate) struct Piece {
    place: u64,
    offset: u64,
    granules: NonZeroU32,
    path: PathId,
}

/// The pieces that hold a chunk's stored bytes one after the other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pieces {
    One(Piece),
    Striped(Box<[Piece]>),
}

/// The copy on the paths; whether it is of the newest version says `Residency::stored`.
#[derive(Debug)]
pub(crate) struct DiskCopy {
    pub(crate) pieces: Pieces,
    pub(crate) form: Form,
}

impl Piece {
    /// Takes an extent over. Its length is whole granules, at least one and fewer than 2^32.
    pub(crate) fn new(path: PathId, extent: Extent) -> Self {
        let granules = u32::try_from(extent.bytes().div_ceil(GRANULE)).unwrap_or(u32::MAX);
        let granules = NonZeroU32::new(granules).unwrap_or(NonZeroU32::MIN);
        Piece { place: extent.place(), offset: extent.offset(), granules, path }
    }

    pub(crate) fn path(&self) -> PathId {
        self.path
    }

    /// Returns its length in bytes, whole granules.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.granules.get()) * GRANULE
    }

    /// Returns the extent, to name it in a transfer; not to be freed.
    pub(crate) fn extent(&self) -> Extent {
        Extent::new(self.place, self.offset, self.bytes())
    }

    /// Returns the extent, to be freed.
    pub(crate) fn into_extent(self) -> Extent {
        self.extent()
    }
}

impl Pieces {
    /// Returns pieces in their order, of which there is one at least.
    pub(crate) fn new(mut pieces: Vec<Piece>) -> Self {
        match pieces.pop() {
            Some(only) if pieces.is_empty() => Pieces::One(only),
            last => Pieces::Striped(pieces.into_iter().chain(last).collect()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[Piece] {
        match self {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Striped(pieces) => pieces,
        }
    }

    /// Takes them out, to be freed.
    pub(crate) fn into_vec(self) -> Vec<Piece> {
        match self {
            Pieces::One(piece) => vec![piece],
            Pieces::Striped(pieces) => pieces.into_vec(),
        }
    }

    /// Returns the path that has the byte at `offset` of what is stored.
    pub(crate) fn path_at(&self, offset: u64) -> Option<PathId> {
        let mut end = 0;
        let holds = |piece: &&Piece| {
            end += piece.bytes();
            offset < end
        };
        self.as_slice().iter().find(holds).map(Piece::path)
    }
}

impl DiskCopy {
    /// Returns whether some of it is on a path.
    pub(crate) fn is_on(&self, path: PathId) -> bool {
        self.pieces.as_slice().iter().any(|piece| piece.path == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_survives_being_kept_small() {
        assert_eq!(size_of::<Option<DiskCopy>>(), 40);
        let piece = Piece::new(PathId(3), Extent::new(u64::MAX, 1 << 50, 5 * GRANULE));
        assert_eq!((piece.path(), piece.bytes()), (PathId(3), 5 * GRANULE));
        assert_eq!(piece.into_extent(), Extent::new(u64::MAX, 1 << 50, 5 * GRANULE));
    }

    #[test]
    fn pieces_come_one_after_the_other() {
        let piece =
            |path, granules| Piece::new(PathId(path), Extent::new(0, 0, granules * GRANULE));
        assert!(matches!(Pieces::new(vec![piece(1, 1)]), Pieces::One(_)));
        let pieces = Pieces::new(vec![piece(5, 2), piece(3, 1)]);
        let at = |granules| pieces.path_at(granules * GRANULE).map(|path| path.0);
        assert_eq!([0, 1, 2, 3].map(at), [Some(5), Some(5), Some(3), None]);
        assert_eq!(pieces.into_vec(), [piece(5, 2), piece(3, 1)]);
    }
}
