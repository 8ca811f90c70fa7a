//! The mover's loop: one message at a time, then whatever it made possible.

use std::time::{Duration, Instant};

use crate::catalog::FrameSlot;
use crate::error::Error;
use crate::id::PathId;
use crate::path::{CloseError, PathEvent};
use crate::sync::Ordering;
use crate::sync::channel::RecvTimeoutError;
use crate::ticket::Completer;

use super::Msg;
use super::state::{Closing, Mover};
use super::want::Want;

impl Msg {
    /// Returns whether it says how something begun ended, rather than asking for more.
    fn is_outcome(&self) -> bool {
        matches!(
            self,
            Msg::Read { .. }
                | Msg::Filled { .. }
                | Msg::Pays { .. }
                | Msg::Sealed { .. }
                | Msg::Summed(_)
                | Msg::Wrote { .. }
                | Msg::Path { .. }
                | Msg::Adopt(_)
                | Msg::GivenBack
                | Msg::Left(_)
        )
    }
}

impl Mover {
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
        if let Some(closing) = &self.closing {
            return match closing.deadline {
                Some(deadline) => self.messages.recv_deadline(deadline).ok(),
                None => self.messages.recv().ok(),
            };
        }
        match self.look_again.into_iter().chain(self.retreat_again).min() {
            Some(at) => {
                let wait = self.handle.shared.clock.real_wait(at);
                let answer = wait.map_or_else(
                    || self.messages.recv().map_err(RecvTimeoutError::from),
                    |wait| self.messages.recv_timeout(wait),
                );
                match answer {
                    Err(RecvTimeoutError::Timeout) => Some(Msg::Freed),
                    answer => answer.ok(),
                }
            }
            None => self.messages.recv().ok(),
        }
    }

    fn pump(&mut self) {
        self.retreat();
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
            Msg::Load(loading) => self.want_load(loading),
            Msg::Frame { bytes, rest, reply } => self.want(Want::Frame { bytes, rest, reply }),
            Msg::Adopt(chunk) => self.adopt(chunk),
            Msg::GivenBack => self.lent -= 1,
            Msg::Prefetch { chunks, said } => self.hint(chunks, said),
            Msg::Evict { chunks, reply } => self.evict_all(&chunks, reply),
            Msg::Flush { reply } => self.flush(reply),
            Msg::Delete(object) => object.chunks().for_each(|chunk| self.delete(&chunk)),
            Msg::Declare { id, this, next, reserve, read_ahead, reply } => {
                self.declare(id, this, &next, (reserve, read_ahead));
                reply.complete(Ok(()));
            }
            Msg::EndSchedule(id) => self.end_schedule(id),
            Msg::Released(chunk) => self.released(&chunk),
            Msg::WriteBack(chunk) => self.queue_write_back(&chunk),
            Msg::Left(chunk) => self.left(&chunk),
            Msg::Freed => {}
            Msg::Read { transfer, result } => self.read_done(transfer, result),
            Msg::Filled { chunk, result } => self.filled(&chunk, result),
            Msg::Pays { sealed, frame, trial } => self.pack(sealed, frame, trial),
            Msg::Sealed { sealed } => self.sealed(sealed),
            Msg::Summed(chunk) => self.summed(&chunk),
            Msg::Wrote { transfer, result } => self.wrote(transfer, result),
            Msg::Path { path, event: PathEvent::Hung } => self.path_hung(path),
            Msg::Path { path, event: PathEvent::Answering } => self.path_answers(path),
            Msg::AddPath { store, takes_writes, reply } => {
                let id = self.add_path(store, takes_writes);
                reply.complete(Ok(id));
            }
            Msg::TakeWrites { path, takes_writes, reply } => {
                self.let_path_take_writes(path, takes_writes);
                reply.complete(Ok(()));
            }
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
        self.end_schedules();
        self.to_write.clear();
        self.to_write_bytes = 0;
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
            let slot = match cell.frame() {
                FrameSlot::Out => FrameSlot::Empty,
                _ => cell.take_frame(FrameSlot::Empty),
            };
            drop(cell);
            drop(slot);
        }
    }

    /// Closes the paths and answers whoever asked for it.
    fn end(self) {
        self.refuse_waiters();
        let mut failed = Vec::new();
        for member in self.handle.shared.paths.all() {
            let left = self.closing.as_ref().map_or(Duration::ZERO, Closing::left);
            if let Err(error) = member.store.close(left) {
                failed.push((member.id, error));
            }
        }
        self.let_go();
        if let Some(closing) = self.closing {
            closing.reply.complete(Ok(failed));
        }
    }
}
