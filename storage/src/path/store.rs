//! The contract of a path: space for extents, transfers between extents and frames, and its facts.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{Kind, PathProfile};
use crate::arena::{FrameSlice, FrameSliceMut};
use crate::error::Errno;
use crate::id::Class;
use crate::io::EngineKind;

/// A contiguous byte range on one path, held until it is freed. Opaque to all but its path; there is
/// one value per range, so nothing is freed twice.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an extent keeps its space until it is freed"]
pub struct Extent {
    place: u64,
    offset: u64,
    bytes: u64,
}

impl Extent {
    /// Returns the extent of `bytes` at `offset` of `place`; only for implementations of
    /// [`PathStore`], which say what a place is.
    pub fn new(place: u64, offset: u64, bytes: u64) -> Self {
        Extent { place, offset, bytes }
    }

    /// Returns the same extent once more, to name it in a transfer; not to be freed.
    pub(crate) fn alias(&self) -> Self {
        Extent { ..*self }
    }

    /// Returns which place (for files: which segment) it lies in.
    pub fn place(&self) -> u64 {
        self.place
    }

    /// Returns its byte offset in the place.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns its length in bytes, whole granules.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Why and where a read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at offset {offset}: {errno}")]
pub struct TransferError {
    /// What the system said.
    pub errno: Errno,
    /// Byte offset in the path's file at which the failed part starts.
    pub offset: u64,
}

/// Called once with the outcome of a write, after every slice of it has been dropped: on a thread of
/// the path, or within the call that was refused. Must be short and not block; may start transfers.
pub type WriteDone = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Called once with the outcome of a read, after every slice of it has been dropped (so that the
/// frame can be made whole again): on a thread of the path, or within the call that was refused. Must
/// be short and not block; may start transfers. After an error the bytes of the frame are unspecified.
pub type ReadDone = Box<dyn FnOnce(Result<(), TransferError>) + Send>;

/// Whether a path answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Condition {
    /// It does, as far as is known.
    #[default]
    Good,
    /// Operations were given to the kernel and for longer than the path's deadline none completed.
    Hung {
        /// How long nothing has completed.
        silent: Duration,
    },
    /// It hung and answers again; few operations are tried at a time until some succeed.
    Probation,
}

/// A change of a path's [`Condition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathEvent {
    /// It hangs: what is out may never be answered.
    Hung,
    /// Something that was out when it hung was answered: it is on probation.
    Answering,
}

/// Called with every event of a path, in their order, on a thread of the path. Must be short and not
/// block.
pub type Tell = Box<dyn Fn(PathEvent) + Send + Sync>;

/// What a path is and was found able to do, in words for people where it had a choice.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The directory the caller named.
    pub dir: PathBuf,
    /// The directory the store made inside it.
    pub scratch: PathBuf,
    /// What the caller said it is.
    pub kind: Kind,
    /// The file system's name, or its magic number in hex.
    pub file_system: String,
    /// The device number; paths of equal number share one device.
    pub device: u64,
    /// Whether transfers bypass the page cache.
    pub direct: bool,
    /// Why, or why not.
    pub direct_why: String,
    /// Byte alignment that direct transfers need, at most 4096, which all of ours have.
    pub align: u32,
    /// Whether space is really allocated ahead of writes.
    pub fallocate: bool,
    /// Whether file locks work, so that a leftover can be told from a directory in use.
    pub locks: bool,
    /// What moves the bytes.
    pub engine: EngineKind,
    /// Why this and not another.
    pub engine_why: String,
    /// Most bytes that are read at one time, to start with; a path may come to need more or less.
    pub read_in_flight_bytes: u64,
    /// Most bytes that are written at one time, to start with.
    pub write_in_flight_bytes: u64,
    /// Most processes of this user that use the device at one time, to start with; any number if
    /// `None`.
    pub max_processes: Option<u32>,
    /// Why so many.
    pub max_processes_why: String,
}

impl Capabilities {
    /// Returns those of a path of one's own that is no directory: `dir` is what messages call it,
    /// `kept_in` says where its bytes are. What is otherwise is set in the fields: paths that share a
    /// device should have its number.
    pub fn of_own(dir: impl Into<PathBuf>, kept_in: &str) -> Self {
        let dir = dir.into();
        Capabilities {
            scratch: dir.clone(),
            dir,
            kind: Kind::Nvme,
            file_system: kept_in.to_owned(),
            device: u64::MAX,
            direct: false,
            direct_why: String::from("it is no directory"),
            align: 1,
            fallocate: false,
            locks: false,
            engine: EngineKind::Threads,
            engine_why: String::from("it moves its bytes itself"),
            read_in_flight_bytes: u64::MAX,
            write_in_flight_bytes: u64::MAX,
            max_processes: None,
            max_processes_why: String::from("it is no directory"),
        }
    }
}

