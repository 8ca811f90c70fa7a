//! Leases from the caller's side: granting them, waking who waits, and what their end sets off.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::arena::FrameMut;
use crate::catalog::{Cell, ChunkName, ChunkRef, FrameSlot, Granted, Reply, Waiter, Waits};
use crate::error::{Error, Result};
use crate::id::Version;
use crate::residency::{After, Host, Lease, Left, Mode};
use crate::sync::Ordering;
use crate::ticket::{Completer, Ticket, ticket};

use super::{Handle, Lane, Loading, Msg};

/// A granted lease; its drop ends it.
#[derive(Debug)]
pub(crate) struct Hold {
    chunk: Arc<ChunkRef>,
    granted: Option<Granted>,
    /// Whether it is counted as passing.
    passing: bool,
    waits: Waits,
    lane: Arc<Lane>,
}

/// What a lease is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Use,
    /// It ends or is handed out by itself: whoever needs its memory waits for that and does not fail.
    Passing,
    /// All bytes are overwritten: what is not in memory need not be loaded.
    Overwrite,
}

/// Tells the holder of a ticket for a lease.
struct HoldReply {
    completer: Completer<Hold>,
    lane: Arc<Lane>,
    chunk: Arc<ChunkRef>,
    passing: bool,
}

impl Reply for HoldReply {
    fn tell(self: Box<Self>, answer: Result<(Granted, Waits)>) {
        let Self { completer, lane, chunk, passing } = *self;
        let hold = |(granted, waits)| lane.hold(chunk, granted, waits, passing);
        completer.complete(answer.map(hold));
    }

    fn is_abandoned(&self) -> bool {
        self.completer.is_abandoned()
    }
}

/// Somebody whose wait is over, to be told once no lock is held.
type Woken = Vec<(Waiter, Result<(Granted, Waits)>)>;

impl Handle {
    /// Asks for a lease; a chunk in memory and free is granted at once.
    pub(crate) fn lease(&self, chunk: ChunkName<'_>, mode: Mode) -> Ticket<Hold> {
        self.lease_as(chunk, mode, Purpose::Use)
    }

    /// Asks for an exclusive lease to overwrite all bytes. Unless they are borrowed before it ends,
    /// the chunk is what it was.
    pub(crate) fn lease_to_overwrite(&self, chunk: ChunkName<'_>) -> Ticket<Hold> {
        self.lease_as(chunk, Mode::Write, Purpose::Overwrite)
    }

    /// As [`Handle::lease`], for a lease that ends or is handed out by itself: whoever needs its memory
    /// waits for that and does not fail.
    pub(crate) fn lease_in_passing(&self, chunk: ChunkName<'_>, mode: Mode) -> Ticket<Hold> {
        self.lease_as(chunk, mode, Purpose::Passing)
    }

    fn lease_as(&self, name: ChunkName<'_>, mode: Mode, purpose: Purpose) -> Ticket<Hold> {
        let (chunk, passing) = (&*name, purpose == Purpose::Passing);
        chunk.last_use.store(self.stamp(), Ordering::Relaxed);
        let mut cell = chunk.cell.lock();
        cell.set_awaited(false);
        let queued = !cell.is_unwaited();
        match cell.residency.lease(mode, queued) {
            Lease::Granted { rescued } => {
                if let Some(granted) = cell.take_granted(mode) {
                    if passing {
                        cell.pass();
                    }
                    let chunk = cell.keeper(name);
                    drop(cell);
                    let lane = self.lane();
                    lane.hits.add(1);
                    if rescued {
                        self.took_back(&chunk);
                    }
                    let waits = Waits { hit: true, ..Waits::default() };
                    return Ticket::answered(Ok(lane.hold(chunk, granted, waits, passing)));
                }
                // Somebody still reads the frame on his way out; his end wakes us.
                debug_assert!(false, "an exclusive lease of a shared frame");
                cell.residency.undo_lease(mode);
                self.wait_for(name, &mut cell, mode, purpose)
            }
            Lease::Wait => {
                if cell.residency.host == Host::Filling {
                    self.shared.counters.misses.add(1);
                }
                self.wait_for(name, &mut cell, mode, purpose)
            }
            Lease::Load => {
                let ticket = self.wait_for(name, &mut cell, mode, purpose);
                drop(cell);
                self.shared.counters.misses.add(1);
                self.send(Msg::Load(Loading::of(&name.keep())));
                ticket
            }
            Lease::Gone => {
                drop(cell);
                // At its end the mover gives all chunks up: that is no deletion to whoever asks.
                let closed = self.shared.ended.load(Ordering::SeqCst);
                Ticket::answered(Err(if closed { Error::Closed } else { gone(&name.keep()) }))
            }
            Lease::Pinned => Ticket::answered(Err(cell.pinned(&name.keep()))),
            Lease::Dropped => {
                drop(cell);
                Ticket::answered(Err(dropped(&name.keep())))
            }
        }
    }

