//! The one error type of the storage crate: what was attempted, on what, what the system said,
//! whether anything was lost, and what to do.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::id::Tier;
use crate::units::Bytes;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error number of the operating system; unlike [`std::io::Error`] it can be cloned, so that
/// every waiter of a failed transfer gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(*.0))]
pub struct Errno(pub i32);

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Self {
        // An error without a number comes from the standard library itself, never from a transfer.
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno::from(&error)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Errno(error.raw_os_error())
    }
}

/// Everything that can go wrong in a store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is not usable; nothing was opened.
    #[error("{what}: {why}")]
    Config {
        /// The setting.
        what: String,
        /// What is wrong with it and what would work.
        why: String,
    },
    /// A storage path cannot be used; nothing was left on it.
    #[error("path {}: cannot {attempted}: {source}; {remedy}", path.display())]
    PathUnusable {
        /// The directory as the caller named it.
        path: PathBuf,
        /// What was tried.
        attempted: String,
        /// What the system said.
        source: Errno,
        /// What to do.
        remedy: String,
    },
    /// The system refused something that is not about one path (memory, threads, a ring).
    #[error("cannot {attempted}: {source}; {remedy}")]
    System {
        /// What was tried.
        attempted: String,
        /// What the system said.
        source: Errno,
        /// What to do.
        remedy: String,
    },
    /// A chunk could not be read; its copy on the path may still be good.
    #[error(
        "reading {key} (chunk {chunk}, {bytes} at offset {offset} of {}) failed: {source}; \
         nothing was changed, read it again once the path answers",
        path.display()
    )]
    Read {
        /// The object's key.
        key: String,
        /// The chunk's index in its object.
        chunk: u32,
        /// The path's directory.
        path: PathBuf,
        /// Byte offset in the path's file.
        offset: u64,
        /// How much was asked for.
        bytes: Bytes,
        /// What the system said.
        source: Errno,
    },
    /// A path does not answer. Nothing is lost: what is on it and what is in memory is kept.
    #[error(
        "cannot {attempted} {key} (chunk {chunk}): path {} does not answer; nothing is lost, try \
         again once it answers, or add another path",
        path.display()
    )]
    PathHung {
        /// What was to be done with the chunk.
        attempted: &'static str,
        /// The object's key.
        key: String,
        /// The chunk's index in its object.
        chunk: u32,
        /// The path's directory.
        path: PathBuf,
    },
    /// A chunk's bytes on a path are not those that were written there.
    #[error(
        "{key} (chunk {chunk}) is corrupt on {}: block {block} has checksum {actual:016x}, \
         written as {expected:016x}; its bytes were not returned",
        path.display()
    )]
    Corrupt {
        /// The object's key.
        key: String,
        /// The chunk's index in its object.
        chunk: u32,
        /// The path's directory.
        path: PathBuf,
        /// The 256 KiB block in the chunk.
        block: u32,
        /// The checksum taken when it was written.
        expected: u64,
        /// The checksum of what was read.
        actual: u64,
    },
    /// A chunk's compressed bytes on a path cannot be decompressed.
    #[error(
        "{key} (chunk {chunk}) is corrupt on {}: block {block} cannot be decompressed; \
         its bytes were not returned",
        path.display()
    )]
    Undecodable {
        /// The object's key.
        key: String,
        /// The chunk's index in its object.
        chunk: u32,
        /// The path's directory.
        path: PathBuf,
        /// The 256 KiB block in the chunk.
        block: u32,
    },
    /// No path can take a chunk; it stays in memory, nothing is lost.
    #[error(
        "no path can take {bytes} ({key}): {}; nothing is lost, the bytes stay in memory; \
         free space, raise a quota, or add a path",
        tried.join("; ")
    )]
    NoSpace {
        /// The object's key.
        key: String,
        /// How much had to be written.
        bytes: Bytes,
        /// Every path that was tried and what it said.
        tried: Vec<String>,
    },
    /// A tier's budget cannot hold what is asked for while the caller's own leases hold the rest.
    #[error(
        "the {tier} budget of {budget} cannot take {needed} more: {free} free (largest run \
         {largest_run}), held by {}; drop a lease or raise the budget",
        if holders.is_empty() { String::from("nothing that can be moved") } else { holders.join(", ") }
    )]
    BudgetExhausted {
        /// The tier whose budget it is.
        tier: Tier,
        /// The strict budget.
        budget: Bytes,
        /// What was asked for.
        needed: Bytes,
        /// Free bytes.
        free: Bytes,
        /// The longest free run.
        largest_run: Bytes,
        /// Keys of the objects whose leases hold memory, and how much.
        holders: Vec<String>,
    },
    /// A tier's budget can never hold one chunk.
    #[error(
        "the {tier} budget of {budget} cannot hold one chunk of {needed}; use at least {needed}"
    )]
    BudgetTooSmall {
        /// The tier whose budget it is.
        tier: Tier,
        /// The strict budget.
        budget: Bytes,
        /// The smallest that would do.
        needed: Bytes,
    },
    /// A device failed or refused; what became of the chunk's bytes says `fate`.
    #[error("device {device}: cannot {attempted} {key} (chunk {chunk}): {source}; {fate}")]
    Device {
        /// The device's name.
        device: String,
        /// What was tried.
        attempted: &'static str,
        /// The object's key.
        key: String,
        /// The chunk's index in its object.
        chunk: u32,
        /// What the device said.
        source: Box<tensortier_gpu::Error>,
        /// What became of the bytes.
        fate: Fate,
    },
    /// A device cannot be attached; nothing was taken of it.
    #[error("device {device}: cannot {attempted}: {source}")]
    DeviceUnusable {
        /// The device's name.
        device: String,
        /// What was tried.
        attempted: &'static str,
        /// What the device said.
        source: Box<tensortier_gpu::Error>,
    },
    /// There is no object of this key.
    #[error("no object named {key}")]
    NotFound {
        /// The key.
        key: String,
    },
    /// A reproducible object's bytes were dropped to make room, as was agreed when it was made.
    #[error("{key} (chunk {chunk}) was dropped from memory; make its bytes again and put them")]
    Dropped {
        /// The object's key.
        key: String,
        /// The first chunk that was found missing, by its index in the object.
        chunk: u32,
    },
    /// There is already an object of this key.
    #[error("{key} exists already; delete it first, or put to replace it")]
    AlreadyExists {
        /// The key.
        key: String,
    },
    /// A key is longer than 64 KiB.
    #[error("a key of {bytes} is too long; at most 64 KiB")]
    KeyTooLong {
        /// Its length.
        bytes: Bytes,
    },
    /// A range, an index or a length does not fit the object.
    #[error("{key}: {why}")]
    OutOfRange {
        /// The object's key.
        key: String,
        /// What does not fit.
        why: String,
    },
    /// A wait ran out of its time; the operation goes on.
    #[error("{what} did not finish within {after:?}; it goes on in the background")]
    Timeout {
        /// What was waited for.
        what: String,
        /// The time that was allowed.
        after: Duration,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// A tensor file cannot be used; nothing was read from it.
    #[error("{}: {why}", file.display())]
    BadFile {
        /// The file.
        file: PathBuf,
        /// What is wrong with it and what to do.
        why: String,
        /// What the system said, if it was the system that refused.
        source: Option<Errno>,
    },
}

