//! Locks, atomics, channels and threads of the store, named in one place so that a model checker can
//! replace them, and the slices threads run in.

#[cfg(not(all(test, model)))]
mod sharded;
pub(crate) mod slice;

#[cfg(all(test, model))]
mod checked;
#[cfg(all(test, model))]
pub(crate) use checked::*;

#[cfg(not(all(test, model)))]
#[allow(unused_imports)]
mod native {
    pub(crate) use crate::sync::sharded::Sharded;
    pub(crate) use crossbeam_channel as channel;
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(crate) use std::{thread, thread_local};
}
#[cfg(not(all(test, model)))]
#[allow(unused_imports)]
pub(crate) use native::*;
