//! Writing chunks back: in the order they were decided, sealed, placed on a path, and when the path
//! has accepted them for good the old extent is freed. What one path refuses another gets.

use crate::arena::granules_up;
use crate::catalog::{ChunkRef, DiskCopy, FrameSlot, Piece};
use crate::error::{Errno, Error};
use crate::id::{Class, PathId};
use crate::path::{Condition, Member};
use crate::placement::{self, Candidate, Choice};
use crate::residency::{self, After, Leaving};
use crate::units::Bytes;

use super::health::full;
use super::state::Mover;
use super::transfers::{Answered, Drain, Part, TransferId};
use super::{Msg, Sealed};

/// What a path may have waiting to be written, in seconds of its time: a slow one must not keep the
/// memory that faster ones need.
const PATH_QUEUE_SECONDS: f64 = 0.1;

/// How often a chunk is offered to one path: an error may pass, a full disk does not.
const TRIES: usize = 2;

impl Mover {
    /// Returns whether, as far as is known, no path takes a write now: all are full, or a moment ago
    /// none took one.
    pub(super) fn paths_refuse(&self) -> bool {
        let now = self.now();
        let rest = self.no_space.is_some() && self.health.iter().all(|h| h.resting(now));
        rest || !self.health.iter().any(|h| h.usable(now))
    }

    /// Has every path offered chunks again, whatever it refused before.
    pub(super) fn forgive_paths(&mut self) {
        for health in &mut self.health {
            health.refused = None;
        }
        self.no_space = None;
    }

    /// A write-back was decided: it gets its turn.
    pub(super) fn queue_write_back(&mut self, chunk: &ChunkRef) {
        let counters = &self.handle.shared.counters;
        counters.write_backs.add(1);
        counters.write_back_bytes.add(chunk.bytes());
        let (drain, leaving) = {
            let residency = &chunk.cell.lock().residency;
            (residency.drain, residency.leaving)
        };
        // An earlier turn in the queue served this decision already.
        if matches!(drain, residency::Drain::Active) {
            return;
        }
        if drain == residency::Drain::Queued && leaving != Leaving::No {
            self.count_coming(chunk);
        }
        // One taken back and decided again while it was still in the queue keeps its old turn.
        if self.queued.insert(chunk.id()) {
            self.to_write.push_back(chunk.clone());
            self.to_write_bytes += chunk.bytes();
        }
    }

    pub(super) fn count_coming(&mut self, chunk: &ChunkRef) {
        if chunk.cell.lock().residency.pins > 0 {
            return;
        }
        let bytes = granules_up(chunk.bytes().max(1));
        if self.coming.insert(chunk.id(), bytes).is_none() {
            self.coming_bytes += bytes;
        }
    }

    pub(super) fn uncount_coming(&mut self, chunk: &ChunkRef) {
        if let Some(bytes) = self.coming.remove(&chunk.id()) {
            self.coming_bytes -= bytes;
        }
    }

    /// Starts what write-backs can start. Returns whether one ended without being written, so that
    /// memory must be looked at again.
    pub(super) fn pump_writes(&mut self) -> bool {
        let mut unwritten = false;
        loop {
            let before = self.writing;
            unwritten |= self.pump_seal();
            unwritten |= self.pump_place();
            // What was placed made room to seal more. No message would come to remind of that before
            // a path has done all it has, if it answers several at once.
            if self.writing == before {
                return unwritten;
            }
        }
    }

    /// Keeps one chunk per path sealed ahead of its placement.
    fn pump_seal(&mut self) -> bool {
        let mut taken_back = false;
        while self.sealing + self.sealed.len() < self.health.len() + 1 {
            let Some(chunk) = self.to_write.pop_front() else { break };
            self.queued.remove(&chunk.id());
            self.to_write_bytes -= chunk.bytes();
            let mut cell = chunk.cell.lock();
            // Only a chunk that drains may have another reader: a lease to write takes it exclusively.
            let started = cell.residency.start_drain();
            let frame = if started { cell.frame_to_read() } else { None };
            drop(cell);
            let Some(frame) = frame else {
                self.uncount_coming(&chunk);
                self.settled(&chunk, None);
                taken_back = true;
                continue;
            };
            self.seal(chunk, frame);
        }
        taken_back
    }

