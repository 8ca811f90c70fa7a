//! What a device is to the rest of tensortier: memory that only copies on streams can reach.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::Event;
use crate::id::DeviceId;
use crate::page_lock::{HostMemory, PageLock};

/// How much memory a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// What can be allocated now.
    pub free_bytes: u64,
}

/// Host memory that a copy reads. It is shared until the copy is done, so it cannot change; when its
/// event is done the copy has let go of it.
pub type HostSource = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Host memory that a copy fills. The copy owns it until it is done and then gives it back.
pub type HostTarget = Box<dyn AsMut<[u8]> + Send>;

/// Memory on a device; its bytes are undefined at first. Dropping it frees the memory once the
/// copies queued on it are done.
pub struct DeviceBuffer {
    pub(crate) device: DeviceId,
    pub(crate) bytes: u64,
    pub(crate) memory: Arc<dyn Any + Send + Sync>,
}

impl DeviceBuffer {
    /// Returns its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the device it is on.
    pub fn device(&self) -> DeviceId {
        self.device
    }
}

impl Default for DeviceBuffer {
    /// Returns a buffer of no bytes on no device; every copy from or to it is refused.
    fn default() -> Self {
        DeviceBuffer { device: DeviceId(u16::MAX), bytes: 0, memory: Arc::new(()) }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes on device {})", self.bytes, self.device)
    }
}

/// A queue of work that a device does in order; streams run beside one another.
pub struct Stream {
    pub(crate) device: DeviceId,
    pub(crate) queue: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream(device {})", self.device)
    }
}

/// A copy from a device to the host on its way.
pub struct CopyOut {
    pub(crate) done: Event,
    pub(crate) target: crossbeam_channel::Receiver<HostTarget>,
}

impl CopyOut {
    /// Returns the event of its end.
    pub fn event(&self) -> &Event {
        &self.done
    }

    /// Waits for the copy and returns the filled host memory. Blocks.
    ///
    /// # Errors
    /// [`Error::StreamLost`] if the stream ended before; the memory is lost then.
    pub fn wait(self) -> Result<HostTarget> {
        self.done.wait()?;
        self.target.recv().map_err(|_| Error::StreamLost)
    }
}

impl fmt::Debug for CopyOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyOut(done: {})", self.done.is_done())
    }
}

/// A device. Every call returns at once; copies run on their stream in the order of the calls. Work
/// on different streams is ordered only by events.
pub trait Device: fmt::Debug + Send + Sync {
    /// Returns which device of this process it is.
    fn id(&self) -> DeviceId;

    /// Returns the name by which it is asked for.
    fn name(&self) -> &str;

    /// Returns how much memory it has.
    fn memory(&self) -> Memory;

    /// Allocates memory; zero bytes are legal.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn allocate(&self, bytes: u64) -> Result<DeviceBuffer>;

    /// Page-locks host memory, all pages that hold some of it, so that copies need no help of the host.
    /// Zero bytes are legal and lock nothing. Devices lock independently of each other, also the same
    /// memory. Copies work as well from and to memory of which only parts are locked, by one lock or by
    /// several, or none.
    ///
    /// # Errors
    /// [`Error::AlreadyLocked`] if any of the pages is locked for this device, [`Error::LockRefused`];
    /// nothing is locked then and `memory` is let go of.
    fn page_lock(&self, memory: Arc<dyn HostMemory>) -> Result<PageLock>;

    /// Returns how much host memory is locked for it, in bytes, whole pages.
    fn page_locked_bytes(&self) -> u64;

    /// Opens a stream.
    ///
    /// # Errors
    /// [`Error::Stream`].
    fn open_stream(&self) -> Result<Stream>;

    /// Queues a copy of `from[range]` to `to` at `offset`, and returns the event of its end. Who has
    /// only a shared buffer cannot change it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Foreign`], [`Error::StreamLost`]; nothing is copied then.
    fn copy_in(
        &self,
        stream: &Stream,
        from: HostSource,
        range: Range<usize>,
        to: &mut DeviceBuffer,
        offset: u64,
    ) -> Result<Event>;

    /// Queues a copy from `from` at `offset` that fills `into`.
    ///
    /// # Errors
    /// As [`Device::copy_in`]; `into` is dropped then.
    fn copy_out(
        &self,
        stream: &Stream,
        from: &DeviceBuffer,
        offset: u64,
        into: HostTarget,
    ) -> Result<CopyOut>;

    /// Returns an event that is done when all that is queued on `stream` now is done.
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::StreamLost`].
    fn record(&self, stream: &Stream) -> Result<Event>;

    /// Makes later work on `stream` wait for `event`, which may be of another stream.
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::StreamLost`].
    fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<()>;
}
