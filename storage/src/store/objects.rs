//! Objects as a whole: create, resolve, get, delete, rename, stat, list.

use std::sync::Arc;

use crate::catalog::{FrameSlot, Key, Object};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::mover::Msg;
use crate::residency::Stored;
use crate::sync::Ordering;

use super::{Named, Parts, Store};

/// A resolved object; spares the look-up of its key, and keeps working after a rename.
#[derive(Debug, Clone)]
pub struct ObjectRef(pub(super) Arc<Object>);

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Its key.
    pub key: Key,
    /// The type of its elements.
    pub dtype: DType,
    /// Its extents in elements, slowest first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The length of all its chunks but the last, in bytes.
    pub chunk_bytes: u64,
    /// How many of its bytes are in host memory now.
    pub host_bytes: u64,
    /// How many of its bytes have their newest version on a path.
    pub stored_bytes: u64,
    /// Whether its chunks are dropped rather than written when their memory is needed.
    pub reproducible: bool,
    /// How many of its bytes were dropped: to read them fails with [`Error::Dropped`].
    pub dropped_bytes: u64,
}

impl ObjectRef {
    /// Returns how many chunks the object has.
    pub fn chunks(&self) -> u32 {
        self.0.chunk_count()
    }

    /// Returns the object's length in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Returns what is known of the object now.
    pub fn stat(&self) -> Stat {
        let object = &self.0;
        let (mut host_bytes, mut stored_bytes, mut dropped_bytes) = (0, 0, 0);
        let mut reproducible = false;
        for chunk in object.chunks() {
            let cell = chunk.cell.lock();
            if matches!(cell.frame(), FrameSlot::Here(_) | FrameSlot::Out) {
                host_bytes += chunk.bytes();
            }
            if cell.residency.stored == Stored::Newest {
                stored_bytes += chunk.bytes();
            }
            if cell.residency.dropped() {
                dropped_bytes += chunk.bytes();
            }
            reproducible |= cell.residency.reproducible;
        }
        Stat {
            key: object.key(),
            dtype: object.layout().dtype(),
            shape: object.layout().shape(),
            bytes: object.bytes(),
            chunk_bytes: object.chunk_bytes(),
            host_bytes,
            stored_bytes,
            reproducible,
            dropped_bytes,
        }
    }
}

impl Store {
    /// Makes an object of zeros. Takes neither memory nor space until it is written.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::KeyTooLong`], [`Error::OutOfRange`] for a shape whose size
    /// overflows, [`Error::Closed`].
    pub fn create(&self, key: &str, dtype: DType, shape: &[u64]) -> Result<ObjectRef> {
        self.create_chunked(key, dtype, shape, self.0.chunk_bytes)
    }

    /// As [`Store::create`], with chunks of `chunk_bytes`.
    ///
    /// # Errors
    /// As [`Store::create`]; [`Error::OutOfRange`] for chunks of no bytes.
    pub fn create_chunked(
        &self,
        key: &str,
        dtype: DType,
        shape: &[u64],
        chunk_bytes: u64,
    ) -> Result<ObjectRef> {
        self.check_open()?;
        let object = self.new_object(key, dtype, shape, chunk_bytes)?;
        self.0.catalog.write().insert(Arc::clone(&object))?;
        Ok(ObjectRef(object))
    }

    pub(super) fn new_object(
        &self,
        key: &str,
        dtype: DType,
        shape: &[u64],
        chunk_bytes: u64,
    ) -> Result<Arc<Object>> {
        let key = Key::new(key)?;
        if chunk_bytes == 0 {
            let (key, why) = (key.to_string(), String::from("chunks of 0 bytes"));
            return Err(Error::OutOfRange { key, why });
        }
        let id = ObjectId(self.0.next_object.fetch_add(1, Ordering::Relaxed));
        let object = Arc::new(Object::new(id, key, dtype, shape, chunk_bytes)?);
        if self.1.reproducible {
            let chunks = object.chunks();
            chunks.for_each(|chunk| chunk.cell.lock().residency.reproducible = true);
        }
        Ok(object)
    }

    /// Returns the object of this key.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn object(&self, key: &str) -> Result<ObjectRef> {
        self.find(key)
    }

    /// Returns the tensor's bytes, one part per chunk, each loaded when it is asked for and shared
    /// without a copy. Each part is a shared lease while it lives.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn get(&self, object: &(impl Named + ?Sized)) -> Result<Parts> {
        Ok(Parts::new(self, self.find(object)?))
    }

    /// Returns whether there is an object of this name and all of it can still be read: nothing of it
    /// was dropped.
    pub fn contains(&self, object: &(impl Named + ?Sized)) -> bool {
        self.stat(object).is_ok_and(|stat| stat.dropped_bytes == 0)
    }

    /// Removes the object. Leases keep its bytes; its memory and space are reused when they end.
    ///
    /// # Errors
    /// [`Error::NotFound`], also when the object was replaced; [`Error::Closed`].
    pub fn delete(&self, object: &(impl Named + ?Sized)) -> Result<()> {
        self.check_open()?;
        let mut catalog = self.0.catalog.write();
        let object = object.name().find(&catalog)?;
        catalog.remove(&object)?;
        drop(catalog);
        self.0.handle.send(Msg::Delete(object));
        Ok(())
    }

    /// As [`Store::delete`] of each; one that fails stops no other.
    pub fn delete_many(&self, objects: impl IntoIterator<Item = impl Named>) -> Vec<Result<()>> {
        objects.into_iter().map(|object| self.delete(&object)).collect()
    }

    /// Gives an object another key.
    ///
    /// # Errors
    /// [`Error::NotFound`], also when the object was deleted or replaced; [`Error::AlreadyExists`],
    /// [`Error::KeyTooLong`], [`Error::Closed`]; nothing changes then.
    pub fn rename(&self, from: &(impl Named + ?Sized), to: &str) -> Result<()> {
        self.check_open()?;
        let to = Key::new(to)?;
        let mut catalog = self.0.catalog.write();
        let object = from.name().find(&catalog)?;
        catalog.rename(&object, to)
    }

    /// Returns what is known of an object.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn stat(&self, object: &(impl Named + ?Sized)) -> Result<Stat> {
        Ok(self.find(object)?.stat())
    }

    /// Returns the keys that begin with `prefix`, in order.
    pub fn list(&self, prefix: &str) -> Vec<Key> {
        self.0.catalog.read().list(prefix)
    }
}
