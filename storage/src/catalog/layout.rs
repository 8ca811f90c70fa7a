//! The element type and shape of a tensor in two words, because there is one per object.

use crate::dtype::DType;

/// An element type and extents, slowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout(Kept);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kept {
    /// One extent.
    Vector { dtype: DType, len: u64 },
    /// Two extents that fit.
    Matrix { dtype: DType, extents: [u32; 2] },
    /// Anything else, also none (a scalar).
    Other { dtype: DType, shape: Box<Box<[u64]>> },
}

impl Layout {
    pub(crate) fn new(dtype: DType, shape: &[u64]) -> Self {
        let small = |extent: u64| u32::try_from(extent).ok();
        Layout(match *shape {
            [len] => Kept::Vector { dtype, len },
            [rows, columns] if let (Some(a), Some(b)) = (small(rows), small(columns)) => {
                Kept::Matrix { dtype, extents: [a, b] }
            }
            _ => Kept::Other { dtype, shape: Box::new(shape.into()) },
        })
    }

    pub(crate) fn dtype(&self) -> DType {
        match self.0 {
            Kept::Vector { dtype, .. } | Kept::Matrix { dtype, .. } | Kept::Other { dtype, .. } => {
                dtype
            }
        }
    }

    pub(crate) fn shape(&self) -> Vec<u64> {
        match &self.0 {
            Kept::Vector { len, .. } => vec![*len],
            Kept::Matrix { extents, .. } => extents.iter().map(|extent| (*extent).into()).collect(),
            Kept::Other { shape, .. } => shape.to_vec(),
        }
    }

    /// Returns the tensor's length in bytes, or `None` if it overflows.
    pub(crate) fn checked_bytes(&self) -> Option<u64> {
        let times = |bytes: u64, extent: u64| bytes.checked_mul(extent);
        let width = self.dtype().bytes();
        match &self.0 {
            Kept::Vector { len, .. } => times(width, *len),
            Kept::Matrix { extents, .. } => {
                extents.iter().try_fold(width, |bytes, extent| times(bytes, (*extent).into()))
            }
            Kept::Other { shape, .. } => {
                shape.iter().try_fold(width, |b, extent| times(b, *extent))
            }
        }
    }

    /// Returns how much memory this takes beside its own size, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match &self.0 {
            Kept::Vector { .. } | Kept::Matrix { .. } => 0,
            Kept::Other { shape, .. } => size_of::<Box<[u64]>>() as u64 + 8 * shape.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_comes_back_in_two_words() {
        assert_eq!(size_of::<Layout>(), 16);
        let big = u64::from(u32::MAX) + 1;
        for shape in [&[][..], &[0], &[7, 0], &[3, 5], &[big, 2], &[2, big], &[1, 2, 3], &[big; 2]]
        {
            let layout = Layout::new(DType::BF16, shape);
            assert_eq!((layout.shape(), layout.dtype()), (shape.to_vec(), DType::BF16));
            let bytes = shape.iter().try_fold(2_u64, |bytes, extent| bytes.checked_mul(*extent));
            assert_eq!(layout.checked_bytes(), bytes, "{shape:?}");
        }
    }
}
