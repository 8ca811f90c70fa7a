//! The contract of every engine: an operation in, exactly one completion out, every byte moved.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use crate::arena::{FrameSlice, FrameSliceMut};
use crate::error::Errno;

/// The memory of an operation and the direction in which its bytes go. The slice stays with the
/// engine until the kernel is done with it, so abandoning an answer never abandons memory.
#[derive(Debug)]
pub enum Transfer {
    /// From the file into memory.
    Read(FrameSliceMut),
    /// From memory into the file.
    Write(FrameSlice),
}

impl Transfer {
    /// Returns how many bytes are to be moved.
    pub fn bytes(&self) -> u64 {
        match self {
            Transfer::Read(into) => into.len() as u64,
            Transfer::Write(from) => from.len() as u64,
        }
    }

    /// Returns whether bytes go from memory into the file.
    pub fn is_write(&self) -> bool {
        matches!(self, Transfer::Write(_))
    }
}

/// What is called with the outcome: once, never while a lock of the engine is held, and never within
/// `submit` (so that it may submit the next operation) unless the engine is closing. It must be short
/// and not block.
pub type Done = Box<dyn FnOnce(Completion) + Send>;

/// One transfer between memory and a file.
pub struct Operation {
    /// The file, kept open until the completion.
    pub file: Arc<File>,
    /// Byte offset in the file.
    pub offset: u64,
    /// Memory and direction.
    pub transfer: Transfer,
    /// Whether a write completes only when the device has accepted it (`RWF_DSYNC`); ignored for
    /// reads.
    pub dsync: bool,
    /// Called with the outcome.
    pub done: Done,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("transfer", &self.transfer)
            .field("dsync", &self.dsync)
            .finish_non_exhaustive()
    }
}

/// The outcome of an [`Operation`].
#[derive(Debug)]
pub struct Completion {
    /// `Ok` means that every byte was moved.
    pub result: Result<(), Errno>,
    /// How many bytes were moved, all of them when `result` is `Ok`.
    pub bytes: u64,
    /// Service time: from the first submission to the kernel to its last answer. Time in queues
    /// before it does not count.
    pub took: Duration,
    /// The memory, given back.
    pub transfer: Transfer,
}

/// Which engine moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// One io_uring ring and thread.
    Uring,
    /// Worker threads that block in the kernel.
    Threads,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EngineKind::Uring => "io_uring",
            EngineKind::Threads => "threads",
        })
    }
}

/// Moves bytes. Operations are independent: they may complete in any order, and one that fails
/// disturbs no other.
///
/// Dropping an engine waits for what the kernel has and completes the rest with `ECANCELED`;
/// dropped on its own thread (by a `done`) it does not wait but ends soon after.
pub trait IoEngine: Send + Sync + fmt::Debug {
    /// Takes an operation. Never waits for I/O; allocates a queue entry. The answer comes through
    /// [`Operation::done`], exactly once.
    fn submit(&self, operation: Operation);

    /// Returns which engine this is; a decorator returns that of the engine inside.
    fn kind(&self) -> EngineKind;
}