    fn pump_place(&mut self) -> bool {
        let mut refused = false;
        // One that hung may be at a worker still.
        let free = |sealed: &Sealed| !sealed.is_being_summed();
        while let Some(at) = self.sealed.iter().position(free) {
            let Some(mut sealed) = self.sealed.remove(at) else { break };
            if sealed.chunk.cell.lock().residency.deleted {
                self.call_off(&mut sealed);
                refused = true;
                continue;
            }
            let candidates = self.candidates(&sealed);
            let bytes = sealed.stored_bytes();
            let choice = if self.settles.is_empty() {
                self.placer.choose(&candidates, bytes)
            } else {
                let sealed: u64 = self.sealed.iter().map(Sealed::stored_bytes).sum();
                self.placer.choose_in_time(candidates, bytes, sealed + self.to_write_bytes)
            };
            match choice {
                Choice::Parts(parts) => match self.reserve(&parts) {
                    Ok(pieces) => self.write(sealed, pieces),
                    Err((path, errno)) => {
                        self.refused(&mut sealed, path, errno);
                        self.sealed.push_front(sealed);
                    }
                },
                Choice::Later => {
                    self.sealed.push_front(sealed);
                    break;
                }
                Choice::Nowhere => {
                    self.give_up(&mut sealed);
                    refused = true;
                }
            }
        }
        refused
    }

    fn candidates(&self, sealed: &Sealed) -> Vec<Candidate> {
        let (now, bytes) = (self.now(), sealed.stored_bytes());
        let one = |member: Member| {
            let Member { id, store, .. } = member;
            let tried = || sealed.tried.iter().filter(move |(path, _)| *path == id);
            let open = tried().count() < TRIES && tried().all(|(_, errno)| !full(*errno));
            // A path that hung gets the least share, one chunk at a time, until it is trusted again.
            let on_probation = store.condition() != Condition::Good;
            let profile = store.profile();
            // What it moves at a time and one chunk more: enough that its queue does not run dry
            // between two messages, little enough that the path of a chunk is chosen late.
            let most = store.depth_bytes() + bytes;
            let soon_bytes = (profile.write_bps * PATH_QUEUE_SECONDS) as u64;
            let most_bytes = if on_probation { 1 } else { soon_bytes.clamp(1, most) };
            let queued_bytes = store.outstanding().write_bytes;
            Candidate {
                path: id,
                sustained_bps: profile.share(),
                queued_bytes,
                usable: open && self.health[id.index()].usable(now),
                on_probation,
                ready: queued_bytes < most_bytes,
            }
        };
        let mut all: Vec<_> = self.handle.shared.paths.all().into_iter().map(one).collect();
        // A path that just failed is asked again only when no other is left.
        let rested = |c: &Candidate| c.usable && !self.health[c.path.index()].resting(now);
        if all.iter().any(rested) {
            for candidate in &mut all {
                candidate.usable = rested(candidate);
            }
        }
        all
    }

    fn refused(&mut self, sealed: &mut Sealed, path: PathId, errno: Errno) {
        tracing::warn!(path = %self.path(path).capabilities().dir.display(), %errno, "write refused");
        self.health[path.index()].refused = Some((self.now(), errno));
        sealed.tried.push((path, errno));
        self.handle.shared.counters.replaced.add(1);
    }

    /// Takes space for all parts, or for none if one path refuses.
    fn reserve(&mut self, parts: &[placement::Part]) -> Result<Vec<Piece>, (PathId, Errno)> {
        let mut pieces = Vec::with_capacity(parts.len());
        for placement::Part { path, bytes } in parts {
            match self.path(*path).reserve(*bytes) {
                Ok(extent) => pieces.push(Piece::new(*path, extent)),
                Err(errno) => {
                    pieces.into_iter().for_each(|piece| self.free_piece(piece));
                    return Err((*path, errno));
                }
            }
        }
        Ok(pieces)
    }

