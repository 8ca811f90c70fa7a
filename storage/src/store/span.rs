//! A byte range of an object as parts of its chunks.

use std::ops::Range;

use crate::catalog::ChunkRef;
use crate::error::{Error, Result};
use crate::units::Bytes;

use super::ObjectRef;

/// A byte range that lies in its object.
#[derive(Debug, Clone)]
pub(super) struct Span {
    object: ObjectRef,
    range: Range<u64>,
}

/// What of a chunk belongs to a span.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) chunk: ChunkRef,
    /// Which of the chunk's bytes.
    pub(super) within: Range<usize>,
}

impl Span {
    /// Returns the span of all of an object.
    pub(super) fn whole(object: ObjectRef) -> Self {
        let range = 0..object.bytes();
        Span { object, range }
    }

    /// Returns a range of an object.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it leaves the object.
    pub(super) fn new(object: ObjectRef, range: Range<u64>) -> Result<Self> {
        if range.start <= range.end && range.end <= object.bytes() {
            return Ok(Span { object, range });
        }
        let why = format!("bytes {range:?} of {} do not exist", Bytes(object.bytes()));
        Err(Error::OutOfRange { key: object.0.key().to_string(), why })
    }

    /// Checks that a buffer of the caller is as long.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming both lengths.
    pub(super) fn expect_len(self, bytes: usize) -> Result<Self> {
        if self.range.end - self.range.start == bytes as u64 {
            return Ok(self);
        }
        let Span { object, range } = self;
        let why =
            format!("bytes {range:?} of {} do not fit a buffer of {bytes} bytes", object.bytes());
        Err(Error::OutOfRange { key: object.0.key().to_string(), why })
    }

    /// Returns the object and which of its chunks the span touches.
    pub(super) fn chunks(&self) -> (ObjectRef, Range<u32>) {
        (self.object.clone(), self.indices())
    }

    /// Returns the indices of the chunks that the span touches.
    pub(super) fn indices(&self) -> Range<u32> {
        if self.range.is_empty() {
            return 0..0;
        }
        // Most objects have one chunk, and a division costs as much as a lease's bookkeeping.
        if self.object.chunks() == 1 {
            return 0..1;
        }
        let size = self.object.0.chunk_bytes();
        (self.range.start / size) as u32..self.range.end.div_ceil(size) as u32
    }

    /// Returns the parts in order; none of them is empty.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> + Send {
        let Span { object, range } = self;
        let size = object.0.chunk_bytes();
        self.indices().filter_map(move |index| {
            let start = u64::from(index) * size;
            let within = range.start.max(start) - start..range.end.min(start + size) - start;
            let chunk = object.0.chunk(index).ok()?;
            Some(Part { chunk, within: within.start as usize..within.end as usize })
        })
    }
}
