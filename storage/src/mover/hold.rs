//! Leases from the caller's side: granting them, waking who waits, and what their end sets off.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::arena::FrameRef;
use crate::catalog::{Cell, Chunk, FrameSlot, Granted, Reply, Waiter, Waits};
use crate::error::{Error, Result};
use crate::residency::{After, Host, Lease, Mode};
use crate::sync::Ordering;
use crate::ticket::{Completer, Ticket, ticket};

use super::{Handle, Loading, Msg};

/// A granted lease; its drop ends it.
#[derive(Debug)]
pub(crate) struct Hold {
    chunk: Arc<Chunk>,
    granted: Option<Granted>,
    changed: bool,
    waits: Waits,
    handle: Handle,
}

/// Tells the holder of a ticket for a lease.
struct HoldReply {
    completer: Completer<Hold>,
    handle: Handle,
    chunk: Arc<Chunk>,
}

impl Reply for HoldReply {
    fn tell(self: Box<Self>, answer: Result<(Granted, Waits)>) {
        let Self { completer, handle, chunk } = *self;
        completer.complete(answer.map(|(granted, waits)| handle.hold(&chunk, granted, waits)));
    }

    fn is_abandoned(&self) -> bool {
        self.completer.is_abandoned()
    }
}

/// Somebody whose wait is over, to be told once no lock is held.
type Woken = Vec<(Waiter, Result<(Granted, Waits)>)>;

impl Handle {
    /// Asks for a lease; a chunk in memory and free is granted at once.
    pub(crate) fn lease(&self, chunk: &Arc<Chunk>, mode: Mode) -> Ticket<Hold> {
        chunk.last_use.store(self.tick(), Ordering::Relaxed);
        chunk.awaited.store(false, Ordering::Relaxed);
        let mut cell = chunk.cell.lock();
        let queued = !cell.waiters.is_empty();
        match cell.residency.lease(mode, queued) {
            Lease::Granted { rescued } => {
                if let Some(granted) = cell.take_granted(mode) {
                    drop(cell);
                    self.shared.counters.hits.add(1);
                    if rescued {
                        self.took_back(chunk);
                    }
                    let waits = Waits { hit: true, ..Waits::default() };
                    return Ticket::answered(Ok(self.hold(chunk, granted, waits)));
                }
                // Somebody still reads the frame on his way out; his end wakes us.
                debug_assert!(false, "an exclusive lease of a shared frame");
                cell.residency.undo_lease(mode);
                self.wait_for(chunk, &mut cell, mode)
            }
            Lease::Wait => {
                if cell.residency.host == Host::Filling {
                    self.shared.counters.misses.add(1);
                }
                self.wait_for(chunk, &mut cell, mode)
            }
            Lease::Load => {
                let ticket = self.wait_for(chunk, &mut cell, mode);
                drop(cell);
                self.shared.counters.misses.add(1);
                self.send(Msg::Load(Loading::of(chunk)));
                ticket
            }
            Lease::Gone => {
                drop(cell);
                Ticket::answered(Err(gone(chunk)))
            }
        }
    }

    fn wait_for(&self, chunk: &Arc<Chunk>, cell: &mut Cell, mode: Mode) -> Ticket<Hold> {
        // Under the cell's lock: either the mover's last look at the cell finds us, or we see this.
        if self.shared.ended.load(Ordering::SeqCst) {
            return Ticket::answered(Err(Error::Closed));
        }
        let (completer, ticket) = ticket();
        let reply =
            Box::new(HoldReply { completer, handle: self.clone(), chunk: Arc::clone(chunk) });
        cell.waiters.push_back(Waiter { mode, since: Instant::now(), reply });
        let (handle, chunk) = (self.clone(), Arc::downgrade(chunk));
        ticket.on_abandon(move || {
            if let Some(chunk) = chunk.upgrade() {
                handle.gave_up(&chunk);
            }
        });
        ticket
    }

    /// Somebody no longer waits: whoever waited behind him may go on.
    fn gave_up(&self, chunk: &Arc<Chunk>) {
        let mut cell = chunk.cell.lock();
        let waiters = std::mem::take(&mut cell.waiters);
        let (abandoned, waiting): (VecDeque<_>, VecDeque<_>) =
            waiters.into_iter().partition(|w| w.reply.is_abandoned());
        cell.waiters = waiting;
        let loading = cell.residency.host == Host::Filling;
        let (woken, load) = if loading { (Vec::new(), false) } else { cell.grant(chunk) };
        drop(cell);
        drop(abandoned);
        self.wake(chunk, woken, load);
    }

    fn hold(&self, chunk: &Arc<Chunk>, granted: Granted, waits: Waits) -> Hold {
        let (chunk, handle) = (Arc::clone(chunk), self.clone());
        Hold { chunk, granted: Some(granted), changed: false, waits, handle }
    }

    /// Counts a write-back that was decided and will not happen.
    pub(super) fn took_back(&self, chunk: &Chunk) {
        self.shared.counters.write_backs.take_back(1);
        self.shared.counters.write_back_bytes.take_back(chunk.bytes);
    }

