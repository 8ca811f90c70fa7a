//! The mover's loop: one message at a time, then whatever it made possible.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::catalog::{Chunk, FrameSlot};
use crate::error::Error;
use crate::evict::EvictionPolicy;
use crate::id::{ChunkId, Class, PathId};
use crate::path::CloseError;
use crate::placement::Whole;
use crate::sync::Ordering;
use crate::ticket::Completer;

use super::declared::Declared;
use super::load::{Hint, Want};
use super::room::Victim;
use super::settle::Settle;
use super::worker::Job;
use super::writeback::Health;
use super::{Handle, Msg, Sealed};

/// All that only the mover's thread touches.
pub(super) struct Mover {
    pub(super) handle: Handle,
    messages: Receiver<Msg>,
    pub(super) workers: Sender<Job>,
    pub(super) policy: Box<dyn EvictionPolicy>,

    /// Chunks whose frame is in the arena.
    pub(super) resident: HashMap<ChunkId, Arc<Chunk>>,
    pub(super) demand: VecDeque<Want>,
    pub(super) prefetch: VecDeque<Hint>,
    pub(super) declared: Option<Declared>,
    /// Frames that callers are filling to put them.
    pub(super) lent: usize,
    /// Chunks being read from a path or zeroed.
    pub(super) filling: usize,

    pub(super) to_write: VecDeque<Arc<Chunk>>,
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
    /// The class of the want they may make room for.
    pub(super) victims_for: Class,
    pub(super) placement: Whole,
    pub(super) health: Vec<Health>,
    /// Why the last chunk could be written nowhere.
    pub(super) no_space: Option<Error>,
    pub(super) settles: Vec<Settle>,

    closing: Option<Closing>,
}

struct Closing {
    /// `None` when the clock does not reach that far.
    deadline: Option<Instant>,
    grace: Duration,
    reply: Completer<Vec<(PathId, CloseError)>>,
}

