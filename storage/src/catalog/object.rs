//! Objects, and handles on their chunks.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId};
use crate::sync::Mutex;
use crate::units::Bytes;

use super::{Chunk, Key, Layout};

/// A named tensor and its chunks.
pub(crate) struct Object {
    id: ObjectId,
    /// Changed by a rename.
    key: Mutex<Key>,
    layout: Layout,
    chunks: Chunks,
}

/// An object of one chunk has it in place.
enum Chunks {
    One(Chunk),
    Many { chunks: Box<[Chunk]>, chunk_bytes: u64 },
}

/// A chunk of an object; keeps the object. Clones are cheap.
#[derive(Clone)]
pub(crate) struct ChunkRef {
    object: Arc<Object>,
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
        let chunks = match count {
            1 => Chunks::One(Chunk::default()),
            _ => {
                Chunks::Many { chunks: (0..count).map(|_| Chunk::default()).collect(), chunk_bytes }
            }
        };
        Ok(Object { id, key: Mutex::new(key), layout, chunks })
    }

    /// Returns the key as it is now.
    pub(crate) fn key(&self) -> Key {
        self.key.lock().clone()
    }

    /// Returns whether this is its key now.
    pub(crate) fn is_named(&self, key: &str) -> bool {
        **self.key.lock() == *key
    }

    pub(super) fn set_key(&self, key: Key) {
        *self.key.lock() = key;
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        // It was checked when the object was made.
        self.layout.checked_bytes().unwrap_or(0)
    }

    /// Returns the length of all chunks but the last, in bytes; for one chunk its own.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        match &self.chunks {
            Chunks::One(_) => self.bytes(),
            Chunks::Many { chunk_bytes, .. } => *chunk_bytes,
        }
    }

    fn slice(&self) -> &[Chunk] {
        match &self.chunks {
            Chunks::One(chunk) => std::slice::from_ref(chunk),
            Chunks::Many { chunks, .. } => chunks,
        }
    }

    /// Returns how many chunks there are.
    pub(crate) fn chunk_count(&self) -> u32 {
        self.slice().len() as u32
    }

    /// Returns the chunk of this index.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the last.
    pub(crate) fn chunk(self: &Arc<Self>, index: u32) -> Result<ChunkRef> {
        let count = self.chunk_count();
        if index < count {
            return Ok(ChunkRef { object: Arc::clone(self), index });
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

    /// Returns the lengths of the chunks from `from` on that are before `to`, or none of them.
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
                self.layout.dtype(),
                self.layout.shape(),
                self.bytes(),
                bytes
            ),
        })
    }

    /// Returns how much memory the object's metadata takes when none of it is in memory, beside its
    /// key, in bytes. What forms of storage add to it is not known yet.
    pub(crate) fn memory_bytes(&self) -> u64 {
        /// The counts beside an object, the slot of an index, and the allocator's own.
        const AROUND: u64 = 16 + 16 + 8;
        let beside = match &self.chunks {
            Chunks::One(_) => 0,
            Chunks::Many { chunks, .. } => size_of_val(&**chunks) as u64,
        };
        size_of::<Object>() as u64 + AROUND + self.layout.memory_bytes() + beside
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
        self.object.layout.dtype().bytes() as u8
    }

    /// Returns the object's key as it is now, for a message.
    pub(crate) fn key_text(&self) -> String {
        self.object.key.lock().to_string()
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

impl Deref for ChunkRef {
    type Target = Chunk;
    fn deref(&self) -> &Chunk {
        // A handle is only made of an index that exists.
        &self.object.slice()[self.index as usize]
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
        assert!(object(&[8], 4096).memory_bytes() <= 200);
    }
}
