//! The mover: the one thread that finds memory, loads, writes back and evicts. Everybody else only
//! sends it messages; what is in memory already is leased without it.

mod ahead;
mod compact;
mod declared;
mod flush;
mod health;
mod hold;
mod lend;
mod load;
mod loading;
mod pack;
mod quarantine;
mod retreat;
mod room;
mod run;
mod schedules;
mod settle;
mod state;
mod transfers;
mod want;
mod worker;
mod writeback;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::arena::{Arena, FrameMut, FrameRef};
use crate::catalog::{ChunkRef, Object};
use crate::clock::Clock;
use crate::codec::{Compression, Form, Trial};
use crate::error::{Errno, Error, Result};
use crate::evict::EvictionPolicy;
use crate::id::{PathId, ScheduleId};
use crate::metrics::{Counter, CounterValues, Counters};
use crate::path::{CloseError, PathEvent, PathSet, PathStore, TransferError};
use crate::placement::Placement;
use crate::sync::channel::{self, Sender};
use crate::sync::slice;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::ticket::Completer;

pub(crate) use hold::Hold;
pub(crate) use lend::Lent;
use loading::Loading;
use state::Mover;
use transfers::TransferId;

/// What the mover is told.
pub(crate) enum Msg {
    /// A lease waits for a chunk that is not in memory.
    Load(Loading),
    /// A caller wants a frame of its own for new contents, of which `rest` bytes more follow.
    Frame { bytes: u64, rest: u64, reply: Completer<Lent> },
    /// A lent frame now belongs to this chunk.
    Adopt(ChunkRef),
    /// A lent frame was dropped.
    GivenBack,
    /// These chunks will be wanted, as was said at that moment.
    Prefetch { chunks: Vec<ChunkRef>, said: u64 },
    /// These chunks shall leave memory.
    Evict { chunks: Vec<ChunkRef>, reply: Completer<()> },
    /// Everything written so far shall be on a path.
    Flush { reply: Completer<()> },
    /// The object was unlinked from its key.
    Delete(Arc<Object>),
    /// The coming accesses; answered when they are in force.
    Declare {
        id: ScheduleId,
        this: Vec<ChunkRef>,
        next: Vec<ChunkRef>,
        reserve: u64,
        read_ahead: Option<u32>,
        reply: Completer<()>,
    },
    /// The declared accesses no longer hold.
    EndSchedule(ScheduleId),
    /// An exclusive lease ended while a schedule was in force.
    Released(ChunkRef),
    /// A lease ended and left a write-back queued.
    WriteBack(ChunkRef),
    /// A lease ended and its frame was dropped.
    Left(ChunkRef),
    /// Memory came back, or a lease ended, while somebody waits for memory; or metadata needs some.
    Freed,
    /// A path answered a read.
    Read { transfer: TransferId, result: Result<(), TransferError> },
    /// A loaded frame was checked, or a fresh one zeroed.
    Filled { chunk: ChunkRef, result: Result<FrameMut> },
    /// Compressing a chunk to be written seems to pay; it wants memory for its stored bytes.
    Pays { sealed: Sealed, frame: FrameRef, trial: Trial },
    /// The stored bytes of a chunk to be written are known.
    Sealed { sealed: Sealed },
    /// The checksums of a chunk that is being written are known.
    Summed(ChunkRef),
    /// A path answered a write.
    Wrote { transfer: TransferId, result: Result<(), Errno> },
    /// A path hangs, or answers again.
    Path { path: PathId, event: PathEvent },
    /// A path joins the store.
    AddPath { store: Arc<dyn PathStore>, takes_writes: bool, reply: Completer<PathId> },
    /// A path takes writes from now on, or no longer.
    TakeWrites { path: PathId, takes_writes: bool, reply: Completer<()> },
    /// Answered when all messages before it have been acted on.
    Barrier { reply: Completer<()> },
    /// Finish what is under way within `grace` and end.
    Close { grace: Duration, reply: Completer<Vec<(PathId, CloseError)>> },
}

/// A chunk on its way to a path.
#[derive(Debug)]
pub(crate) struct Sealed {
    chunk: ChunkRef,
    /// Set once the checksums are known, which may be while the chunk is being written.
    form: Arc<OnceLock<Form>>,
    /// A worker was told to take the checksums.
    summing: bool,
    /// Its stored bytes, if they are others than those in memory.
    packed: Option<FrameRef>,
    /// Memory counted as coming because it is held for the stored bytes.
    held_bytes: u64,
    /// Paths that refused it and why.
    tried: Vec<(PathId, Errno)>,
}

/// What the mover and everybody else share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) arena: Arena,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) paths: PathSet,
    pub(crate) placement: Placement,
    pub(crate) checksums: bool,
    pub(crate) compression: Compression,
    /// Memory set aside for the stored bytes of compressed chunks.
    pub(crate) packing: Option<Arena>,
    /// Memory of transfers that a path does not answer, in bytes.
    pub(crate) quarantined_bytes: AtomicU64,
    /// Set while a schedule is in force: then the end of an exclusive lease is worth a message.
    scheduled: AtomicBool,
    /// Set while somebody waits for memory: then the end of any lease is worth a message.
    starving: AtomicBool,
    /// Set before the mover answers all who wait for the last time: later nobody may begin to wait.
    ended: AtomicBool,
}

