//! Page-locking the host arena for a device, piece by piece, so that copies reach it at full speed. What
//! the device refuses is copied as well, only slower.

use std::sync::{Arc, Weak};

use tensortier_gpu::{Device, PageLock};

use crate::arena::Arena;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The locks of all devices that are attached to a store.
#[derive(Default)]
pub(crate) struct PageLockTable(Mutex<Vec<Weak<PageLocks>>>);

/// What of an arena is locked for one device; tiers on the same device share it.
pub(super) struct PageLocks {
    device: Arc<dyn Device>,
    arena: Arena,
    /// Held while the device locks and unlocks; nothing else waits for it.
    state: Mutex<State>,
    locked_bytes: AtomicU64,
    refused: Mutex<Option<tensortier_gpu::Error>>,
}

#[derive(Default)]
struct State {
    users: usize,
    /// All of the arena before this was given to the device to lock, in bytes.
    seen: u64,
    locks: Vec<PageLock>,
}

/// A tier that needs the locks; when the last of them is dropped, the memory is unlocked.
pub(super) struct PageLocksUser(Arc<PageLocks>);

impl PageLockTable {
    /// Returns the locks of the arena for a device, none so far if it is not attached yet.
    pub(super) fn of(&self, device: &Arc<dyn Device>, arena: &Arena) -> Arc<PageLocks> {
        let mut table = self.0.lock();
        table.retain(|locks| locks.strong_count() > 0);
        let mut known = table.iter().filter_map(Weak::upgrade);
        if let Some(locks) = known.find(|locks| Arc::ptr_eq(&locks.device, device)) {
            return locks;
        }
        let locks = Arc::new(PageLocks {
            device: Arc::clone(device),
            arena: arena.clone(),
            state: Mutex::default(),
            locked_bytes: AtomicU64::new(0),
            refused: Mutex::default(),
        });
        table.push(Arc::downgrade(&locks));
        locks
    }
}

impl std::fmt::Debug for PageLockTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageLockTable")
    }
}

impl PageLocks {
    /// Locks what is committed, for as long as what it returns is kept.
    pub(super) fn enter(self: &Arc<Self>) -> PageLocksUser {
        self.state.lock().users += 1;
        let user = PageLocksUser(Arc::clone(self));
        user.lock_committed();
        user
    }

    /// Returns how much is locked, in bytes.
    pub(super) fn locked_bytes(&self) -> u64 {
        self.locked_bytes.load(Ordering::Relaxed)
    }

    /// Returns why the device would not lock a piece, the first time that it would not.
    pub(super) fn refused(&self) -> Option<tensortier_gpu::Error> {
        self.refused.lock().clone()
    }

    fn refuse(&self, error: tensortier_gpu::Error) {
        let mut refused = self.refused.lock();
        if refused.is_none() {
            tracing::warn!("host memory is not page-locked for a device: {error}");
            *refused = Some(error);
        }
    }
}

impl PageLocksUser {
    /// Locks what was committed since the last look. A piece that is refused is not tried again.
    pub(super) fn lock_committed(&self) {
        let PageLocks { device, arena, state, locked_bytes, .. } = &*self.0;
        let mut state = state.lock();
        for piece in arena.pieces_from(state.seen) {
            state.seen = piece.end();
            match device.page_lock(Arc::new(piece)) {
                Ok(lock) => {
                    locked_bytes.fetch_add(lock.bytes(), Ordering::Relaxed);
                    state.locks.push(lock);
                }
                Err(error) => self.0.refuse(error),
            }
        }
    }
}

impl Drop for PageLocksUser {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.users -= 1;
        if state.users == 0 {
            // Under the lock, so that who enters next finds them unlocked.
            *state = State::default();
            self.0.locked_bytes.store(0, Ordering::Relaxed);
            *self.0.refused.lock() = None;
        }
    }
}