    fn wait_for(
        &self,
        name: ChunkName<'_>,
        cell: &mut Cell,
        mode: Mode,
        purpose: Purpose,
    ) -> Ticket<Hold> {
        // Under the cell's lock: either the mover's last look at the cell finds us, or we see this.
        if self.shared.ended.load(Ordering::SeqCst) {
            return Ticket::answered(Err(Error::Closed));
        }
        let (completer, ticket) = ticket();
        let (lane, chunk) = (Arc::clone(self.lane()), cell.keeper(name));
        let (handle, waited) = (self.clone(), chunk.downgrade());
        let passing = purpose == Purpose::Passing;
        let overwrites = purpose == Purpose::Overwrite;
        let reply = Box::new(HoldReply { completer, lane, chunk, passing });
        cell.add_waiter(Waiter { mode, passing, overwrites, since: Instant::now(), reply });
        ticket.on_abandon(move || {
            if let Some(chunk) = waited.upgrade() {
                handle.gave_up(&chunk);
            }
        });
        ticket
    }

    /// Somebody no longer waits: whoever waited behind him may go on.
    fn gave_up(&self, chunk: &ChunkRef) {
        let mut cell = chunk.cell.lock();
        let abandoned = cell.take_waiters(|waiter| !waiter.reply.is_abandoned());
        let loading = cell.residency.host == Host::Filling;
        let (woken, load) = if loading { (Vec::new(), false) } else { cell.grant(chunk) };
        drop(cell);
        drop(abandoned);
        self.wake(chunk, woken, load);
    }
}

impl Lane {
    fn hold(
        self: &Arc<Self>,
        chunk: Arc<ChunkRef>,
        granted: Granted,
        waits: Waits,
        passing: bool,
    ) -> Hold {
        let lane = Arc::clone(self);
        Hold { chunk, granted: Some(granted), passing, waits, lane }
    }

    /// Counts a write-back that was decided and will not happen.
    pub(super) fn took_back(&self, chunk: &ChunkRef) {
        self.shared.counters.write_backs.take_back(1);
        self.shared.counters.write_back_bytes.take_back(chunk.bytes());
    }

    /// Wakes everybody and sends for the chunk if the first who waits needs it loaded.
    pub(super) fn wake(&self, chunk: &ChunkRef, woken: Woken, load: bool) {
        for (waiter, answer) in woken {
            waiter.reply.tell(answer);
        }
        if load {
            self.send(Msg::Load(Loading::of(chunk)));
        }
    }

    fn end(&self, chunk: &ChunkRef, granted: Granted, passing: bool) {
        let exclusive = matches!(granted, Granted::Write(..));
        let mut cell = chunk.cell.lock();
        if passing {
            cell.passed();
        }
        let after = match granted {
            Granted::Read(frame) => {
                drop(frame);
                cell.residency.unlease_read()
            }
            Granted::Write(frame, left) => {
                cell.set_frame(FrameSlot::Here(frame.share()));
                cell.residency.unlease_write(left)
            }
        };
        let dropped = cell.drop_frame(after);
        let (woken, load) = cell.grant(chunk);
        drop(cell);
        drop(dropped);
        match after {
            After::WriteBack => self.send(Msg::WriteBack(chunk.clone())),
            After::Drop => self.send(Msg::Left(chunk.clone())),
            After::Stay => {}
        }
        self.wake(chunk, woken, load);
        if exclusive && self.shared.scheduled.load(Ordering::Relaxed) {
            self.send(Msg::Released(chunk.clone()));
        } else if self.shared.starving.load(Ordering::SeqCst) {
            self.send(Msg::Freed);
        }
    }
}

impl Cell {
    /// Takes the access a just granted lease gives, or `None` if the frame is shared when it must
    /// not be.
    fn take_granted(&mut self, mode: Mode) -> Option<Granted> {
        if mode == Mode::Read {
            return self.frame_to_read().map(Granted::Read);
        }
        match self.take_frame(FrameSlot::Out) {
            FrameSlot::Here(frame) => match frame.try_exclusive() {
                Ok(frame) => {
                    // Whatever the holder says of them in the end, the bytes may be others.
                    self.take_sums();
                    Some(Granted::Write(frame, Left::Same))
                }
                Err(frame) => {
                    self.set_frame(FrameSlot::Here(frame));
                    None
                }
            },
            other => {
                self.set_frame(other);
                None
            }
        }
    }

