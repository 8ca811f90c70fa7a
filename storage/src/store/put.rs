//! Putting tensors: a new object is built chunk by chunk and takes its key when it is complete.

use std::sync::Arc;

use crate::catalog::Object;
use crate::dtype::DType;
use crate::error::Result;
use crate::mover::{Handle, Lent, Msg};
use crate::ticket::Ticket;

use super::block_on::block_on;
use super::{BoxFuture, ObjectRef, Returned, Store};

/// A tensor to be put, for [`Store::put_many`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Put<B> {
    /// Its key.
    pub key: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its extents in elements, slowest first.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: B,
}

/// How an asynchronous put ended: the object, or the error; the buffer either way.
pub type PutOutcome<B> = Result<(ObjectRef, B), Returned<B>>;

impl<B> Put<B> {
    /// Returns a tensor to be put.
    pub fn new(key: impl Into<String>, dtype: DType, shape: &[u64], bytes: B) -> Self {
        Put { key: key.into(), dtype, shape: shape.to_vec(), bytes }
    }
}

impl Store {
    /// Stores a tensor under `key`, replacing what was there once all of it is stored; copies
    /// `bytes`, chunk by chunk, and blocks while memory must be made.
    ///
    /// # Errors
    /// As [`Store::create`] but for `AlreadyExists`; [`crate::error::Error::OutOfRange`] when `bytes`
    /// does not fit the shape; the errors of a lease. The old object stays then.
    pub fn put(&self, key: &str, dtype: DType, shape: &[u64], bytes: &[u8]) -> Result<ObjectRef> {
        block_on(self.put_bytes(key, dtype, shape, bytes, &mut Frames::new(self), 0))
    }

    /// As [`Store::put`], without blocking, and gives the buffer back. Begins when it is first polled;
    /// dropped before its end it leaves no object, and the old one in place.
    ///
    /// # Errors
    /// As [`Store::put`], with the buffer.
    pub fn put_async<B>(
        &self,
        key: &str,
        dtype: DType,
        shape: &[u64],
        bytes: B,
    ) -> BoxFuture<PutOutcome<B>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let (store, key, shape) = (self.clone(), key.to_owned(), shape.to_vec());
        Box::pin(async move {
            let (mut frames, from) = (Frames::new(&store), bytes.as_ref());
            let outcome = store.put_bytes(&key, dtype, &shape, from, &mut frames, 0).await;
            Returned::beside(outcome, bytes)
        })
    }

    /// As [`Store::put`] of each tensor in turn, with memory for the next found while one is copied.
    /// Each has its own outcome; one that fails stops no other.
    pub fn put_many<B: AsRef<[u8]>>(&self, tensors: &[Put<B>]) -> Vec<Result<ObjectRef>> {
        block_on(async {
            let (mut frames, mut outcomes) = (Frames::new(self), Vec::new());
            for (at, put) in tensors.iter().enumerate() {
                let next = self.first_chunk_bytes(tensors.get(at + 1));
                let Put { key, dtype, shape, bytes } = put;
                let bytes = bytes.as_ref();
                outcomes.push(self.put_bytes(key, *dtype, shape, bytes, &mut frames, next).await);
            }
            outcomes
        })
    }

    /// As [`Store::put_many`], without blocking, and gives each buffer back. Dropped before its end it
    /// leaves what is complete.
    pub fn put_many_async<B>(&self, tensors: Vec<Put<B>>) -> BoxFuture<Vec<PutOutcome<B>>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let store = self.clone();
        Box::pin(async move {
            let (mut frames, mut outcomes) = (Frames::new(&store), Vec::new());
            let mut tensors = tensors.into_iter().peekable();
            while let Some(Put { key, dtype, shape, bytes }) = tensors.next() {
                let (next, from) = (store.first_chunk_bytes(tensors.peek()), bytes.as_ref());
                let put = store.put_bytes(&key, dtype, &shape, from, &mut frames, next);
                let outcome = put.await;
                outcomes.push(Returned::beside(outcome, bytes));
            }
            outcomes
        })
    }

    /// Returns how much memory a tensor wants first, in bytes; 0 for none.
    fn first_chunk_bytes<B: AsRef<[u8]>>(&self, put: Option<&Put<B>>) -> u64 {
        put.map_or(0, |put| self.0.chunk_bytes.min(put.bytes.as_ref().len() as u64))
    }

    /// Puts a tensor; a frame of `next_bytes`, if not 0, will be wanted after its own.
    async fn put_bytes(
        &self,
        key: &str,
        dtype: DType,
        shape: &[u64],
        bytes: &[u8],
        frames: &mut Frames,
        next_bytes: u64,
    ) -> Result<ObjectRef> {
        self.check_open()?;
        let object = self.new_object(key, dtype, shape, self.0.chunk_bytes)?;
        object.expect_len(bytes.len())?;
        let arriving = Arriving::new(self, object)?;
        let chunks = arriving.object.chunks();
        let parts = bytes.chunks(arriving.object.chunk_bytes().max(1) as usize);
        let mut parts = chunks.zip(parts).peekable();
        let mut rest = bytes.len() as u64 + next_bytes;
        while let Some((chunk, part)) = parts.next() {
            let next = parts.peek().map_or(next_bytes, |(chunk, _)| chunk.bytes());
            rest -= chunk.bytes();
            frames.take(chunk.bytes(), next, rest).await?.become_contents(&chunk, part);
        }
        Ok(arriving.publish())
    }
}

/// Frames for chunks to be put; one is asked for ahead, so that it is found while another is filled.
struct Frames {
    handle: Handle,
    asked: Option<(u64, Ticket<Lent>)>,
}

impl Frames {
    fn new(store: &Store) -> Self {
        Frames { handle: store.0.handle.clone(), asked: None }
    }

    /// Returns a frame of `bytes`, and asks for the next; with that `rest` bytes more will be wanted.
    async fn take(&mut self, bytes: u64, next_bytes: u64, rest: u64) -> Result<Lent> {
        let ticket = match self.asked.take() {
            Some((asked, ticket)) if asked == bytes => ticket,
            _ => self.handle.borrow_frame(bytes, rest),
        };
        let frame = ticket.await?;
        if next_bytes > 0 {
            let ticket = self.handle.borrow_frame(next_bytes, rest.saturating_sub(next_bytes));
            self.asked = Some((next_bytes, ticket));
        }
        Ok(frame)
    }
}

/// An object that is being put. Dropped before it is published it never was: its memory and its space
/// on the paths go.
struct Arriving {
    store: Store,
    object: Arc<Object>,
    published: bool,
}

impl Arriving {
    fn new(store: &Store, object: Arc<Object>) -> Result<Self> {
        store.0.catalog.write().arrives(&object)?;
        Ok(Arriving { store: store.clone(), object, published: false })
    }

    /// Gives the object its key, from which what had it goes.
    fn publish(mut self) -> ObjectRef {
        self.published = true;
        let old = self.store.0.catalog.write().arrived(&self.object);
        if let Some(old) = old {
            self.store.0.handle.send(Msg::Delete(old));
        }
        ObjectRef(Arc::clone(&self.object))
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if !self.published {
            self.store.0.catalog.write().turned_back(&self.object);
            self.store.0.handle.send(Msg::Delete(Arc::clone(&self.object)));
        }
    }
}
