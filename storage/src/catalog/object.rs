//! Objects, and handles on their chunks.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::codec::BLOCK_BYTES;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId};
use crate::sync::Mutex;
use crate::units::Bytes;

use super::{Chunk, Key, Layout};

/// A named tensor and its chunks.
pub(crate) struct Object {
    id: ObjectId,
    /// Changed by a rename. Not a [`Key`], which has counts beside it.
    key: Mutex<Box<str>>,
    body: Body,
}

/// A chunk of several, apart from the others: threads that lease one of them each must not have a
/// line of memory go to and fro between their processors.
#[derive(Default)]
#[repr(align(128))]
struct Apart(Chunk);

/// An object of one chunk has it in place. Each variant has a layout, so that the layout's spare
/// values tell them apart and it takes no word of its own.
enum Body {
    One { layout: Layout, chunk: Chunk },
    Many { layout: Layout, chunks: Box<[Apart]>, chunk_bytes: u64 },
}

/// A chunk of an object; keeps the object. Clones are cheap.
#[derive(Clone)]
pub(crate) struct ChunkRef {
    object: Arc<Object>,
    index: u32,
}

/// Names a chunk of an object that somebody else keeps. Threads that use one object count in it as
/// rarely as they can: each count takes the line of memory away from the others.
#[derive(Clone, Copy)]
pub(crate) struct ChunkName<'a> {
    object: &'a Arc<Object>,
    index: u32,
}

/// A [`ChunkRef`] that does not keep the object.
pub(crate) struct WeakChunk {
    object: Weak<Object>,
    index: u32,
}

impl Object {
    /// Makes an object whose chunks were never written.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when the shape's size overflows or needs more than 2^32 chunks.
    pub(crate) fn new(
        id: ObjectId,
        key: Key,
        dtype: DType,
        shape: &[u64],
        chunk_bytes: u64,
    ) -> Result<Self> {
        let layout = Layout::new(dtype, shape);
        let count = layout.checked_bytes().map(|bytes| bytes.div_ceil(chunk_bytes));
        let Some(count) = count.filter(|count| *count <= u64::from(u32::MAX)) else {
            return Err(Error::OutOfRange {
                key: key.to_string(),
                why: format!("a {dtype} tensor of shape {shape:?} is too large"),
            });
        };
        let body = match count {
            1 => Body::One { layout, chunk: Chunk::default() },
            _ => {
                let chunks = (0..count).map(|_| Apart::default()).collect();
                Body::Many { layout, chunks, chunk_bytes }
            }
        };
        Ok(Object { id, key: Mutex::new((&*key).into()), body })
    }

    /// Returns the key as it is now.
    pub(crate) fn key(&self) -> Key {
        Key::checked(&self.key.lock())
    }

    /// Returns whether this is its key now.
    pub(crate) fn is_named(&self, key: &str) -> bool {
        **self.key.lock() == *key
    }

    /// Gives it another key and returns the one it had.
    pub(super) fn set_key(&self, key: &Key) -> Key {
        let old = std::mem::replace(&mut *self.key.lock(), (&**key).into());
        Key::checked(&old)
    }

