//! A tier of device memory above the host: leases on a device, each made of a lease on the host and a
//! copy. One thread per tier decides; it queues copies on two streams, one each way, and never waits
//! for one.
//!
//! The host's leases make it sound. A copy to the device is made under a lease on the host, so it is
//! one version whole. An exclusive lease on the device holds the exclusive lease on the host until its
//! bytes were copied back, so that the host never misses a version. A copy that is not leased is served
//! again only while its version is the newest.

mod ahead;
mod back;
mod copies;
mod fetch;
mod lease;
mod memory;
mod page_locks;
mod pieces;
mod room;
mod run;
mod under_way;
mod worker;

use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};

use tensortier_gpu::{Device, DeviceId};

use crate::catalog::ChunkRef;
use crate::error::{Error, Result};
use crate::id::Tier;
use crate::metrics::{DeviceCounterValues, DeviceCounters};
use crate::mover::{self, Handle};
use crate::sync::Mutex;
use crate::sync::channel::{self, Sender};
use crate::sync::thread::{self, JoinHandle};
use crate::ticket::{Completer, Ticket, ticket};
use crate::units::Bytes;

use copies::Copies;
use lease::Ended;
pub use lease::{DeviceReadLease, DeviceWriteLease};
use memory::Memory;
pub(crate) use page_locks::PageLockTable;
use page_locks::PageLocks;
use worker::Worker;

/// What the tier's thread is told.
enum Msg {
    /// A shared lease waits for a copy.
    Read { chunk: ChunkRef, reply: Completer<DeviceReadLease> },
    /// An exclusive lease waits for the host and a copy.
    Write { chunk: ChunkRef, reply: Completer<DeviceWriteLease> },
    /// Somebody no longer waits.
    Abandoned,
    /// These chunks will be wanted on the device.
    Prefetch(Vec<ChunkRef>),
    /// The host has an answer for a fetch.
    Host(u64),
    /// A piece of a fetch was copied, or not.
    Piece { fetch: u64, result: tensortier_gpu::Result<()> },
    /// An exclusive lease ended and the caller's work on the buffer is done, or lost.
    Ended { ended: Ended, result: tensortier_gpu::Result<()> },
    /// A copy back to the host was made, or not.
    Back { back: u64, result: tensortier_gpu::Result<()> },
    /// Memory came back while somebody waits for it.
    Freed,
    /// Finish the copies under way and end; answered with whether they ended by the deadline.
    Close { deadline: Option<Instant>, reply: Completer<bool> },
}

/// What the tier's thread, its callers and its leases share.
struct Shared {
    memory: Arc<Memory>,
    /// Locked before a chunk's cell, never across a call of the device.
    copies: Mutex<Copies>,
    page_locks: Arc<PageLocks>,
    counters: DeviceCounters,
    host: Handle,
    inbox: Sender<Msg>,
}

