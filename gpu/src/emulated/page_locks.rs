//! What host memory an emulated device has page-locked: whole pages, none of them twice.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::page_lock::{HostMemory, PageLock};

use super::Emulated;

const PAGE_BYTES: usize = 4096;

/// The table of an emulated device; its locks keep it.
pub(super) struct PageLocks {
    limit_bytes: u64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By their first address; no two overlap.
    ranges: BTreeMap<usize, (usize, Weak<Locked>)>,
    bytes: u64,
}

/// Whole pages that are locked, until nothing uses them as such.
pub(super) struct Locked {
    owner: Arc<PageLocks>,
    pages: Range<usize>,
    _memory: Arc<dyn HostMemory>,
}

impl PageLocks {
    pub(super) fn new(limit_bytes: u64) -> Self {
        PageLocks { limit_bytes, table: Mutex::default() }
    }

    /// Returns how much is locked, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.table.lock().bytes
    }

    /// Locks the pages of `memory`.
    ///
    /// # Errors
    /// [`Error::AlreadyLocked`], [`Error::LockRefused`].
    pub(super) fn lock(self: &Arc<Self>, memory: Arc<dyn HostMemory>) -> Result<PageLock> {
        let pages = pages_of(memory.start().addr(), memory.bytes());
        let bytes = pages.len() as u64;
        let mut table = self.table.lock();
        if !pages.is_empty() && table.overlapping(&pages).next().is_some() {
            return Err(Error::AlreadyLocked { device: Emulated::ID, bytes });
        }
        if bytes > self.limit_bytes.saturating_sub(table.bytes) {
            return Err(Error::LockRefused {
                device: Emulated::ID,
                bytes,
                locked_bytes: table.bytes,
                limit_bytes: Some(self.limit_bytes),
                why: String::from("no more is allowed"),
            });
        }
        let locked =
            Arc::new(Locked { owner: Arc::clone(self), pages: pages.clone(), _memory: memory });
        if !pages.is_empty() {
            table.bytes += bytes;
            table.ranges.insert(pages.start, (pages.end, Arc::downgrade(&locked)));
        }
        Ok(PageLock { device: Emulated::ID, bytes, _locked: locked })
    }

    /// Returns what a copy of `memory` must keep locked until it is done, and how many bytes of it are
    /// not locked.
    pub(super) fn under(&self, memory: &[u8]) -> (Vec<Arc<Locked>>, u64) {
        let range = memory.as_ptr().addr()..memory.as_ptr().addr() + memory.len();
        let table = self.table.lock();
        let held: Vec<_> = table.overlapping(&range).filter_map(Weak::upgrade).collect();
        drop(table);
        let within = |locked: &Arc<Locked>| {
            locked.pages.end.min(range.end) - locked.pages.start.max(range.start)
        };
        let locked_bytes: usize = held.iter().map(within).sum();
        let unlocked_bytes = (memory.len() - locked_bytes) as u64;
        (held, unlocked_bytes)
    }
}

impl Table {
    fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = &Weak<Locked>> {
        let (start, end) = (range.start, range.end.max(range.start));
        let before = self.ranges.range(..start).next_back();
        let touches = move |(at, (until, _)): &(&usize, &(usize, _))| *until > start && **at < end;
        before.into_iter().chain(self.ranges.range(start..end)).filter(touches).map(|(_, (_, l))| l)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let mut table = self.owner.table.lock();
        if table.ranges.remove(&self.pages.start).is_some() {
            table.bytes -= self.pages.len() as u64;
        }
    }
}

/// Returns the addresses of all pages that hold some of so many bytes.
fn pages_of(address: usize, bytes: usize) -> Range<usize> {
    if bytes == 0 {
        return address..address;
    }
    let end = address.saturating_add(bytes).checked_next_multiple_of(PAGE_BYTES);
    address / PAGE_BYTES * PAGE_BYTES..end.unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_lock::Forever;

    fn leaked() -> &'static mut [u8] {
        let memory: &'static mut [u8] = vec![0; 8 * PAGE_BYTES].leak();
        let skip = memory.as_ptr().align_offset(PAGE_BYTES);
        &mut memory[skip..]
    }

    fn lock(
        locks: &Arc<PageLocks>,
        memory: &&'static mut [u8],
        range: Range<usize>,
    ) -> Result<PageLock> {
        locks.lock(Arc::new(Forever::part(memory, range)))
    }

    #[test]
    fn pages_are_locked_whole_and_once() {
        let (memory, locks) = (leaked(), Arc::new(PageLocks::new(u64::MAX)));
        let lock = |range| lock(&locks, &memory, range);
        let middle = lock(5000..9000).unwrap();
        assert_eq!((middle.bytes(), locks.bytes()), (8192, 8192));
        let refused = Error::AlreadyLocked { device: Emulated::ID, bytes: 4096 };
        for byte in [4096, 8191, 8192, 12_287] {
            assert_eq!(lock(byte..byte + 1).unwrap_err(), refused);
        }
        assert!(lock(0..20_000).is_err(), "some of it is locked");
        let (before, behind) = (lock(4095..4096).unwrap(), lock(12_288..12_289).unwrap());
        let empty = lock(6000..6000).unwrap();
        assert_eq!((empty.bytes(), locks.bytes()), (0, 16_384));
        drop((empty, middle));
        assert_eq!(locks.bytes(), 8192);
        drop(lock(4096..12_288).unwrap());
        drop((before, behind));
        assert_eq!(locks.bytes(), 0);
    }

    #[test]
    fn the_limit_is_of_all_that_is_locked() {
        let (memory, locks) = (leaked(), Arc::new(PageLocks::new(3 * 4096)));
        let first = lock(&locks, &memory, 0..8192).unwrap();
        let refused = lock(&locks, &memory, 8192..16_384).unwrap_err();
        let Error::LockRefused { bytes, locked_bytes, limit_bytes, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!((bytes, locked_bytes, limit_bytes), (8192, 8192, Some(12_288)));
        drop(first);
        assert_eq!(lock(&locks, &memory, 8192..16_384).unwrap().bytes(), 8192);
    }

    #[test]
    fn a_copy_knows_what_of_its_memory_is_locked() {
        let (memory, locks) = (leaked(), Arc::new(PageLocks::new(u64::MAX)));
        let (first, second) =
            (lock(&locks, &memory, 4096..8192), lock(&locks, &memory, 8192..9000));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(locks.under(&memory[..4096]).1, 4096);
        assert_eq!(locks.under(&memory[5000..6000]).1, 0);
        assert_eq!(locks.under(&memory[12_288..12_288]).1, 0);
        let (held, unlocked) = locks.under(&memory[4000..13_000]);
        assert_eq!((held.len(), unlocked), (2, 96 + 13_000 - 12_288));
        drop((first, second));
        assert_eq!(locks.bytes(), 8192, "the copy is not done");
        drop(held);
        assert_eq!(locks.bytes(), 0);
    }
}
