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

/// The copy on the paths; whether it is of the newest version says `Residency::stored`.
#[derive(Debug)]
pub(crate) struct DiskCopy {
    pub(crate) piece: Piece,
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

impl DiskCopy {
    /// Returns whether some of it is on a path.
    pub(crate) fn is_on(&self, path: PathId) -> bool {
        self.piece.path == path
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
}
