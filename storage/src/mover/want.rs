//! What waits for memory: demands that must be answered, and hints that need not.

use std::time::Duration;

use crate::catalog::ChunkRef;
use crate::error::Error;
use crate::sync::Ordering;
use crate::ticket::Completer;

use super::{Lent, Loading};

/// A demand and since when it waits, on the store's clock.
pub(super) struct Demand {
    pub(super) want: Want,
    pub(super) since: Duration,
}

/// Somebody wants memory.
pub(super) enum Want {
    /// For a chunk, to be loaded.
    Load(Loading),
    /// For new contents, of which `rest` bytes more follow.
    Frame { bytes: u64, rest: u64, reply: Completer<Lent> },
}

impl Want {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Want::Load(loading) => loading.bytes(),
            Want::Frame { bytes, .. } => *bytes,
        }
    }

    /// Returns how many bytes more will be wanted after it.
    pub(super) fn rest(&self) -> u64 {
        match self {
            Want::Load(_) => 0,
            Want::Frame { rest, .. } => *rest,
        }
    }

    /// Answers a demand that cannot be met.
    pub(super) fn refuse(self, error: &Error) {
        match self {
            Want::Frame { reply, .. } => reply.complete(Err(error.clone())),
            Want::Load(loading) => loading.refuse(error),
        }
    }

    /// Returns whether nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Want::Frame { reply, .. } => reply.is_abandoned(),
            Want::Load(loading) => !loading.is_wanted(),
        }
    }
}

/// A chunk that will be wanted, and when that was said by the stamps of the store's clock.
pub(super) struct Hint {
    pub(super) chunk: ChunkRef,
    pub(super) said: u64,
}

impl Hint {
    /// Returns whether the chunk was leased since: what was foretold has happened.
    pub(super) fn is_past(&self) -> bool {
        self.chunk.last_use.load(Ordering::Relaxed) >= self.said
    }
}
