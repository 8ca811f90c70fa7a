//! The copies of chunks that are on a device: which are still the newest, which are leased, and which
//! leaves first.

use std::collections::HashMap;
use std::sync::Arc;

use crate::catalog::ChunkRef;
use crate::id::{ChunkId, Version};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

use super::memory::Allocation;

/// One version of a chunk on the device; it never changes.
pub(super) struct Copy {
    pub(super) chunk: ChunkRef,
    pub(super) version: Version,
    pub(super) allocation: Allocation,
    /// How many leases hold it; changed under the lock of the table.
    readers: AtomicU64,
    /// On the tier's own count of leases.
    last_use: AtomicU64,
    /// Set while a prefetch brought it and nobody has leased it yet.
    awaited: AtomicBool,
}

/// The copies that may be leased, one per chunk.
pub(super) struct Copies {
    by_chunk: HashMap<ChunkId, Arc<Copy>>,
    leases: u64,
    closed: bool,
}

impl Copy {
    pub(super) fn new(
        chunk: ChunkRef,
        version: Version,
        allocation: Allocation,
        awaited: bool,
    ) -> Self {
        let (readers, last_use) = (AtomicU64::new(0), AtomicU64::new(0));
        Copy { chunk, version, allocation, readers, last_use, awaited: AtomicBool::new(awaited) }
    }

    /// Returns whether it is what a lease on the host would show now.
    fn is_newest(&self) -> bool {
        let residency = &self.chunk.cell.lock().residency;
        !residency.deleted && !residency.writer && residency.newest == self.version
    }
}

impl Copies {
    pub(super) fn new() -> Self {
        Copies { by_chunk: HashMap::new(), leases: 0, closed: false }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the copy of a chunk, if it is the newest version.
    pub(super) fn newest(&self, chunk: &ChunkRef) -> Option<Arc<Copy>> {
        self.by_chunk.get(&chunk.id()).filter(|copy| copy.is_newest()).cloned()
    }

    /// As [`Copies::newest`], for a lease.
    pub(super) fn lease(&mut self, chunk: &ChunkRef) -> Option<Arc<Copy>> {
        let copy = self.newest(chunk)?;
        self.lease_copy(&copy);
        Some(copy)
    }

    /// Says that a lease of a copy will come; returns whether the copy is the newest version.
    pub(super) fn expect(&mut self, chunk: &ChunkRef) -> bool {
        let Some(copy) = self.newest(chunk) else { return false };
        self.leases += 1;
        copy.last_use.store(self.leases, Ordering::Relaxed);
        copy.awaited.store(true, Ordering::Relaxed);
        true
    }

    /// Counts a lease of a copy.
    pub(super) fn lease_copy(&mut self, copy: &Copy) {
        self.leases += 1;
        copy.readers.fetch_add(1, Ordering::Relaxed);
        copy.last_use.store(self.leases, Ordering::Relaxed);
        copy.awaited.store(false, Ordering::Relaxed);
    }

    /// A lease of a copy ended.
    pub(super) fn unlease(&mut self, copy: &Copy) {
        copy.readers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps a copy for later leases. Returns it, and the older one it replaces.
    pub(super) fn keep(&mut self, copy: Copy) -> (Arc<Copy>, Option<Arc<Copy>>) {
        self.leases += 1;
        copy.last_use.store(self.leases, Ordering::Relaxed);
        let copy = Arc::new(copy);
        let replaced = if self.closed {
            None
        } else {
            self.by_chunk.insert(copy.chunk.id(), Arc::clone(&copy))
        };
        (copy, replaced)
    }

    /// Takes the copy of a chunk out; leases of it keep it.
    pub(super) fn take(&mut self, chunk: ChunkId) -> Option<Arc<Copy>> {
        self.by_chunk.remove(&chunk)
    }

    /// Takes out the least recently used copy that no lease holds; `awaited` says whether it may be
    /// one that a prefetch brought for a lease still to come.
    pub(super) fn take_oldest(&mut self, awaited: bool) -> Option<Arc<Copy>> {
        let oldest =
            self.unleased(awaited).min_by_key(|copy| copy.last_use.load(Ordering::Relaxed));
        let id = oldest?.chunk.id();
        self.by_chunk.remove(&id)
    }

    /// Returns how many bytes the copies hold that [`Copies::take_oldest`] could take out.
    pub(super) fn unleased_bytes(&self, awaited: bool) -> u64 {
        self.unleased(awaited).map(|copy| copy.chunk.bytes()).sum()
    }

    fn unleased(&self, awaited: bool) -> impl Iterator<Item = &Arc<Copy>> {
        let free = |copy: &&Arc<Copy>| copy.readers.load(Ordering::Relaxed) == 0;
        let all = self.by_chunk.values().filter(free);
        all.filter(move |copy| awaited || !copy.awaited.load(Ordering::Relaxed))
    }

    /// Gives all copies up and takes none any more.
    pub(super) fn close(&mut self) -> Vec<Arc<Copy>> {
        self.closed = true;
        self.by_chunk.drain().map(|(_, copy)| copy).collect()
    }
}
