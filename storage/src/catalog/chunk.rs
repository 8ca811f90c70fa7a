//! A chunk: its residency, the frame and the extent that hold its copies, and who waits for it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::{FillGuard, FrameMut, FrameRef};
use crate::codec::{Checksums, Packed};
use crate::error::Result;
use crate::id::{ChunkId, PathId};
use crate::path::Extent;
use crate::residency::{Mode, Residency};
use crate::sync::{AtomicBool, AtomicU64, Mutex};

use super::Key;

/// A chunk of one object. All that changes is in the [`Cell`] behind one lock, which is never held
/// across I/O or while a ticket is answered.
pub(crate) struct Chunk {
    pub(crate) id: ChunkId,
    /// Logical length in bytes.
    pub(crate) bytes: u64,
    /// Bytes of one element.
    pub(crate) width: u8,
    /// The object's key, for messages; shared by its chunks and changed by a rename.
    pub(crate) key: Arc<Mutex<Key>>,
    pub(crate) cell: Mutex<Cell>,
    /// When it was last leased, on the store's own count of leases.
    pub(crate) last_use: AtomicU64,
    /// Set while a declared schedule names it: the mover wants to know when a lease of it ends.
    pub(crate) tracked: AtomicBool,
    /// Set while a prefetch brought it and nobody has leased it yet.
    pub(crate) awaited: AtomicBool,
}

/// The changing part of a chunk.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub(crate) residency: Residency,
    pub(crate) frame: FrameSlot,
    pub(crate) disk: Option<DiskCopy>,
    pub(crate) waiters: VecDeque<Waiter>,
    /// When the frame now being filled was found; what is waited before is waiting for memory.
    pub(crate) framed_at: Option<Instant>,
}

/// Where a chunk's frame is.
#[derive(Debug, Default)]
pub(crate) enum FrameSlot {
    /// There is none, nor is one being filled.
    #[default]
    Empty,
    /// In memory; readers hold clones.
    Here(FrameRef),
    /// Being filled by a path.
    Filling(FillGuard),
    /// With the holder of a write lease, or with the mover on its way in.
    Out,
}

/// The copy on a path; which version it is says [`Residency::stored`].
#[derive(Debug)]
pub(crate) struct DiskCopy {
    pub(crate) path: PathId,
    /// Shared with a read in progress; freed by whoever holds it last.
    pub(crate) extent: Arc<Extent>,
    /// Of the stored bytes.
    pub(crate) sums: Option<Checksums>,
    /// How they are to be decompressed, if they are compressed; shared with a read in progress.
    pub(crate) packed: Option<Arc<Packed>>,
}

/// Somebody who waits for a lease.
pub(crate) struct Waiter {
    pub(crate) mode: Mode,
    pub(crate) since: Instant,
    pub(crate) reply: Box<dyn Reply>,
}

/// How somebody who waits for a lease is told.
pub(crate) trait Reply: Send {
    /// Tells the outcome; called with no lock held.
    fn tell(self: Box<Self>, answer: Result<(Granted, Waits)>);
    /// Returns whether nobody waits any more.
    fn is_abandoned(&self) -> bool;
}

/// What a lease gives access to.
#[derive(Debug)]
pub(crate) enum Granted {
    Read(FrameRef),
    Write(FrameMut),
}

/// How long a lease was waited for, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Waiting for memory to become free (usually for a write-back).
    pub memory: Duration,
    /// Waiting for the chunk's bytes to arrive, or for other leases to end.
    pub arrival: Duration,
    /// Whether the chunk was in memory when it was asked for.
    pub hit: bool,
}

impl Chunk {
    pub(crate) fn new(id: ChunkId, bytes: u64, width: u8, key: Arc<Mutex<Key>>) -> Self {
        Chunk {
            id,
            bytes,
            width,
            key,
            cell: Mutex::new(Cell::default()),
            last_use: AtomicU64::new(0),
            tracked: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
        }
    }

    /// Returns the key as it is now, for a message.
    pub(crate) fn key_text(&self) -> String {
        self.key.lock().to_string()
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({})", self.id)
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiter({:?})", self.mode)
    }
}
