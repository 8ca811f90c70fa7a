//! A store on one path, as the rows of one path and of the overheads have it: an object of many
//! chunks that is loaded and written back by leases, and objects that are put and got.

use std::ops::Range;
use std::sync::Arc;

use tensortier::storage::dtype::DType;
use tensortier::storage::store::{ObjectRef, Store};

use crate::Failure;
use crate::share::Share;

const MIB: u64 = 1 << 20;

/// Host memory of the store, and bytes of the raw path's frames.
pub const BUDGET: u64 = 512 * MIB;

/// Bytes of one object of the copying verbs: small enough that the caller's buffer is no burden. Also
/// what is written at a time, half of the memory.
pub const PUT_BYTES: u64 = BUDGET / 2;

/// Bytes that one of those that share a path lays out before the next has its turn.
const TURN_BYTES: u64 = 64 * MIB;

/// A store on one path, with one object of many chunks and some to put.
#[derive(Debug)]
pub struct OneStore {
    store: Store,
    object: ObjectRef,
    buffer: Vec<u8>,
    bytes: u64,
    chunk_bytes: u64,
    sums: bool,
}

impl OneStore {
    /// Opens a store. Nothing of its object was written yet.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(
        share: Arc<Share>,
        bytes: u64,
        chunk_bytes: u64,
        sums: bool,
    ) -> Result<Self, Failure> {
        let builder = Store::builder().host_budget(BUDGET).chunk_bytes(chunk_bytes);
        let store = builder.checksums(sums).path_store(share).open()?;
        let object = store.create("object", DType::U8, &[bytes])?;
        let buffer = (0..PUT_BYTES / 8).flat_map(|i| (i * 0x9E37_79B9).to_le_bytes()).collect();
        Ok(OneStore { store, object, buffer, bytes, chunk_bytes, sums })
    }

    /// Returns whether it takes checksums.
    pub fn sums(&self) -> bool {
        self.sums
    }

    /// Returns the bytes of each object that is put.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the chunks in parts that take half of the memory.
    pub fn halves_of_memory(&self) -> impl Iterator<Item = Range<usize>> {
        parts(self.object.chunks() as usize, self.chunk_bytes, PUT_BYTES)
    }

    /// Reads all chunks in order, as a declared schedule has them read ahead.
    ///
    /// # Errors
    /// Those of the store.
    pub fn load(&self) -> Result<(), Failure> {
        self.declared(|chunk| {
            self.store.lease_write(&self.object, chunk).wait()?;
            Ok(())
        })
    }

    /// Reads all chunks in order, prefetched.
    ///
    /// # Errors
    /// Those of the store.
    pub fn load_prefetched(&self) -> Result<(), Failure> {
        self.store.prefetch(&self.object)?;
        for chunk in 0..self.object.chunks() {
            self.store.lease_read(&self.object, chunk).wait()?;
        }
        Ok(())
    }

    /// Reads all chunks, changes each, and has them written back, in the order of a schedule.
    ///
    /// # Errors
    /// Those of the store.
    pub fn update(&self) -> Result<(), Failure> {
        self.declared(|chunk| {
            let mut lease = self.store.lease_write(&self.object, chunk).wait()?;
            lease[0] = lease[0].wrapping_add(1);
            Ok(())
        })?;
        self.store.flush()?;
        Ok(())
    }

    fn declared(&self, visit: impl Fn(u32) -> Result<(), Failure>) -> Result<(), Failure> {
        let schedule = self.store.schedule();
        schedule.declare(std::slice::from_ref(&self.object), &[], 2 * self.chunk_bytes)?;
        for chunk in 0..self.object.chunks() {
            visit(chunk)?;
        }
        Ok(())
    }

    /// Writes some of the chunks for the first time, and as many bytes of the objects to put.
    ///
    /// # Errors
    /// Those of the store.
    pub fn lay_out(&self, part: Range<usize>) -> Result<(), Failure> {
        self.dirty(part.clone())?;
        let object = |chunk| (chunk as u64 * self.chunk_bytes).div_ceil(PUT_BYTES);
        (object(part.start)..object(part.end)).try_for_each(|i| self.put_one(i))?;
        self.flush()
    }

    /// Makes some of the chunks dirty in memory.
    ///
    /// # Errors
    /// Those of the store.
    pub fn dirty(&self, chunks: Range<usize>) -> Result<(), Failure> {
        for chunk in chunks {
            let mut lease = self.store.lease_write(&self.object, chunk as u32).wait()?;
            lease[0] = lease[0].wrapping_add(1);
        }
        Ok(())
    }

    /// Writes what is dirty.
    ///
    /// # Errors
    /// Those of the store.
    pub fn flush(&self) -> Result<(), Failure> {
        Ok(self.store.flush()?)
    }

    /// Moves everything out of memory.
    ///
    /// # Errors
    /// Those of the store.
    pub fn evict(&self) -> Result<(), Failure> {
        for key in self.store.list("") {
            self.store.evict(&key)?;
        }
        Ok(self.store.barrier()?)
    }

    /// Puts as many bytes as the object has, as objects of 256 MiB, until all are on the path.
    ///
    /// # Errors
    /// Those of the store.
    pub fn put(&self) -> Result<(), Failure> {
        (0..self.bytes / PUT_BYTES).try_for_each(|i| self.put_one(i))?;
        self.flush()
    }

    /// Puts one object of 256 MiB.
    ///
    /// # Errors
    /// Those of the store.
    pub fn put_one(&self, i: u64) -> Result<(), Failure> {
        self.store.put(&format!("put.{i}"), DType::U8, &[PUT_BYTES], &self.buffer)?;
        Ok(())
    }

    /// Copies all that was put out of the store, one object over the other.
    ///
    /// # Errors
    /// Those of the store.
    pub fn get_into(&self, into: &mut [u8]) -> Result<(), Failure> {
        for i in 0..self.bytes / PUT_BYTES {
            self.store.get_into(&format!("put.{i}"), into)?;
        }
        Ok(())
    }
}

impl Drop for OneStore {
    /// Gives its places back to its share.
    fn drop(&mut self) {
        let keys = self.store.list("");
        let deleted = keys.iter().try_for_each(|key| self.store.delete(key));
        if let Err(error) = deleted.and_then(|()| self.store.barrier()) {
            eprintln!("a store keeps some of its places: {error}");
        }
    }
}

/// Returns the chunks in the turns in which those that share a path lay theirs out, so that every
/// part of the drive holds some of each.
pub fn turns(chunks: usize, chunk_bytes: u64) -> impl Iterator<Item = Range<usize>> {
    parts(chunks, chunk_bytes, TURN_BYTES)
}

/// Returns the chunks in parts of so many bytes, or of one chunk.
fn parts(chunks: usize, chunk_bytes: u64, bytes: u64) -> impl Iterator<Item = Range<usize>> {
    let at_once = (bytes / chunk_bytes).max(1) as usize;
    (0..chunks).step_by(at_once).map(move |first| first..chunks.min(first + at_once))
}
