//! Leases on a device: a chunk's bytes in its memory, and who may use them until when.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tensortier_gpu::{DeviceBuffer, Event};

use crate::catalog::ChunkRef;
use crate::id::Version;
use crate::mover::Hold;
use crate::ticket::{Completer, Ticket, ticket};

use super::copies::Copy;
use super::memory::{Allocation, Ending, Reservation};
use super::{Msg, Shared};

/// A shared lease on a device: one version of a chunk, unchanging while the lease lives, also when
/// the store goes on to a newer one. Its bytes are there. Outlives the store.
///
/// Dropping it says that the caller's work on the buffer is done; if it is only queued, end the lease
/// with [`DeviceReadLease::end_after`].
pub struct DeviceReadLease {
    shared: Arc<Shared>,
    copy: Arc<Copy>,
}

/// An exclusive lease on a device: the chunk's bytes are there, to be changed. While it lives nobody
/// else has the chunk, on the host or on a device. If the buffer was borrowed mutably it is copied
/// back when the lease ends, and is the chunk's new version when that copy is complete.
///
/// Dropping it says that the caller's work on the buffer is done; if it is only queued, end the lease
/// with [`DeviceWriteLease::end_after`]. Neither blocks.
pub struct DeviceWriteLease {
    shared: Arc<Shared>,
    buffer: DeviceBuffer,
    /// `None` once it has ended.
    rest: Option<Rest>,
    changed: bool,
}

/// What an exclusive lease holds besides the buffer.
pub(super) struct Rest {
    pub(super) chunk: ChunkRef,
    pub(super) reservation: Reservation,
    /// The version that was copied in.
    pub(super) version: Version,
    pub(super) hold: Hold,
}

/// An exclusive lease that ended.
pub(super) struct Ended {
    pub(super) buffer: DeviceBuffer,
    pub(super) rest: Rest,
    pub(super) changed: bool,
    pub(super) reply: Option<Completer<()>>,
    // Dropped last: by then the memory has come back.
    pub(super) ending: Ending,
}

impl DeviceReadLease {
    /// Makes the lease of a copy that was counted as leased.
    pub(super) fn new(shared: Arc<Shared>, copy: Arc<Copy>) -> Self {
        DeviceReadLease { shared, copy }
    }

    /// Ends the lease when `event` is done; the buffer stays as it is until then.
    pub fn end_after(self, event: &Event) {
        let ending = self.shared.memory.ending();
        event.then(move |_| {
            drop(self);
            drop(ending);
        });
    }
}

impl Deref for DeviceReadLease {
    type Target = DeviceBuffer;
    fn deref(&self) -> &DeviceBuffer {
        &self.copy.allocation.buffer
    }
}

impl Drop for DeviceReadLease {
    fn drop(&mut self) {
        self.shared.copies.lock().unlease(&self.copy);
        self.shared.memory.came_back();
    }
}

impl DeviceWriteLease {
    pub(super) fn new(
        shared: Arc<Shared>,
        allocation: Allocation,
        (chunk, version, hold): (ChunkRef, Version, Hold),
    ) -> Self {
        let Allocation { buffer, reservation } = allocation;
        let rest = Some(Rest { chunk, reservation, version, hold });
        DeviceWriteLease { shared, buffer, rest, changed: false }
    }

    /// Ends the lease. The ticket is answered when the chunk's new version is in the store; dropping
    /// it changes nothing.
    ///
    /// # Errors
    /// By the ticket: [`crate::error::Error::Device`], which says what became of the bytes; `Closed`.
    pub fn end(mut self) -> Ticket<()> {
        let (reply, ticket) = ticket();
        self.finish(Some(reply), None);
        ticket
    }

    /// Ends the lease when `event` is done, after which the buffer has its new bytes.
    ///
    /// # Errors
    /// As [`DeviceWriteLease::end`]; if the event's stream is lost the chunk stays as it was.
    pub fn end_after(mut self, event: &Event) -> Ticket<()> {
        let (reply, ticket) = ticket();
        self.finish(Some(reply), Some(event));
        ticket
    }

    fn finish(&mut self, reply: Option<Completer<()>>, event: Option<&Event>) {
        let Some(mut rest) = self.rest.take() else { return };
        rest.hold.set_passing(true);
        let ending = self.shared.memory.ending();
        let buffer = std::mem::take(&mut self.buffer);
        let ended = Ended { buffer, rest, changed: self.changed, reply, ending };
        match event {
            None => self.shared.send(Msg::Ended { ended, result: Ok(()) }),
            Some(event) => {
                let shared = Arc::clone(&self.shared);
                event.then(move |result| shared.send(Msg::Ended { ended, result }));
            }
        }
    }
}

impl Deref for DeviceWriteLease {
    type Target = DeviceBuffer;
    fn deref(&self) -> &DeviceBuffer {
        &self.buffer
    }
}

impl DerefMut for DeviceWriteLease {
    fn deref_mut(&mut self) -> &mut DeviceBuffer {
        self.changed = true;
        &mut self.buffer
    }
}

impl Drop for DeviceWriteLease {
    fn drop(&mut self) {
        self.finish(None, None);
    }
}

impl fmt::Debug for DeviceReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceReadLease").field(&self.copy.chunk).finish()
    }
}

impl fmt::Debug for DeviceWriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceWriteLease").field(&self.buffer).finish()
    }
}
