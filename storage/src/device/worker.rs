//! All that only the tier's thread touches; what it does with it stands in the files beside.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tensortier_gpu::Stream;

use crate::catalog::ChunkRef;
use crate::error::{Error, Fate};
use crate::id::ChunkId;
use crate::sync::channel::Receiver;
use crate::ticket::Completer;

use super::page_locks::PageLocksUser;
use super::under_way::{Back, Fetch};
use super::{Msg, Shared};

/// The tier's thread.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) messages: Receiver<Msg>,
    /// What keeps the host's memory page-locked.
    pub(super) page_locks: PageLocksUser,
    /// Where copies to the device are queued.
    pub(super) into: Stream,
    /// Where copies from the device are queued.
    pub(super) out: Stream,

    pub(super) fetches: BTreeMap<u64, Fetch>,
    /// The fetch of each chunk that readers wait for.
    pub(super) reading: HashMap<ChunkId, u64>,
    /// Fetches that wait for memory, in their order.
    pub(super) wanting: VecDeque<u64>,
    /// Fetches with pieces that are not queued yet, in their order.
    pub(super) copying: VecDeque<u64>,
    /// Pieces on their way to the device.
    pub(super) in_flight: usize,
    /// Chunks that will be wanted, in their order.
    pub(super) hints: VecDeque<ChunkRef>,
    pub(super) backs: BTreeMap<u64, Back>,
    /// The next number of a fetch or a copy back.
    pub(super) next: u64,
    pub(super) closing: Option<Closing>,
}

/// A close under way.
pub(super) struct Closing {
    /// `None` when the clock does not reach that far, or passed it.
    pub(super) deadline: Option<Instant>,
    pub(super) replies: Vec<Completer<bool>>,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        messages: Receiver<Msg>,
        (into, out): (Stream, Stream),
        page_locks: PageLocksUser,
    ) -> Self {
        Worker {
            shared,
            messages,
            page_locks,
            into,
            out,
            fetches: BTreeMap::new(),
            reading: HashMap::new(),
            wanting: VecDeque::new(),
            copying: VecDeque::new(),
            in_flight: 0,
            hints: VecDeque::new(),
            backs: BTreeMap::new(),
            next: 0,
            closing: None,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the error that tells of a failure of the device.
    pub(super) fn failed(
        &self,
        attempted: &'static str,
        chunk: &ChunkRef,
        source: tensortier_gpu::Error,
        fate: Fate,
    ) -> Error {
        Error::Device {
            device: self.shared.memory.device.name().to_owned(),
            attempted,
            key: chunk.key_text(),
            chunk: chunk.index(),
            source: Box::new(source),
            fate,
        }
    }
}