/// Bytes asked for and not completed, waiting and in flight, without those that hung
/// ([`PathCounters::hung_bytes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outstanding {
    /// To be read.
    pub read_bytes: u64,
    /// To be written.
    pub write_bytes: u64,
}

/// What a path has done since it was opened, and the space it takes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathCounters {
    /// Bytes read for callers, padding included, completed without error.
    pub read_bytes: u64,
    /// Bytes written for callers, padding included, completed without error.
    pub written_bytes: u64,
    /// Calls of [`PathStore::read`] that completed without error.
    pub reads: u64,
    /// Calls of [`PathStore::write`] that completed without error.
    pub writes: u64,
    /// Bytes allocated in files.
    pub space_bytes: u64,
    /// Of that, bytes of extents.
    pub used_bytes: u64,
    /// Operations that were in flight when the path hung and are still not answered.
    pub hung_operations: u64,
    /// Their bytes: memory that stays taken until they are.
    pub hung_bytes: u64,
    /// How long transfers have waited for other processes to use the device, with none of this path
    /// in flight.
    pub waited_for_processes: Duration,
}

/// A path could not be closed as it should be; what stays is listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}; left in place: {}", list(.left))]
pub struct CloseError {
    /// Transfers the kernel had not answered; their memory stays taken until it does.
    pub in_flight: u64,
    /// Files and directories that stay.
    pub left: Vec<PathBuf>,
    /// What went wrong.
    pub why: String,
}

fn list(left: &[PathBuf]) -> String {
    let names: Vec<_> = left.iter().map(|path| path.display().to_string()).collect();
    if names.is_empty() { String::from("nothing") } else { names.join(", ") }
}

/// What a path that does not say otherwise moves at a time.
const DEPTH_BYTES: u64 = 4 << 20;

/// A store of bytes on one place of the virtual tier. Placement knows no more of a path than this.
///
/// All slices are whole granules of 4096 bytes. Calls are safe from any thread.
///
/// A path that hangs ([`Condition::Hung`]) answers `ETIMEDOUT` to every transfer of which the kernel
/// has nothing, at once. Whatever the kernel has stays out, memory and all, until it completes; its
/// extent must not be freed before.
pub trait PathStore: Send + Sync + fmt::Debug {
    /// Takes space for `bytes`, rounded up to granules. May allocate files and so block for a while.
    ///
    /// # Errors
    /// `EDQUOT` when the path's own quota is used up, `ENOSPC` when the file system is full,
    /// `ETIMEDOUT` when the path hangs, or what the system said; nothing is taken then.
    fn reserve(&self, bytes: u64) -> Result<Extent, Errno>;

    /// Writes `from` to the start of `extent`; done when it is accepted for good. The extent must not
    /// be freed before. Never waits. A slice longer than the extent gets `EINVAL`, a closed path
    /// `ECANCELED`.
    fn write(&self, extent: &Extent, from: FrameSlice, class: Class, done: WriteDone);

    /// Reads `into` from byte `at` of `extent`, a multiple of 4096. The extent must not be freed
    /// before. Never waits. A range outside the extent gets `EINVAL`, a closed path `ECANCELED`.
    fn read(&self, extent: &Extent, at: u64, into: FrameSliceMut, class: Class, done: ReadDone);

    /// Gives an extent's space back for reuse.
    fn free(&self, extent: Extent);

    /// Makes everything written so far survive a loss of power. Blocks.
    ///
    /// # Errors
    /// What the system said; what was written since the last good sync is then suspect.
    fn sync(&self) -> Result<(), Errno>;

    /// Returns what the path is and can do.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the present view of its speed.
    fn profile(&self) -> PathProfile;

    /// Returns what is asked for and not completed.
    fn outstanding(&self) -> Outstanding;

    /// Returns how many bytes of a direction it moves at a time: with less asked for it is not at its
    /// full rate, and what is asked for beyond waits. It may change.
    fn depth_bytes(&self) -> u64 {
        DEPTH_BYTES
    }

    /// Returns what it has done and the space it takes.
    fn counters(&self) -> PathCounters;

    /// Returns whether it answers. A store that cannot tell says that it does.
    fn condition(&self) -> Condition {
        Condition::Good
    }

    /// Has `tell` called with every later change of [`PathStore::condition`]. A store that cannot
    /// tell never calls.
    fn watch(&self, tell: Tell) {
        drop(tell);
    }

    /// Cancels what waits, waits up to `grace` for what is in flight, and removes what the path
    /// made. Where something stays in flight its memory, files and threads are left to it, and
    /// nothing is removed. Later transfers get `ECANCELED`. A second call returns as the first.
    ///
    /// # Errors
    /// [`CloseError`] when something is still in flight or could not be removed.
    fn close(&self, grace: Duration) -> Result<(), CloseError>;
}