    /// Wakes everybody and sends for the chunk if the first who waits needs it loaded.
    pub(super) fn wake(&self, chunk: &Arc<Chunk>, woken: Woken, load: bool) {
        for (waiter, answer) in woken {
            waiter.reply.tell(answer);
        }
        if load {
            self.send(Msg::Load(Loading::of(chunk)));
        }
    }

    fn end(&self, chunk: &Arc<Chunk>, granted: Granted, changed: bool) {
        let exclusive = matches!(granted, Granted::Write(_));
        let mut cell = chunk.cell.lock();
        let after = match granted {
            Granted::Read(frame) => {
                drop(frame);
                cell.residency.unlease_read()
            }
            Granted::Write(frame) => {
                cell.frame = FrameSlot::Here(frame.share());
                cell.residency.unlease_write(changed)
            }
        };
        let dropped = cell.drop_frame(after);
        let (woken, load) = cell.grant(chunk);
        drop(cell);
        drop(dropped);
        match after {
            After::WriteBack => self.send(Msg::WriteBack(Arc::clone(chunk))),
            After::Drop => self.send(Msg::Left(Arc::clone(chunk))),
            After::Stay => {}
        }
        self.wake(chunk, woken, load);
        if exclusive && chunk.tracked.load(Ordering::Relaxed) {
            self.send(Msg::Released(Arc::clone(chunk)));
        } else if self.shared.starving.load(Ordering::SeqCst) {
            self.send(Msg::Freed);
        }
    }
}

impl Cell {
    /// Takes the access a just granted lease gives, or `None` if the frame is shared when it must
    /// not be.
    fn take_granted(&mut self, mode: Mode) -> Option<Granted> {
        match (std::mem::replace(&mut self.frame, FrameSlot::Out), mode) {
            (FrameSlot::Here(frame), Mode::Read) => {
                self.frame = FrameSlot::Here(frame.clone());
                Some(Granted::Read(frame))
            }
            (FrameSlot::Here(frame), Mode::Write) => match frame.try_exclusive() {
                Ok(frame) => Some(Granted::Write(frame)),
                Err(frame) => {
                    self.frame = FrameSlot::Here(frame);
                    None
                }
            },
            (other, _) => {
                self.frame = other;
                None
            }
        }
    }

    /// Takes the frame out if the chunk left memory; the caller drops it once the lock is free.
    pub(super) fn drop_frame(&mut self, after: After) -> FrameSlot {
        if after == After::Drop { std::mem::take(&mut self.frame) } else { FrameSlot::Empty }
    }

    /// Grants what can be granted to those who wait, in their order. Returns whom to wake, and
    /// whether the chunk must be loaded for the next of them.
    pub(super) fn grant(&mut self, chunk: &Chunk) -> (Woken, bool) {
        let mut woken = Vec::new();
        while let Some(mode) = self.waiters.front().map(|waiter| waiter.mode) {
            let answer = match self.residency.lease(mode, false) {
                Lease::Granted { .. } => match self.take_granted(mode) {
                    Some(granted) => Ok(granted),
                    None => {
                        self.residency.undo_lease(mode);
                        return (woken, false);
                    }
                },
                Lease::Load => return (woken, true),
                Lease::Wait => return (woken, false),
                Lease::Gone => Err(gone(chunk)),
            };
            if let Some(waiter) = self.waiters.pop_front() {
                let waits = self.waits_since(waiter.since);
                woken.push((waiter, answer.map(|granted| (granted, waits))));
            }
        }
        (woken, false)
    }

    /// Splits the time since `since` into waiting for memory and waiting for the rest.
    fn waits_since(&self, since: Instant) -> Waits {
        let all = since.elapsed();
        let memory = self.framed_at.map_or(all, |at| at.saturating_duration_since(since)).min(all);
        Waits { memory, arrival: all - memory, hit: false }
    }

    /// Gives everybody who waits the same error.
    pub(super) fn refuse_all(&mut self, error: &Error) -> Woken {
        let waiters: VecDeque<Waiter> = std::mem::take(&mut self.waiters);
        waiters.into_iter().map(|waiter| (waiter, Err(error.clone()))).collect()
    }

    /// Returns a reader's handle on the frame, if it is in memory and not written.
    pub(super) fn frame_to_read(&self) -> Option<FrameRef> {
        match &self.frame {
            FrameSlot::Here(frame) => Some(frame.clone()),
            _ => None,
        }
    }
}

fn gone(chunk: &Chunk) -> Error {
    Error::NotFound { key: chunk.key_text() }
}

impl Hold {
    /// Returns the chunk's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.granted {
            Some(Granted::Read(frame)) => frame,
            Some(Granted::Write(frame)) => frame,
            None => &[],
        }
    }

    /// Returns the chunk's bytes to be changed; empty for a shared lease.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.granted {
            Some(Granted::Write(frame)) => {
                self.changed = true;
                frame
            }
            _ => &mut [],
        }
    }

    /// Returns what was waited for.
    pub(crate) fn waits(&self) -> Waits {
        self.waits
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(granted) = self.granted.take() {
            self.handle.end(&self.chunk, granted, self.changed);
        }
    }
}