    /// Has the paths write a chunk's stored bytes to these pieces.
    fn write(&mut self, mut sealed: Sealed, pieces: Vec<Piece>) {
        let Some(frame) = sealed.frame_to_write() else {
            debug_assert!(false, "a draining chunk has no frame");
            return pieces.into_iter().for_each(|piece| self.free_piece(piece));
        };
        self.writing += 1;
        let sum = Self::sum(&mut sealed, &frame);
        let chunk = sealed.chunk.clone();
        let (left, done, errors) = (pieces.len(), Vec::new(), Vec::new());
        self.transfers.begin_drain(Drain { sealed, left, done, errors });
        let mut rest = frame.whole();
        for (index, piece) in pieces.into_iter().enumerate() {
            let (from, after) = rest.split_at(piece.bytes() as usize);
            rest = after;
            let (path, extent, chunk) = (piece.path(), piece.extent(), chunk.clone());
            let transfer = self.transfers.add(Part::Write { chunk, piece, index });
            let handle = self.handle.clone();
            let done = Box::new(move |result| handle.send(Msg::Wrote { transfer, result }));
            self.path(path).write(&extent, from, Class::WriteBack, done);
        }
        if let Some(sum) = sum {
            let _ = self.workers.send(sum);
        }
    }

    /// A path answered a write.
    pub(super) fn wrote(&mut self, id: TransferId, result: Result<(), Errno>) {
        let (answered, unused) = self.transfers.wrote(id, result);
        if let Some(piece) = unused {
            self.free_piece(piece);
        }
        match answered {
            Answered::Whole(drain) => self.written_or_not(drain),
            Answered::Part => {}
            Answered::Late => self.answered_late(id),
        }
    }

    /// Paths and workers are done with a chunk.
    pub(super) fn written_or_not(&mut self, drain: Drain) {
        if drain.errors.is_empty() { self.written(drain) } else { self.not_written(drain) }
    }

    /// A path refused a part of a chunk, or all of it: it is placed anew, as a whole.
    fn not_written(&mut self, drain: Drain) {
        self.writing -= 1;
        let Drain { mut sealed, done, errors, .. } = drain;
        done.into_iter().for_each(|(_, piece)| self.free_piece(piece));
        for (path, errno) in errors {
            self.refused(&mut sealed, path, errno);
        }
        self.sealed.push_front(sealed);
    }

    /// The paths have accepted a chunk for good.
    fn written(&mut self, drain: Drain) {
        self.writing -= 1;
        let Drain { mut sealed, mut done, .. } = drain;
        done.sort_unstable_by_key(|(index, _)| *index);
        let pieces: Vec<_> = done.into_iter().map(|(_, piece)| piece).collect();
        for piece in &pieces {
            self.health[piece.path().index()].refused = None;
        }
        self.no_space = None;
        self.drop_packed(&mut sealed);
        let Sealed { chunk, form, .. } = sealed;
        let form = form.get().cloned().unwrap_or_default();
        let counters = &self.handle.shared.counters;
        counters.written.add(1);
        counters.written_bytes.add(chunk.bytes());
        counters.stored_bytes.add(pieces.iter().map(Piece::bytes).sum());
        counters.packed.add(form.is_packed().into());
        let copy = DiskCopy::new(pieces, form);
        let mut cell = chunk.cell.lock();
        let old = cell.disk.replace(copy);
        let after = cell.residency.drained(true);
        let gone = cell.residency.deleted;
        drop(cell);
        if let Some(old) = old {
            self.free_copy(old);
        }
        self.drained(&chunk, after, None);
        if gone {
            self.delete(&chunk);
        }
    }

    /// No path took a chunk: it stays in memory, dirty, and whoever waits for its place is told.
    fn give_up(&mut self, sealed: &mut Sealed) {
        self.drop_packed(sealed);
        let chunk = &sealed.chunk;
        let error = self.no_space_for(chunk, &sealed.tried);
        let after = chunk.cell.lock().residency.drained(false);
        self.no_space = Some(error.clone());
        self.drained(chunk, after, Some(error));
    }