/// How many lanes a handle has; threads beyond that share them.
const LANES: usize = 16;

/// A way to reach the mover; clones are cheap.
#[derive(Clone)]
pub(crate) struct Handle {
    lanes: Arc<[Arc<Lane>]>,
}

/// The way of some threads. Each lease has a hold on one and counts in it: if all shared one, the
/// line of memory with those counts would go to and fro between the threads' processors.
#[repr(align(128))]
pub(crate) struct Lane {
    inbox: Sender<Msg>,
    pub(crate) shared: Arc<Shared>,
    /// Leases granted at once.
    hits: Counter,
}

thread_local! {
    /// The number of this thread among those that ever took a lease.
    static NUMBER: usize = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) as usize
    };
}

impl Deref for Handle {
    type Target = Lane;
    fn deref(&self) -> &Lane {
        &self.lanes[0]
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl fmt::Debug for Lane {
    /// Writes its name alone: every lease has one, and what it leads to fills a page.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lane")
    }
}

impl Handle {
    /// Returns the lane of this thread.
    fn lane(&self) -> &Arc<Lane> {
        // At the end of a thread, when its number is gone, any will do.
        &self.lanes[NUMBER.try_with(|number| number % LANES).unwrap_or(0)]
    }

    /// Reads all counters.
    pub(crate) fn counters(&self) -> CounterValues {
        let mut values = self.shared.counters.read();
        values.hits += self.lanes.iter().map(|lane| lane.hits.get()).sum::<u64>();
        values
    }
}

impl Lane {
    /// Sends a message; after close it goes nowhere, and whoever waits for its answer gets
    /// [`Error::Closed`].
    pub(crate) fn send(&self, msg: Msg) {
        let _ = self.inbox.send(msg);
    }

    /// Says that chunks will be wanted.
    pub(crate) fn prefetch(&self, chunks: Vec<ChunkRef>) {
        let said = self.stamp();
        self.send(Msg::Prefetch { chunks, said });
    }

    /// Returns the present moment in nanoseconds, later than any that was returned before it was
    /// asked for.
    fn stamp(&self) -> u64 {
        self.shared.clock.stamp()
    }
}

/// What a mover works with.
pub(crate) struct Settings {
    pub(crate) arena: Arena,
    pub(crate) paths: Vec<Arc<dyn PathStore>>,
    pub(crate) placement: Placement,
    pub(crate) checksums: bool,
    pub(crate) compression: Compression,
    /// Memory set aside for the stored bytes of compressed chunks.
    pub(crate) packing: Option<Arena>,
    pub(crate) policy: Box<dyn EvictionPolicy>,
    /// How long a demand waits when only leases hold memory.
    pub(crate) patience: Duration,
    pub(crate) clock: Clock,
}

/// Starts the mover's thread.
///
/// # Errors
/// [`Error::System`] when the system refuses a thread.
pub(crate) fn start(settings: Settings) -> Result<(Handle, JoinHandle<()>)> {
    let (inbox, messages) = channel::unbounded();
    let Settings { policy, patience, .. } = settings;
    let shared = Arc::new(Shared {
        arena: settings.arena,
        counters: Counters::default(),
        clock: settings.clock,
        paths: PathSet::new(settings.paths),
        placement: settings.placement,
        checksums: settings.checksums,
        compression: settings.compression,
        packing: settings.packing,
        quarantined_bytes: AtomicU64::new(0),
        scheduled: AtomicBool::new(false),
        starving: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let freed = inbox.clone();
    shared.arena.on_freed(move || {
        let _ = freed.send(Msg::Freed);
    });
    // A clock that is moved by hand says so.
    let moved = inbox.clone();
    shared.clock.on_advance(move || moved.send(Msg::Freed).is_ok());
    let lane = |_| {
        let (inbox, shared) = (inbox.clone(), Arc::clone(&shared));
        Arc::new(Lane { inbox, shared, hits: Counter::default() })
    };
    let handle = Handle { lanes: (0..LANES).map(lane).collect() };
    let workers = worker::start(&handle)?;
    let mover = Mover::new(handle.clone(), messages, workers, policy, patience);
    let thread = thread::Builder::new()
        .name(String::from("tensortier-mover"))
        .spawn(move || {
            slice::shorten();
            mover.run();
        })
        .map_err(|error| refuse_thread(&error))?;
    Ok((handle, thread))
}

/// Returns the error that says that the system refused a thread.
pub(crate) fn refuse_thread(error: &std::io::Error) -> Error {
    Error::System {
        attempted: String::from("start a thread of the store"),
        source: error.into(),
        remedy: String::from("raise the limit on threads (ulimit -u)"),
    }
}