    /// Gives a frame that was found to be filled as it is to the first who waits, if he overwrites all
    /// of it; unless he does, nobody gets to see its bytes. Returns whom to wake.
    ///
    /// # Errors
    /// The frame again, if it must be filled.
    pub(super) fn grant_to_overwrite(
        &mut self,
        frame: FrameMut,
    ) -> std::result::Result<Woken, FrameMut> {
        if !self.is_overwritten_next() || !self.residency.lend() {
            return Err(frame);
        }
        let (waits, granted) = (self.waits(), Granted::Write(frame, Left::Void));
        self.set_frame(FrameSlot::Out);
        let waiter = self.pop_waiter();
        Ok(waiter.map(|waiter| (waiter, Ok((granted, waits)))).into_iter().collect())
    }

    /// Takes the frame out if the chunk left memory; the caller drops it once the lock is free.
    pub(super) fn drop_frame(&mut self, after: After) -> FrameSlot {
        if after == After::Drop { self.take_frame(FrameSlot::Empty) } else { FrameSlot::Empty }
    }

    /// Grants what can be granted to those who wait, in their order. Returns whom to wake, and
    /// whether the chunk must be loaded for the next of them.
    pub(super) fn grant(&mut self, chunk: &ChunkRef) -> (Woken, bool) {
        let mut woken = Vec::new();
        while let Some(mode) = self.next_waiter() {
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
                Lease::Pinned => Err(self.pinned(chunk)),
                Lease::Dropped => Err(dropped(chunk)),
            };
            let waits = self.waits();
            if let Some(waiter) = self.pop_waiter() {
                if waiter.passing && answer.is_ok() {
                    self.pass();
                }
                woken.push((waiter, answer.map(|granted| (granted, waits))));
            }
        }
        (woken, false)
    }

    fn pinned(&self, chunk: &ChunkRef) -> Error {
        Error::PathHung {
            attempted: "change",
            key: chunk.key_text(),
            chunk: chunk.index(),
            path: self.pinned_by().map(Path::to_owned).unwrap_or_default(),
        }
    }

    /// Gives everybody who waits the same error.
    pub(super) fn refuse_all(&mut self, error: &Error) -> Woken {
        let waiters = self.take_waiters(|_| false);
        waiters.into_iter().map(|waiter| (waiter, Err(error.clone()))).collect()
    }
}

fn gone(chunk: &ChunkRef) -> Error {
    Error::NotFound { key: chunk.key_text() }
}

fn dropped(chunk: &ChunkRef) -> Error {
    Error::Dropped { key: chunk.key_text(), chunk: chunk.index() }
}

impl Hold {
    /// Returns the chunk's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.granted {
            Some(Granted::Read(frame)) => frame,
            Some(Granted::Write(frame, _)) => frame,
            None => &[],
        }
    }

    /// Returns the chunk's bytes to be changed; empty for a shared lease.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.leaves(Left::New);
        self.frame()
    }

    /// Returns the chunk's bytes to be overwritten by a copy; unless [`Hold::filled`] or
    /// [`Hold::not_begun`] is called before the lease ends, nobody gets to see them.
    pub(crate) fn bytes_to_fill(&mut self) -> &mut [u8] {
        self.leaves(Left::Void);
        self.frame()
    }

    fn leaves(&mut self, left: Left) {
        if let Some(Granted::Write(_, leaves)) = &mut self.granted {
            *leaves = left;
        }
    }

    fn frame(&mut self) -> &mut [u8] {
        match &mut self.granted {
            Some(Granted::Write(frame, _)) => frame,
            _ => &mut [],
        }
    }

    /// Says whether the bytes were changed, whatever was borrowed.
    pub(crate) fn set_changed(&mut self, changed: bool) {
        self.leaves(if changed { Left::New } else { Left::Same });
    }

    /// Returns the object's key as it is now, for a message.
    pub(crate) fn key_text(&self) -> String {
        self.chunk.key_text()
    }

    /// The copy into the bytes is complete: they are a new version.
    pub(crate) fn filled(&mut self) {
        self.leaves(Left::New);
    }

    /// The copy into the bytes was never begun: they are what they were.
    pub(crate) fn not_begun(&mut self) {
        self.leaves(Left::Same);
    }

    /// Says whether the lease ends or is handed out by itself, so that whoever needs memory waits for
    /// that instead of failing.
    pub(crate) fn set_passing(&mut self, passing: bool) {
        if std::mem::replace(&mut self.passing, passing) == passing {
            return;
        }
        let mut cell = self.chunk.cell.lock();
        if passing {
            return cell.pass();
        }
        cell.passed();
        drop(cell);
        if self.lane.shared.starving.load(Ordering::SeqCst) {
            self.lane.send(Msg::Freed);
        }
    }

    /// Returns the version of the chunk's bytes; nobody changes it while the lease lives.
    pub(crate) fn version(&self) -> Version {
        self.chunk.cell.lock().residency.newest
    }

    /// Returns what was waited for.
    pub(crate) fn waits(&self) -> Waits {
        self.waits
    }
}

impl AsRef<[u8]> for Hold {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(granted) = self.granted.take() {
            self.lane.end(&self.chunk, granted, self.passing);
        }
    }
}
