//! A lock for what many threads read and few change.

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use std::sync::PoisonError;

/// As `RwLock`, but readers on different threads have no line of memory in common, which would go to
/// and fro between their processors; a writer takes as many locks as there are shards.
#[derive(Debug)]
pub(crate) struct Sharded<T>(ShardedLock<T>);

impl<T> Sharded<T> {
    pub(crate) fn new(value: T) -> Self {
        Sharded(ShardedLock::new(value))
    }

    pub(crate) fn read(&self) -> ShardedLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> ShardedLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
