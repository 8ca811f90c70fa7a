//! The strict budget of a device's memory: who holds how much, and who is told when some comes back.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensortier_gpu::{Device, DeviceBuffer};

use crate::catalog::ChunkRef;
use crate::error::Error;
use crate::id::Tier;
use crate::sync::channel::Sender;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::units::Bytes;

use super::Msg;

/// How many holders an error names.
const NAMED: usize = 8;

/// The memory of one device within its budget.
pub(super) struct Memory {
    pub(super) device: Arc<dyn Device>,
    pub(super) budget: u64,
    state: Mutex<State>,
    /// Leases whose end is on its way: their memory comes back by itself.
    ending: AtomicU64,
    /// Set while somebody waits for memory: then whatever ends is worth a message.
    starving: AtomicBool,
    inbox: Sender<Msg>,
}

#[derive(Default)]
struct State {
    used: u64,
    next: u64,
    held: BTreeMap<u64, ChunkRef>,
}

/// Memory of the device that holds one chunk; comes back when dropped.
pub(super) struct Allocation {
    // Dropped first: what counts as free is free.
    pub(super) buffer: DeviceBuffer,
    pub(super) reservation: Reservation,
}

/// A part of the budget; comes back when dropped.
pub(super) struct Reservation {
    memory: Arc<Memory>,
    id: u64,
    bytes: u64,
}

/// The end of a lease that is on its way.
pub(super) struct Ending(Arc<Memory>);

impl Memory {
    pub(super) fn new(device: Arc<dyn Device>, budget: u64, inbox: Sender<Msg>) -> Self {
        Memory {
            device,
            budget,
            state: Mutex::default(),
            ending: AtomicU64::new(0),
            starving: AtomicBool::new(false),
            inbox,
        }
    }

    /// Allocates memory for a chunk, or returns `None` when the budget has no room.
    ///
    /// # Errors
    /// What the device says, though the budget has room.
    pub(super) fn allocate(
        self: &Arc<Self>,
        chunk: &ChunkRef,
    ) -> tensortier_gpu::Result<Option<Allocation>> {
        let mut state = self.state.lock();
        if chunk.bytes() > self.budget - state.used {
            return Ok(None);
        }
        let id = state.next;
        state.next += 1;
        state.used += chunk.bytes();
        state.held.insert(id, chunk.clone());
        drop(state);
        let reservation = Reservation { memory: Arc::clone(self), id, bytes: chunk.bytes() };
        let buffer = self.device.allocate(chunk.bytes())?;
        Ok(Some(Allocation { buffer, reservation }))
    }

    /// Returns how many bytes are held.
    pub(super) fn in_use(&self) -> u64 {
        self.state.lock().used
    }

    /// Returns why nothing of `needed` bytes can be had while all who hold memory hold it.
    pub(super) fn exhausted(&self, needed: u64) -> Error {
        let state = self.state.lock();
        let free = Bytes(self.budget - state.used);
        let held: Vec<_> = state.held.values().take(NAMED).cloned().collect();
        drop(state);
        let holders = held.iter().map(|c| format!("{} ({})", c.key_text(), Bytes(c.bytes())));
        Error::BudgetExhausted {
            tier: Tier::Device(self.device.id()),
            budget: Bytes(self.budget),
            needed: Bytes(needed),
            free,
            largest_run: free,
            holders: holders.collect(),
        }
    }

    /// Returns whether the end of a lease is on its way.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst) > 0
    }

    pub(super) fn ending(self: &Arc<Self>) -> Ending {
        self.ending.fetch_add(1, Ordering::SeqCst);
        Ending(Arc::clone(self))
    }

    /// Says whether somebody waits for memory.
    pub(super) fn set_starving(&self, starving: bool) {
        self.starving.store(starving, Ordering::SeqCst);
    }

    /// Memory came back, or may be taken from now on.
    pub(super) fn came_back(&self) {
        if self.starving.load(Ordering::SeqCst) {
            let _ = self.inbox.send(Msg::Freed);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        state.used -= self.bytes;
        let chunk = state.held.remove(&self.id);
        drop(state);
        drop(chunk);
        self.memory.came_back();
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ending.fetch_sub(1, Ordering::SeqCst);
        self.0.came_back();
    }
}
