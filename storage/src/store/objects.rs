//! The verbs on objects: create, put, get, get into a buffer, prefetch, evict, delete, rename, stat,
//! list.

use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{ChunkRef, FrameSlot, Key, Object};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::mover::Msg;
use crate::residency::{Mode, Stored};
use crate::sync::Ordering;
use crate::ticket::ticket;
use crate::units::Bytes;

use super::{Ahead, Parts, Store};

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
        let (mut host_bytes, mut stored_bytes) = (0, 0);
        for chunk in object.chunks() {
            let cell = chunk.cell.lock();
            if matches!(cell.frame(), FrameSlot::Here(_) | FrameSlot::Out) {
                host_bytes += chunk.bytes();
            }
            if cell.residency.stored == Stored::Newest {
                stored_bytes += chunk.bytes();
            }
        }
        Stat {
            key: object.key(),
            dtype: object.layout().dtype(),
            shape: object.layout().shape(),
            bytes: object.bytes(),
            chunk_bytes: object.chunk_bytes(),
            host_bytes,
            stored_bytes,
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
        self.0.catalog.lock().insert(Arc::clone(&object))?;
        Ok(ObjectRef(object))
    }

    fn new_object(
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
        Ok(Arc::new(Object::new(id, key, dtype, shape, chunk_bytes)?))
    }

    /// Stores a tensor under `key`, replacing what was there once all of it is stored; copies
    /// `bytes`, chunk by chunk, and blocks while memory must be made.
    ///
    /// # Errors
    /// As [`Store::create`]; [`Error::OutOfRange`] when `bytes` does not fit the shape; the errors of
    /// a lease. The old object stays then.
    pub fn put(&self, key: &str, dtype: DType, shape: &[u64], bytes: &[u8]) -> Result<ObjectRef> {
        self.check_open()?;
        let object = self.new_object(key, dtype, shape, self.0.chunk_bytes)?;
        object.expect_len(bytes.len())?;
        let mut parts = object.chunks().zip(bytes.chunks(object.chunk_bytes().max(1) as usize));
        self.0.catalog.lock().arrives(&object)?;
        let put = parts.try_for_each(|(chunk, part)| self.put_chunk(&chunk, part));
        if let Err(error) = put {
            self.0.catalog.lock().turned_back(&object);
            self.0.handle.send(Msg::Delete(object));
            return Err(error);
        }
        let old = self.0.catalog.lock().arrived(&object);
        if let Some(old) = old {
            self.0.handle.send(Msg::Delete(old));
        }
        Ok(ObjectRef(object))
    }

    fn put_chunk(&self, chunk: &ChunkRef, part: &[u8]) -> Result<()> {
        let (reply, frame) = ticket();
        self.0.handle.send(Msg::Frame { bytes: chunk.bytes(), reply });
        let mut frame = frame.wait()?;
        frame.copy_from_slice(part);
        let mut cell = chunk.cell.lock();
        cell.set_frame(FrameSlot::Here(frame.share()));
        cell.residency.put();
        drop(cell);
        self.0.handle.adopt(chunk);
        Ok(())
    }

    /// Returns the object of this key.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn object(&self, key: &str) -> Result<ObjectRef> {
        self.check_open()?;
        self.0.catalog.lock().get(key).map(ObjectRef)
    }

    /// Returns the tensor's bytes, one part per chunk, each loaded when it is asked for and shared
    /// without a copy. Each part is a shared lease while it lives.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn get(&self, key: &str) -> Result<Parts> {
        self.check_open()?;
        Ok(Parts::new(self.clone(), self.object(key)?))
    }

    /// Copies the whole tensor into `into`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::OutOfRange`] when the lengths differ; the errors of a lease.
    pub fn get_into(&self, key: &str, into: &mut [u8]) -> Result<()> {
        let object = self.object(key)?;
        object.0.expect_len(into.len())?;
        self.copy_range(&object, 0..into.len() as u64, into)
    }

    /// Copies the bytes `range` of the tensor into `into`; reads only the chunks it touches.
    ///
    /// # Errors
    /// As [`Store::get_into`]; [`Error::OutOfRange`] when the range leaves the tensor.
    pub fn get_range_into(&self, key: &str, range: Range<u64>, into: &mut [u8]) -> Result<()> {
        let object = self.object(key)?;
        let fits = range.start <= range.end && range.end <= object.bytes();
        if !fits || range.end - range.start != into.len() as u64 {
            return Err(Error::OutOfRange {
                key: key.to_owned(),
                why: format!(
                    "bytes {range:?} of {} do not fit a buffer of {} bytes",
                    Bytes(object.bytes()),
                    into.len()
                ),
            });
        }
        self.copy_range(&object, range, into)
    }

    fn copy_range(&self, object: &ObjectRef, range: Range<u64>, into: &mut [u8]) -> Result<()> {
        self.check_open()?;
        let size = object.0.chunk_bytes().max(1);
        let mut left = into;
        let mut ahead = Ahead::new(self, object, range.end.div_ceil(size) as u32);
        for index in range.start / size..range.end.div_ceil(size) {
            let start = range.start.max(index * size) - index * size;
            let end = range.end.min((index + 1) * size) - index * size;
            let chunk = object.0.chunk(index as u32)?;
            let hold = self.0.handle.lease(&chunk, Mode::Read);
            ahead.follow(self, object, index as u32);
            let hold = hold.wait()?;
            let (head, tail) = left.split_at_mut((end - start) as usize);
            head.copy_from_slice(&hold.bytes()[start as usize..end as usize]);
            left = tail;
        }
        Ok(())
    }

    /// Says that the object will be wanted: its chunks are loaded as memory allows, without evicting
    /// what a declared schedule keeps. Returns at once.
    pub fn prefetch(&self, object: &ObjectRef) {
        self.0.handle.prefetch(object.0.chunks().collect());
    }

    /// Moves the object out of memory and waits for it; chunks that leases hold stay.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoSpace`] (the chunk stays in memory), [`Error::Closed`].
    pub fn evict(&self, key: &str) -> Result<()> {
        let object = self.object(key)?;
        let (reply, done) = ticket();
        self.0.handle.send(Msg::Evict { chunks: object.0.chunks().collect(), reply });
        done.wait()
    }

    /// Removes the object. Leases keep its bytes; its memory and space are reused when they end.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn delete(&self, key: &str) -> Result<()> {
        self.check_open()?;
        let object = self.0.catalog.lock().remove(key)?;
        self.0.handle.send(Msg::Delete(object));
        Ok(())
    }

    /// Gives an object another key.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyExists`], [`Error::KeyTooLong`], [`Error::Closed`];
    /// nothing changes then.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.check_open()?;
        self.0.catalog.lock().rename(from, Key::new(to)?)
    }

    /// Returns what is known of an object.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn stat(&self, key: &str) -> Result<Stat> {
        Ok(self.object(key)?.stat())
    }

    /// Returns the keys that begin with `prefix`, in order.
    pub fn list(&self, prefix: &str) -> Vec<Key> {
        self.0.catalog.lock().list(prefix)
    }
}
