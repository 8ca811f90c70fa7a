//! What the tier's thread has under way: chunks on their way to the device, and copies back.

use std::sync::Arc;

use tensortier_gpu::CopyOut;

use crate::catalog::ChunkRef;
use crate::error::Error;
use crate::id::{Class, Version};
use crate::mover::Hold;
use crate::sync::Mutex;
use crate::ticket::{Completer, Ticket};

use super::copies::Copy;
use super::lease::{DeviceReadLease, DeviceWriteLease};
use super::memory::{Allocation, Ending};

/// A chunk on its way to the device.
pub(super) struct Fetch {
    pub(super) chunk: ChunkRef,
    pub(super) class: Class,
    pub(super) whom: Whom,
    pub(super) stage: Stage,
}

/// Who waits for it.
pub(super) enum Whom {
    /// Nobody, if it is a prefetch.
    Readers(Vec<Completer<DeviceReadLease>>),
    Writer(Completer<DeviceWriteLease>),
}

/// How far it is.
pub(super) enum Stage {
    /// Waits for its lease on the host.
    Host(Ticket<Hold>),
    /// Waits for memory on the device.
    Memory { hold: Hold, version: Version },
    /// Is being copied.
    Copying(Copying),
}

impl Fetch {
    pub(super) fn is_copying(&self) -> bool {
        matches!(self.stage, Stage::Copying(_))
    }

    /// Returns whether nobody waits for it any more and nothing of it was begun on the device.
    pub(super) fn is_abandoned(&mut self) -> bool {
        let nobody = match &mut self.whom {
            Whom::Readers(readers) => {
                readers.retain(|reply| !reply.is_abandoned());
                readers.is_empty() && self.class == Class::Demand
            }
            Whom::Writer(reply) => reply.is_abandoned(),
        };
        nobody && !self.is_copying()
    }
}

impl Whom {
    /// Gives everybody who waits the same error.
    pub(super) fn refuse(self, error: &Error) {
        match self {
            Whom::Readers(readers) => {
                readers.into_iter().for_each(|reply| reply.complete(Err(error.clone())));
            }
            Whom::Writer(reply) => reply.complete(Err(error.clone())),
        }
    }
}

/// A chunk that is being copied to the device.
pub(super) struct Copying {
    pub(super) hold: Arc<Hold>,
    pub(super) allocation: Allocation,
    pub(super) version: Version,
    /// Bytes whose copy has been queued.
    pub(super) queued: u64,
    /// Pieces that are queued and not done.
    pub(super) pieces: usize,
    pub(super) failed: Option<tensortier_gpu::Error>,
}

/// A copy to the host on its way.
pub(super) struct Back {
    pub(super) copy: CopyOut,
    /// Where the lease on the host is when the device has let go of its memory.
    pub(super) returned: Arc<Mutex<Option<Hold>>>,
    pub(super) kept: Copy,
    pub(super) reply: Option<Completer<()>>,
    pub(super) _ending: Ending,
}