    /// Returns the error that says why no path takes a chunk: what each said of it, or last.
    pub(super) fn no_space_for(&self, chunk: &ChunkRef, tried: &[(PathId, Errno)]) -> Error {
        let in_use = || (0..).zip(&self.health).filter(|(_, health)| !health.retired);
        if in_use().all(|(_, health)| health.hung)
            && let Some((index, _)) = in_use().next()
        {
            return self.hung_error("write", chunk, PathId(index));
        }
        let refused = self.health.iter().enumerate().filter_map(|(index, health)| {
            let path = PathId(index as u16);
            let own = tried.iter().rev().find(|(tried, _)| *tried == path);
            let errno = own.map(|(_, errno)| *errno).or(health.refused.map(|(_, errno)| errno));
            let dir = self.path(path).capabilities().dir.display().to_string();
            match errno {
                _ if health.hung => Some(format!("{dir}: does not answer")),
                errno => errno.map(|errno| format!("{dir}: {errno}")),
            }
        });
        Error::NoSpace {
            key: chunk.key_text(),
            bytes: Bytes(chunk.bytes()),
            tried: refused.collect(),
        }
    }

    /// A chunk was deleted before a path took it.
    fn call_off(&mut self, sealed: &mut Sealed) {
        self.drop_packed(sealed);
        let chunk = &sealed.chunk;
        let after = chunk.cell.lock().residency.drained(false);
        self.drained(chunk, after, None);
        self.delete(chunk);
    }

    /// A write-back ended one way or the other.
    fn drained(&mut self, chunk: &ChunkRef, after: After, error: Option<Error>) {
        let mut cell = chunk.cell.lock();
        let dropped = cell.drop_frame(after);
        let (woken, load) = cell.grant(chunk);
        drop(cell);
        drop(dropped);
        match after {
            After::Drop => self.forget(chunk),
            After::Stay => self.uncount_coming(chunk),
            After::WriteBack => self.queue_write_back(chunk),
        }
        self.settled(chunk, error.as_ref());
        self.handle.wake(chunk, woken, load);
    }

    /// Gives the space of a copy back.
    fn free_copy(&mut self, copy: DiskCopy) {
        copy.into_pieces().into_iter().for_each(|piece| self.free_piece(piece));
    }

    /// Gives space on a path back, now or when nothing that hangs reads it any more.
    pub(super) fn free_piece(&mut self, piece: Piece) {
        let Some(piece) = self.transfers.give_back(piece) else { return };
        let path = piece.path();
        self.path(path).free(piece.into_extent());
        self.health[path.index()].refused = None;
    }

    /// The object was unlinked: its memory and space go as soon as nobody uses them.
    pub(super) fn delete(&mut self, chunk: &ChunkRef) {
        let mut cell = chunk.cell.lock();
        let called_off = cell.residency.drain == residency::Drain::Queued;
        let after = cell.residency.delete();
        let dropped = cell.drop_frame(after);
        // A read under way ends before its extent is given back.
        let being_read = matches!(cell.frame(), FrameSlot::Filling(_));
        let at_rest = cell.residency.disk_unused() && !being_read;
        let disk = if at_rest { cell.disk.take() } else { None };
        let (woken, _) = cell.grant(chunk);
        drop(cell);
        drop(dropped);
        if called_off {
            self.handle.took_back(chunk);
        }
        if at_rest {
            // No write-back will free its memory: what counts on that must look again.
            self.uncount_coming(chunk);
        }
        if after == After::Drop {
            self.forget(chunk);
        }
        if let Some(disk) = disk {
            self.free_copy(disk);
        }
        self.handle.wake(chunk, woken, false);
    }

    /// A lease ended and dropped the frame on its way; the chunk may be on its way in again.
    pub(super) fn left(&mut self, chunk: &ChunkRef) {
        if matches!(chunk.cell.lock().frame(), FrameSlot::Empty) {
            self.forget(chunk);
        }
    }
}
