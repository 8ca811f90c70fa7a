//! Locks and atomics of the store, named in one place so that a model checker can replace them.

#[allow(unused_imports)]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
