//! The copy of a chunk on the paths: which extents hold it, and in which form; kept small, because
//! there is one per stored chunk.

use std::num::NonZeroU32;

use crate::arena::GRANULE;
use crate::codec::Form;
use crate::id::PathId;
use crate::path::Extent;

/// An extent and its path. As with an extent, there is one value per range.
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
pub(crate) struct DiskCopy(Kept);

/// The fields stand in the variants, so that the tag takes what these leave free.
#[derive(Debug)]
enum Kept {
    /// One piece, whose numbers are small.
    Plain {
        path: PathId,
        place: u32,
        granule: u32,
        granules: NonZeroU32,
    },
    /// The same with the checksum of the only block.
    Summed {
        path: PathId,
        place: u32,
        granule: u32,
        granules: NonZeroU32,
        sum: u64,
    },
    Other(Box<Other>),
}

/// The pieces that hold a chunk's stored bytes one after the other, of which there is one at least.
#[derive(Debug)]
struct Other {
    pieces: Box<[Piece]>,
    form: Form,
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

fn small(path: PathId, place: u32, granule: u32, granules: NonZeroU32) -> (PathId, Extent) {
    let [offset, bytes] = [granule, granules.get()].map(|granules| u64::from(granules) * GRANULE);
    (path, Extent::new(place.into(), offset, bytes))
}

impl DiskCopy {
    /// Returns the copy that these pieces are in their order.
    pub(crate) fn new(pieces: Vec<Piece>, form: Form) -> Self {
        let other = |pieces: Vec<Piece>, form| {
            DiskCopy(Kept::Other(Box::new(Other { pieces: pieces.into(), form })))
        };
        let [Piece { place, offset, granules, path }] = pieces[..] else {
            return other(pieces, form);
        };
        let granule = offset.is_multiple_of(GRANULE).then_some(offset / GRANULE);
        let granule = granule.and_then(|granule| u32::try_from(granule).ok());
        let (Ok(place), Some(granule)) = (u32::try_from(place), granule) else {
            return other(pieces, form);
        };
        DiskCopy(match form.only_sum() {
            Some(sum) => Kept::Summed { path, place, granule, granules, sum },
            None if !form.is_work() => Kept::Plain { path, place, granule, granules },
            None => return other(pieces, form),
        })
    }

    /// Returns the form of what is stored.
    pub(crate) fn form(&self) -> Form {
        match &self.0 {
            Kept::Plain { .. } => Form::default(),
            Kept::Summed { sum, .. } => Form::of_one(*sum),
            Kept::Other(other) => other.form.clone(),
        }
    }

    /// Returns the extents that hold it and their paths, to name them in transfers.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (PathId, Extent)> {
        let (only, all) = match &self.0 {
            Kept::Plain { path, place, granule, granules }
            | Kept::Summed { path, place, granule, granules, .. } => {
                (Some(small(*path, *place, *granule, *granules)), &[][..])
            }
            Kept::Other(other) => (None, &other.pieces[..]),
        };
        only.into_iter().chain(all.iter().map(|piece| (piece.path(), piece.extent())))
    }

    /// Takes the pieces out, to be freed.
    pub(crate) fn into_pieces(self) -> Vec<Piece> {
        self.extents().map(|(path, extent)| Piece::new(path, extent)).collect()
    }

    /// Returns the path that has the byte at `offset` of what is stored.
    pub(crate) fn path_at(&self, offset: u64) -> Option<PathId> {
        let mut end = 0;
        let holds = |(_, extent): &(PathId, Extent)| {
            end += extent.bytes();
            offset < end
        };
        self.extents().find(holds).map(|(path, _)| path)
    }

    /// Returns whether some of it is on a path.
    pub(crate) fn is_on(&self, path: PathId) -> bool {
        self.extents().any(|(on, _)| on == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Checksums;

    fn piece(path: u16, place: u64, offset: u64, granules: u64) -> Piece {
        Piece::new(PathId(path), Extent::new(place, offset, granules * GRANULE))
    }

    #[test]
    fn a_copy_survives_being_kept_small() {
        assert_eq!(size_of::<Option<DiskCopy>>(), 24);
        let summed = |len| Form::new(Some(Checksums::of(&vec![1; len])), None);
        let far = u64::from(u32::MAX) + 1;
        for (place, offset) in [(7, 3 * GRANULE), (far, 0), (7, far * GRANULE), (7, 100)] {
            for (form, work) in
                [(Form::default(), false), (summed(9), true), (summed(300_000), true)]
            {
                let copy = DiskCopy::new(vec![piece(3, place, offset, 5)], form);
                assert_eq!(copy.form().is_work(), work);
                assert_eq!((copy.path_at(0), copy.path_at(5 * GRANULE)), (Some(PathId(3)), None));
                assert_eq!(copy.into_pieces(), [piece(3, place, offset, 5)]);
            }
        }
    }

    #[test]
    fn pieces_come_one_after_the_other() {
        let copy = DiskCopy::new(vec![piece(5, 0, 0, 2), piece(3, 0, 0, 1)], Form::default());
        let at = |granules| copy.path_at(granules * GRANULE).map(|path| path.0);
        assert_eq!([0, 1, 2, 3].map(at), [Some(5), Some(5), Some(3), None]);
        assert!(copy.is_on(PathId(3)) && !copy.is_on(PathId(4)));
        assert_eq!(copy.into_pieces(), [piece(5, 0, 0, 2), piece(3, 0, 0, 1)]);
    }
}
