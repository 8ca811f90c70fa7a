//! The same names over a model checker, which picks who goes on at each of their calls.
//!
//! It has no time: a wait with a limit ends at any moment, by a wake-up or because it is over. What
//! counts without them (`Arc`) is no place where another thread goes on.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

pub(crate) mod channel;
mod schedules;
pub(crate) mod thread;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use shuttle::rand::Rng;
use shuttle::sync as shuttle_sync;

pub(crate) use schedules::{any_of, check};
pub(crate) use shuttle::thread_local;
pub(crate) use shuttle_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Returns what a wait with a limit came to.
pub(crate) fn is_over() -> bool {
    shuttle::rand::thread_rng().gen_bool(0.5)
}

/// As `parking_lot::Mutex`.
#[derive(Default)]
pub(crate) struct Mutex<T>(shuttle_sync::Mutex<T>);

/// As `parking_lot::MutexGuard`. Empty only inside a wait.
pub(crate) struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    held: Option<shuttle_sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(shuttle_sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { of: self, held: Some(self.take()) }
    }

    fn take(&self) -> shuttle_sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().unwrap()
    }
}

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle_sync::Condvar);

/// As `parking_lot::WaitTimeoutResult`.
pub(crate) struct Waited(bool);

impl Waited {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Condvar(shuttle_sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().unwrap();
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _until: Instant) -> Waited {
        drop(guard.held.take());
        shuttle::thread::yield_now();
        guard.held = Some(guard.of.take());
        Waited(is_over())
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) -> Waited {
        self.wait_until(guard, Instant::now())
    }

    pub(crate) fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> Waited {
        while condition(guard) {
            if self.wait_for(guard, limit).timed_out() {
                return Waited(condition(guard));
            }
        }
        Waited(false)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// As the lock of shards, which is one to whoever uses it.
pub(crate) type Sharded<T> = RwLock<T>;

/// As `parking_lot::RwLock`.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle_sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        RwLock(shuttle_sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> shuttle_sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> shuttle_sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