/// One device's memory as a tier of a store.
pub(crate) struct DeviceCache {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a device holds and what moved to and from it, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceUse {
    /// The device.
    pub device: DeviceId,
    /// The name by which it is asked for.
    pub name: String,
    /// The strict budget, in bytes.
    pub budget: u64,
    /// What copies and leases hold, in bytes.
    pub in_use: u64,
    /// How much of the host's arena is page-locked for the device, in bytes.
    pub host_locked: u64,
    /// Why not all of it is, if the device refused some.
    pub host_unlocked: Option<tensortier_gpu::Error>,
    /// What moved and what was spared since it was attached.
    pub counters: DeviceCounterValues,
}

/// Wakes the thread for a fetch that waits for the host.
struct HostAnswers {
    inbox: Sender<Msg>,
    fetch: u64,
}

impl Wake for HostAnswers {
    fn wake(self: Arc<Self>) {
        let _ = self.inbox.send(Msg::Host(self.fetch));
    }
}

impl Shared {
    /// Sends a message; after the end it goes nowhere, and whoever waits for its answer gets
    /// [`Error::Closed`].
    fn send(&self, msg: Msg) {
        let _ = self.inbox.send(msg);
    }
}

impl DeviceCache {
    /// Page-locks the host's arena for the device, opens two streams and starts the thread.
    ///
    /// # Errors
    /// [`Error::Config`] for a budget of nothing or of more than the device has,
    /// [`Error::DeviceUnusable`], [`Error::System`].
    pub(crate) fn start(
        device: Arc<dyn Device>,
        budget: u64,
        host: Handle,
        page_locks: &PageLockTable,
    ) -> Result<Self> {
        let total = device.memory().total_bytes;
        if budget == 0 || budget > total {
            return Err(Error::Config {
                what: format!("budget of {} on device {}", Bytes(budget), device.name()),
                why: format!("give more than nothing and at most the device's {}", Bytes(total)),
            });
        }
        let stream = || {
            device.open_stream().map_err(|source| Error::DeviceUnusable {
                device: device.name().to_owned(),
                attempted: "open a stream",
                source: Box::new(source),
            })
        };
        let streams = (stream()?, stream()?);
        let page_locks = page_locks.of(&device, &host.shared.arena);
        let locked = page_locks.enter();
        let (inbox, messages) = channel::unbounded();
        let shared = Arc::new(Shared {
            memory: Arc::new(Memory::new(device, budget, inbox.clone())),
            copies: Mutex::new(Copies::new()),
            page_locks,
            counters: DeviceCounters::default(),
            host,
            inbox,
        });
        let worker = Worker::new(Arc::clone(&shared), messages, streams, locked);
        let thread = thread::Builder::new()
            .name(String::from("tensortier-device"))
            .spawn(move || worker.run())
            .map_err(|error| mover::refuse_thread(&error))?;
        Ok(DeviceCache { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.shared.memory.device
    }

    pub(crate) fn lease_read(&self, chunk: &ChunkRef) -> Ticket<DeviceReadLease> {
        let mut copies = self.shared.copies.lock();
        if copies.is_closed() {
            return Ticket::answered(Err(Error::Closed));
        }
        let copy = copies.lease(chunk);
        drop(copies);
        if let Some(copy) = copy {
            self.shared.counters.hits.add(1);
            let lease = DeviceReadLease::new(Arc::clone(&self.shared), copy);
            return Ticket::answered(Ok(lease));
        }
        self.ask(chunk, |chunk, reply| Msg::Read { chunk, reply })
    }

    pub(crate) fn lease_write(&self, chunk: &ChunkRef) -> Ticket<DeviceWriteLease> {
        self.ask(chunk, |chunk, reply| Msg::Write { chunk, reply })
    }

    fn ask<L>(
        &self,
        chunk: &ChunkRef,
        msg: impl FnOnce(ChunkRef, Completer<L>) -> Msg,
    ) -> Ticket<L> {
        let (budget, needed) = (Bytes(self.shared.memory.budget), Bytes(chunk.bytes()));
        if needed > budget {
            let tier = Tier::Device(self.device().id());
            return Ticket::answered(Err(Error::BudgetTooSmall { tier, budget, needed }));
        }
        let (reply, ticket) = ticket();
        let shared = Arc::downgrade(&self.shared);
        ticket.on_abandon(move || {
            if let Some(shared) = shared.upgrade() {
                shared.send(Msg::Abandoned);
            }
        });
        self.shared.send(msg(chunk.clone(), reply));
        ticket
    }

    pub(crate) fn prefetch(&self, chunks: Vec<ChunkRef>) {
        self.shared.send(Msg::Prefetch(chunks));
    }

    pub(crate) fn usage(&self) -> DeviceUse {
        let Shared { memory, page_locks, counters, .. } = &*self.shared;
        DeviceUse {
            device: memory.device.id(),
            name: memory.device.name().to_owned(),
            budget: memory.budget,
            in_use: memory.in_use(),
            host_locked: page_locks.locked_bytes(),
            host_unlocked: page_locks.refused(),
            counters: counters.read(),
        }
    }

    /// Returns whether its thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.lock().as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Begins the end: what waits gets [`Error::Closed`], copies under way go on. The ticket is
    /// answered within `grace`, with whether they all ended; at once on the tier's own thread.
    pub(crate) fn close(&self, grace: Duration) -> Ticket<bool> {
        let (reply, ticket) = ticket();
        let deadline = Instant::now().checked_add(grace);
        // Before the host ends: what it refuses from then on, it refuses because of that.
        let copies = self.shared.copies.lock().close();
        drop(copies);
        self.shared.send(Msg::Close { deadline, reply });
        let own = self.thread.lock().as_ref().map(|thread| thread.thread().id());
        if own == Some(thread::current().id()) { Ticket::answered(Ok(false)) } else { ticket }
    }
}

impl std::fmt::Debug for DeviceCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.usage().fmt(f)
    }
}
