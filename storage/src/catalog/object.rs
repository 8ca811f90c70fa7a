//! Objects, and the map from keys to them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId};
use crate::sync::Mutex;
use crate::units::Bytes;

use super::{Chunk, Key};

/// A named tensor and its chunks.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) key: Arc<Mutex<Key>>,
    pub(crate) dtype: DType,
    pub(crate) shape: Box<[u64]>,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Length of all chunks but the last, in bytes.
    pub(crate) chunk_bytes: u64,
    pub(crate) chunks: Box<[Arc<Chunk>]>,
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
        let bytes = shape
            .iter()
            .try_fold(dtype.bytes(), |bytes, extent| bytes.checked_mul(*extent))
            .filter(|bytes| bytes.div_ceil(chunk_bytes) <= u64::from(u32::MAX))
            .ok_or_else(|| Error::OutOfRange {
                key: key.to_string(),
                why: format!("a {dtype} tensor of shape {shape:?} is too large"),
            })?;
        let key = Arc::new(Mutex::new(key));
        let chunk = |index: u64| {
            let len = chunk_bytes.min(bytes - index * chunk_bytes);
            let id = ChunkId { object: id, index: index as u32 };
            Arc::new(Chunk::new(id, len, dtype.bytes() as u8, Arc::clone(&key)))
        };
        let chunks = (0..bytes.div_ceil(chunk_bytes)).map(chunk).collect();
        Ok(Object { key: Arc::clone(&key), dtype, shape: shape.into(), bytes, chunk_bytes, chunks })
    }

    /// Returns the chunk of this index.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the last.
    pub(crate) fn chunk(&self, index: u32) -> Result<&Arc<Chunk>> {
        self.chunks.get(index as usize).ok_or_else(|| Error::OutOfRange {
            key: self.key.lock().to_string(),
            why: format!("has {} chunks, there is no chunk {index}", self.chunks.len()),
        })
    }

    /// Checks that `bytes` of the caller are as many as the object has.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming both lengths.
    pub(crate) fn expect_len(&self, bytes: usize) -> Result<()> {
        if bytes as u64 == self.bytes {
            return Ok(());
        }
        Err(Error::OutOfRange {
            key: self.key.lock().to_string(),
            why: format!(
                "is {} ({} of shape {:?}, {} bytes), given {} bytes",
                Bytes(self.bytes),
                self.dtype,
                self.shape,
                self.bytes,
                bytes
            ),
        })
    }
}

/// The objects by key, ordered so that a listing by prefix is a range.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    objects: BTreeMap<Key, Arc<Object>>,
    /// Objects that are being put and have no key yet; their first chunks may be on a path already.
    arriving: Vec<Arc<Object>>,
}

impl Catalog {
    pub(crate) fn get(&self, key: &str) -> Result<Arc<Object>> {
        self.objects.get(key).cloned().ok_or_else(|| not_found(key))
    }

    /// Adds an object that must be new.
    pub(crate) fn insert(&mut self, key: Key, object: Arc<Object>) -> Result<()> {
        if self.objects.contains_key(&key) {
            return Err(Error::AlreadyExists { key: key.to_string() });
        }
        self.objects.insert(key, object);
        Ok(())
    }

    /// Takes note of an object that is being put, until [`Catalog::arrived`].
    pub(crate) fn arrives(&mut self, object: &Arc<Object>) {
        self.arriving.push(Arc::clone(object));
    }

    /// An object was put, or will not be.
    pub(crate) fn arrived(&mut self, object: &Arc<Object>) {
        self.arriving.retain(|other| !Arc::ptr_eq(other, object));
    }

    /// Returns every object that may have bytes on a path, those being put too.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values().chain(&self.arriving)
    }

    /// Puts an object under `key` and returns the one it replaces.
    pub(crate) fn replace(&mut self, key: Key, object: Arc<Object>) -> Option<Arc<Object>> {
        self.objects.insert(key, object)
    }

    pub(crate) fn remove(&mut self, key: &str) -> Result<Arc<Object>> {
        self.objects.remove(key).ok_or_else(|| not_found(key))
    }

    pub(crate) fn rename(&mut self, from: &str, to: Key) -> Result<()> {
        if !self.objects.contains_key(from) {
            return Err(not_found(from));
        }
        if self.objects.contains_key(&to) {
            return Err(Error::AlreadyExists { key: to.to_string() });
        }
        let object = self.remove(from)?;
        *object.key.lock() = to.clone();
        self.objects.insert(to, object);
        Ok(())
    }

    /// Returns the objects whose key begins with `prefix`, in order of their keys.
    pub(crate) fn list(&self, prefix: &str) -> Vec<(Key, Arc<Object>)> {
        let from = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect()
    }

    pub(crate) fn drain(&mut self) -> Vec<Arc<Object>> {
        std::mem::take(&mut self.objects).into_values().collect()
    }
}

fn not_found(key: &str) -> Error {
    Error::NotFound {
        key: Key::new(key).map_or_else(|_| String::from("(a key over 64 KiB)"), |k| k.to_string()),
    }
}