    pub(crate) fn layout(&self) -> &Layout {
        match &self.body {
            Body::One { layout, .. } | Body::Many { layout, .. } => layout,
        }
    }

    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        // It was checked when the object was made.
        self.layout().checked_bytes().unwrap_or(0)
    }

    /// Returns the length of all chunks but the last, in bytes; for one chunk its own.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        match &self.body {
            Body::One { .. } => self.bytes(),
            Body::Many { chunk_bytes, .. } => *chunk_bytes,
        }
    }

    /// Returns how many chunks there are.
    pub(crate) fn chunk_count(&self) -> u32 {
        match &self.body {
            Body::One { .. } => 1,
            Body::Many { chunks, .. } => chunks.len() as u32,
        }
    }

    /// Returns a chunk of an index that exists.
    fn at(&self, index: u32) -> &Chunk {
        match &self.body {
            Body::One { chunk, .. } => chunk,
            Body::Many { chunks, .. } => &chunks[index as usize].0,
        }
    }

    /// Returns the chunk of this index.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the last.
    pub(crate) fn chunk(self: &Arc<Self>, index: u32) -> Result<ChunkRef> {
        self.named(index).map(ChunkName::keep)
    }

    /// As [`Object::chunk`], without a hold on the object.
    ///
    /// # Errors
    /// As [`Object::chunk`].
    pub(crate) fn named(self: &Arc<Self>, index: u32) -> Result<ChunkName<'_>> {
        let count = self.chunk_count();
        if index < count {
            return Ok(ChunkName { object: self, index });
        }
        Err(Error::OutOfRange {
            key: self.key().to_string(),
            why: format!("has {count} chunks, there is no chunk {index}"),
        })
    }

    /// Returns all chunks in order.
    pub(crate) fn chunks(self: &Arc<Self>) -> impl DoubleEndedIterator<Item = ChunkRef> + use<> {
        let object = Arc::clone(self);
        (0..self.chunk_count()).map(move |index| ChunkRef { object: Arc::clone(&object), index })
    }

    fn bytes_of(&self, index: u32) -> u64 {
        let size = self.chunk_bytes();
        size.min(self.bytes() - u64::from(index) * size)
    }

    /// Checks that `bytes` of the caller are as many as the object has.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming both lengths.
    pub(crate) fn expect_len(&self, bytes: usize) -> Result<()> {
        if bytes as u64 == self.bytes() {
            return Ok(());
        }
        Err(Error::OutOfRange {
            key: self.key().to_string(),
            why: format!(
                "is {} ({} of shape {:?}, {} bytes), given {} bytes",
                Bytes(self.bytes()),
                self.layout().dtype(),
                self.layout().shape(),
                self.bytes(),
                bytes
            ),
        })
    }

    /// Returns how much memory the object's metadata takes when none of it is in memory, with a
    /// checksum per block, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        /// The counts beside it, the slot of an index, and the allocator's own for it and its key.
        const AROUND: u64 = 16 + 16 + 2 * 8;
        let beside = match &self.body {
            Body::One { .. } => 0,
            Body::Many { chunks, .. } => size_of_val(&**chunks) as u64,
        };
        let sums = 8 * (self.bytes() / BLOCK_BYTES as u64);
        let key = self.key.lock().len() as u64;
        size_of::<Object>() as u64 + AROUND + key + self.layout().memory_bytes() + beside + sums
    }
}

impl ChunkRef {
    pub(crate) fn id(&self) -> ChunkId {
        ChunkId { object: self.object.id, index: self.index }
    }

    /// Returns the chunk's index in its object.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns its logical length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.object.bytes_of(self.index)
    }

    /// Returns the bytes of one element.
    pub(crate) fn width(&self) -> u8 {
        self.object.layout().dtype().bytes() as u8
    }

    /// Returns the object's key as it is now, for a message.
    pub(crate) fn key_text(&self) -> String {
        self.object.key().to_string()
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> ChunkName<'_> {
        ChunkName { object: &self.object, index: self.index }
    }

    pub(crate) fn downgrade(&self) -> WeakChunk {
        WeakChunk { object: Arc::downgrade(&self.object), index: self.index }
    }
}

impl WeakChunk {
    pub(crate) fn upgrade(&self) -> Option<ChunkRef> {
        Some(ChunkRef { object: self.object.upgrade()?, index: self.index })
    }
}

impl ChunkName<'_> {
    /// Returns a handle on the chunk, which keeps the object.
    pub(crate) fn keep(self) -> ChunkRef {
        ChunkRef { object: Arc::clone(self.object), index: self.index }
    }
}

// A handle is only made of an index that exists.
impl Deref for ChunkRef {
    type Target = Chunk;
    fn deref(&self) -> &Chunk {
        self.object.at(self.index)
    }
}

impl Deref for ChunkName<'_> {
    type Target = Chunk;
    fn deref(&self) -> &Chunk {
        self.object.at(self.index)
    }
}

impl fmt::Debug for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({})", self.id())
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({}, {})", self.id.0, self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_object_and_one_is_in_place() {
        let object = |shape: &[u64], chunk_bytes| {
            let key = Key::new("k").unwrap();
            Arc::new(Object::new(ObjectId(7), key, DType::U16, shape, chunk_bytes).unwrap())
        };
        for (len, chunk_bytes) in [(0, 4), (1, 4), (2, 4), (3, 4), (1001, 64)] {
            let object = object(&[len], chunk_bytes);
            let lengths: Vec<_> = object.chunks().map(|chunk| chunk.bytes()).collect();
            assert_eq!(lengths.iter().sum::<u64>(), 2 * len);
            assert!(lengths.iter().rev().skip(1).all(|bytes| *bytes == chunk_bytes));
            assert!(object.chunk(lengths.len() as u32).is_err());
        }
        assert_eq!(size_of::<Object>(), 120);
        assert!(object(&[8], 4096).memory_bytes() <= 200, "beside its key");
    }
}
