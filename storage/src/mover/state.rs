//! All that only the mover's thread touches; what it does with it stands in the files beside.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::catalog::ChunkRef;
use crate::codec::Scratch;
use crate::error::Error;
use crate::evict::EvictionPolicy;
use crate::id::{ChunkId, PathId};
use crate::path::{CloseError, PathStore};
use crate::placement::Placer;
use crate::sync::channel::{Receiver, Sender};
use crate::ticket::Completer;

use super::health::Health;
use super::schedules::Schedules;
use super::settle::Settle;
use super::transfers::Transfers;
use super::want::{Demand, Hint};
use super::worker::Job;
use super::{Handle, Msg, Sealed};

/// The mover.
pub(super) struct Mover {
    pub(super) handle: Handle,
    pub(super) messages: Receiver<Msg>,
    pub(super) workers: Sender<Job>,
    pub(super) scratch: Scratch,
    pub(super) policy: Box<dyn EvictionPolicy>,

    /// Chunks whose frame is in the arena.
    pub(super) resident: HashMap<ChunkId, Arc<ChunkRef>>,
    pub(super) demand: VecDeque<Demand>,
    /// How long a demand waits when only leases hold memory.
    pub(super) patience: Duration,
    /// When a demand that waits for leases is to be looked at again, on the store's clock.
    pub(super) look_again: Option<Duration>,
    pub(super) prefetch: VecDeque<Hint>,
    /// A prefetch is to have memory before new contents have it again.
    pub(super) prefetch_turn: bool,
    pub(super) schedules: Schedules,
    /// Frames that callers are filling to put them.
    pub(super) lent: usize,
    /// Chunks being read from a path or zeroed.
    pub(super) filling: usize,
    /// What paths have and what they do not answer.
    pub(super) transfers: Transfers,

    pub(super) to_write: VecDeque<ChunkRef>,
    pub(super) to_write_bytes: u64,
    /// The chunks in `to_write`.
    pub(super) queued: HashSet<ChunkId>,
    pub(super) sealed: VecDeque<Sealed>,
    /// Chunks at the workers to be sealed.
    pub(super) sealing: usize,
    /// Chunks being written by a path.
    pub(super) writing: usize,
    /// What will be free when the write-backs under way have ended, by chunk, in bytes of memory.
    pub(super) coming: HashMap<ChunkId, u64>,
    pub(super) coming_bytes: u64,
    pub(super) victims: Vec<Victim>,
    /// When frames are to be looked at again that lie where metadata has taken the memory, on the
    /// store's clock.
    pub(super) retreat_again: Option<Duration>,
    /// The system would not have memory back.
    pub(super) retreat_refused: bool,
    /// Whether a chunk came into memory since victims were looked for.
    pub(super) entered_since_look: bool,
    pub(super) placer: Placer,
    pub(super) health: Vec<Health>,
    /// Why the last chunk could be written nowhere.
    pub(super) no_space: Option<Error>,
    pub(super) settles: Vec<Settle>,

    pub(super) closing: Option<Closing>,
}

/// A close under way.
pub(super) struct Closing {
    /// `None` when the clock does not reach that far.
    pub(super) deadline: Option<Instant>,
    pub(super) grace: Duration,
    pub(super) reply: Completer<Vec<(PathId, CloseError)>>,
}

impl Closing {
    /// Returns how much of the grace is left.
    pub(super) fn left(&self) -> Duration {
        self.deadline
            .map_or(self.grace, |deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// A chunk that could leave, as it was when it was looked at.
pub(super) struct Victim {
    pub(super) rank: (bool, u64),
    pub(super) last_use: u64,
    pub(super) chunk: ChunkRef,
}

impl Victim {
    /// Returns by what victims are ordered; the highest leaves first.
    pub(super) fn order(&self) -> ((bool, u64), ChunkId) {
        (self.rank, self.chunk.id())
    }
}

impl Mover {
    pub(super) fn new(
        handle: Handle,
        messages: Receiver<Msg>,
        workers: Sender<Job>,
        policy: Box<dyn EvictionPolicy>,
        patience: Duration,
    ) -> Self {
        let (placement, paths) = (handle.shared.placement, handle.shared.paths.len());
        let mut mover = Mover {
            handle,
            messages,
            workers,
            scratch: Scratch::default(),
            policy,
            resident: HashMap::new(),
            demand: VecDeque::new(),
            patience,
            look_again: None,
            prefetch: VecDeque::new(),
            prefetch_turn: false,
            schedules: Schedules::default(),
            lent: 0,
            filling: 0,
            transfers: Transfers::default(),
            to_write: VecDeque::new(),
            to_write_bytes: 0,
            queued: HashSet::new(),
            sealed: VecDeque::new(),
            sealing: 0,
            writing: 0,
            coming: HashMap::new(),
            coming_bytes: 0,
            victims: Vec::new(),
            retreat_again: None,
            retreat_refused: false,
            entered_since_look: false,
            placer: Placer::new(placement, paths),
            health: vec![Health::default(); paths],
            no_space: None,
            settles: Vec::new(),
            closing: None,
        };
        for member in mover.handle.shared.paths.all() {
            mover.watch(member.id);
        }
        mover
    }

    /// Returns the time on the store's clock.
    pub(super) fn now(&self) -> Duration {
        self.handle.shared.clock.now()
    }

    pub(super) fn path(&self, id: PathId) -> Arc<dyn PathStore> {
        self.handle.shared.paths.get(id)
    }

    /// A path joins.
    pub(super) fn add_path(&mut self, store: Arc<dyn PathStore>, takes_writes: bool) -> PathId {
        self.health.push(Health { retired: !takes_writes, ..Health::default() });
        self.placer.add_path();
        if takes_writes {
            self.no_space = None;
        }
        let id = self.handle.shared.paths.add(store, takes_writes);
        self.watch(id);
        id
    }

    /// A path gets new bytes from now on, or no longer.
    pub(super) fn let_path_take_writes(&mut self, id: PathId, takes_writes: bool) {
        self.health[id.index()].retired = !takes_writes;
        self.handle.shared.paths.let_take_writes(id, takes_writes);
        if takes_writes {
            self.no_space = None;
        }
    }
}