/// What became of a chunk's bytes when a device failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The store has them as before.
    Kept,
    /// What was written on the device is lost; the store has the version before it.
    WriteLost,
    /// They are lost: no path had them, and in memory they were overwritten in part.
    Lost,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fate::Kept => {
                "nothing is lost, the store has its bytes; try again once the device works"
            }
            Fate::WriteLost => {
                "what was written there is lost, the store has the version before it"
            }
            Fate::Lost => "its bytes are lost; delete the object and put it again",
        })
    }
}

/// The kinds a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting, argument, key or range is wrong.
    InvalidInput,
    /// No such object, or no longer: it was reproducible and its bytes were dropped.
    NotFound,
    /// The object exists already.
    AlreadyExists,
    /// Memory: the budget is too small or held by leases.
    Budget,
    /// The operating system or a path refused or failed.
    Io,
    /// A device refused or failed.
    Device,
    /// No path has room.
    NoSpace,
    /// Stored bytes are not what was written.
    Corrupt,
    /// A wait ran out of time.
    Timeout,
    /// The store is closed.
    Closed,
}

impl Error {
    /// Returns which kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Config { .. }
            | Error::KeyTooLong { .. }
            | Error::OutOfRange { .. }
            | Error::BadFile { .. } => ErrorKind::InvalidInput,
            Error::NotFound { .. } | Error::Dropped { .. } => ErrorKind::NotFound,
            Error::AlreadyExists { .. } => ErrorKind::AlreadyExists,
            Error::BudgetExhausted { .. } | Error::BudgetTooSmall { .. } => ErrorKind::Budget,
            Error::PathUnusable { .. } | Error::System { .. } => ErrorKind::Io,
            Error::Read { .. } | Error::PathHung { .. } => ErrorKind::Io,
            Error::Device { .. } | Error::DeviceUnusable { .. } => ErrorKind::Device,
            Error::NoSpace { .. } => ErrorKind::NoSpace,
            Error::Corrupt { .. } | Error::Undecodable { .. } => ErrorKind::Corrupt,
            Error::Timeout { .. } => ErrorKind::Timeout,
            Error::Closed => ErrorKind::Closed,
        }
    }

    /// Returns whether the same call may succeed later without anything being changed first.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Read { .. } | Error::PathHung { .. } | Error::Timeout { .. })
            || matches!(self, Error::BudgetExhausted { .. } | Error::NoSpace { .. })
    }
}