impl Closing {
    /// Returns how much of the grace is left.
    fn left(&self) -> Duration {
        self.deadline
            .map_or(self.grace, |deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

impl Msg {
    /// Returns whether it says how something begun ended, rather than asking for more.
    fn is_outcome(&self) -> bool {
        matches!(
            self,
            Msg::Read { .. }
                | Msg::Filled { .. }
                | Msg::Sealed { .. }
                | Msg::Wrote { .. }
                | Msg::Adopt(_)
                | Msg::Left(_)
        )
    }
}

impl Mover {
    pub(super) fn new(
        handle: Handle,
        messages: Receiver<Msg>,
        workers: Sender<Job>,
        policy: Box<dyn EvictionPolicy>,
    ) -> Self {
        let paths = handle.shared.paths.len();
        Mover {
            handle,
            messages,
            workers,
            policy,
            resident: HashMap::new(),
            demand: VecDeque::new(),
            prefetch: VecDeque::new(),
            declared: None,
            lent: 0,
            filling: 0,
            to_write: VecDeque::new(),
            queued: HashSet::new(),
            sealed: VecDeque::new(),
            sealing: 0,
            writing: 0,
            coming: HashMap::new(),
            coming_bytes: 0,
            victims: Vec::new(),
            victims_for: Class::Demand,
            placement: Whole::new(paths),
            health: vec![Health::default(); paths],
            no_space: None,
            settles: Vec::new(),
            closing: None,
        }
    }

    /// Runs until [`Msg::Close`] has been carried out.
    pub(super) fn run(mut self) {
        loop {
            let Some(first) = self.next_message() else { break };
            self.act(first);
            // What came meanwhile is acted on together: one look at memory serves all of it.
            for _ in 0..self.messages.len() {
                match self.messages.try_recv() {
                    Ok(msg) => self.act(msg),
                    Err(_) => break,
                }
            }
            if self.closing.is_none() {
                self.pump();
            } else if self.at_rest() {
                break;
            }
        }
        self.end();
    }

    fn next_message(&self) -> Option<Msg> {
        match self.closing.as_ref().and_then(|closing| closing.deadline) {
            None => self.messages.recv().ok(),
            Some(deadline) => self.messages.recv_deadline(deadline).ok(),
        }
    }

    fn pump(&mut self) {
        loop {
            self.pump_memory();
            if !self.pump_writes() {
                break;
            }
        }
    }

    fn act(&mut self, msg: Msg) {
        // Once the store closes, what is asked for is answered by being dropped.
        if self.closing.is_some() && !msg.is_outcome() {
            return;
        }
        match msg {
            Msg::Load(loading) => self.demand.push_back(Want::Load(loading)),
            Msg::Frame { bytes, reply } => self.demand.push_back(Want::Frame { bytes, reply }),

            Msg::Adopt(chunk) => self.adopt(chunk),
            Msg::Prefetch { chunks, said } => self.hint(chunks, said),
            Msg::Evict { chunks, reply } => self.evict_all(&chunks, reply),
            Msg::Flush { reply } => self.flush(reply),
            Msg::Delete(object) => object.chunks.iter().for_each(|chunk| self.delete(chunk)),
            Msg::Declare { this, next, reserve, reply } => {
                self.declare(this, next, reserve);
                reply.complete(Ok(()));
            }
            Msg::EndSchedule => self.end_schedule(),
            Msg::Released(chunk) => self.released(&chunk),
            Msg::WriteBack(chunk) => self.queue_write_back(&chunk),
            Msg::Left(chunk) => self.left(&chunk),
            Msg::Freed => {}
            Msg::Read { chunk, path, extent, result } => {
                self.read_done(chunk, path, extent, result)
            }
            Msg::Filled { chunk, result } => self.filled(&chunk, result),
            Msg::Sealed { sealed } => {
                self.sealing -= 1;
                self.sealed.push_back(sealed);
            }
            Msg::Wrote { sealed, path, extent, result } => self.wrote(sealed, path, extent, result),
            Msg::Barrier { reply } => {
                self.pump();
                reply.complete(Ok(()));
            }
            Msg::Close { grace, reply } => self.begin_close(grace, reply),
        }
    }

    /// Returns whether nothing is under way at a path or a worker.
    fn at_rest(&self) -> bool {
        self.filling == 0 && self.sealing == 0 && self.writing == 0
    }

    fn begin_close(&mut self, grace: Duration, reply: Completer<Vec<(PathId, CloseError)>>) {
        let deadline = Instant::now().checked_add(grace);
        self.closing = Some(Closing { deadline, grace, reply });
        self.demand.clear();
        self.prefetch.clear();
        self.end_schedule();
        self.to_write.clear();
        self.sealed.clear();
        self.settles.clear();
        self.refuse_waiters();
    }

    /// Answers all who wait for a chunk; from now on nobody can begin to.
    fn refuse_waiters(&self) {
        self.handle.shared.ended.store(true, Ordering::SeqCst);
        for chunk in self.resident.values() {
            let woken = chunk.cell.lock().refuse_all(&Error::Closed);
            self.handle.wake(chunk, woken, false);
        }
    }

    /// Gives up all memory but what leases and transfers hold: an object that the caller still names
    /// must not keep it.
    fn let_go(&self) {
        for chunk in self.resident.values() {
            let mut cell = chunk.cell.lock();
            // A lease that ends later drops its frame too.
            cell.residency.delete();
            let slot = match &cell.frame {
                FrameSlot::Out => FrameSlot::Empty,
                _ => std::mem::take(&mut cell.frame),
            };
            drop(cell);
            drop(slot);
        }
    }

    /// Closes the paths and answers whoever asked for it.
    fn end(self) {
        self.refuse_waiters();
        let mut failed = Vec::new();
        for (index, path) in self.handle.shared.paths.iter().enumerate() {
            let left = self.closing.as_ref().map_or(Duration::ZERO, Closing::left);
            if let Err(error) = path.close(left) {
                failed.push((PathId(index as u16), error));
            }
        }
        self.let_go();
        if let Some(closing) = self.closing {
            closing.reply.complete(Ok(failed));
        }
    }
}
