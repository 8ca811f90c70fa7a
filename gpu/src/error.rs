//! The one error type of the gpu crate.

use std::time::Duration;

use crate::id::DeviceId;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such device.
    #[error("no device named {name:?}; name one of: {}", available.join(", "))]
    Unavailable {
        /// What was asked for.
        name: String,
        /// What there is.
        available: Vec<&'static str>,
    },
    /// The device's memory cannot take an allocation; nothing was allocated.
    #[error(
        "device {device} cannot allocate {bytes} bytes: {free_bytes} of {total_bytes} are free; \
         free buffers or allocate less"
    )]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// What was asked for.
        bytes: u64,
        /// What was free.
        free_bytes: u64,
        /// What the device has.
        total_bytes: u64,
    },
    /// Some of the pages are locked for this device already; nothing was locked.
    #[error(
        "device {device} cannot page-lock {bytes} bytes of host memory: some of them are locked for it \
         already; unlock those first"
    )]
    AlreadyLocked {
        /// The device.
        device: DeviceId,
        /// What was to be locked, whole pages.
        bytes: u64,
    },
    /// No more host memory can be page-locked for the device; nothing was locked, and copies from and
    /// to memory that is not locked work.
    #[error(
        "device {device} cannot page-lock {bytes} bytes of host memory: {why}; it has locked \
         {locked_bytes} bytes, the limit is {}; copies work without, but slower",
        limit_bytes.map_or(String::from("not known"), |limit| format!("{limit} bytes"))
    )]
    LockRefused {
        /// The device.
        device: DeviceId,
        /// What was to be locked, whole pages.
        bytes: u64,
        /// What it had locked before.
        locked_bytes: u64,
        /// How much it may lock in all, if that is known.
        limit_bytes: Option<u64>,
        /// What the system said.
        why: String,
    },
    /// A copy does not fit its source or its target; nothing was copied.
    #[error("a copy of {bytes} bytes at {offset} does not fit the {which} of {length} bytes")]
    OutOfRange {
        /// Which side: a device buffer or host memory.
        which: &'static str,
        /// The side's length.
        length: u64,
        /// Where the copy starts in it.
        offset: u64,
        /// How much is to be copied.
        bytes: u64,
    },
    /// A buffer or stream of one device was given to another.
    #[error("a {what} of device {owner} was used with device {device}")]
    Foreign {
        /// A buffer or a stream.
        what: &'static str,
        /// Whose it is.
        owner: DeviceId,
        /// Who was given it.
        device: DeviceId,
    },
    /// The system refused a thread for a stream.
    #[error("cannot open a stream: {why}; open fewer streams")]
    Stream {
        /// What the system said.
        why: String,
    },
    /// A stream ended before its work was done; what was queued on it is lost.
    #[error("the stream ended before its work was done")]
    StreamLost,
    /// A wait ran out of its time; the work goes on.
    #[error("the device was not done within {after:?}; it goes on in the background")]
    Timeout {
        /// The time that was allowed.
        after: Duration,
    },
}
