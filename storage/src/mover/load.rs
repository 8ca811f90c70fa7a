//! Bringing chunks into memory: wants in the order of their class, a frame for each, then a read, a
//! check, and the leases that waited.

use std::time::Instant;

use crate::arena::{FrameMut, granules_up};
use crate::catalog::{ChunkRef, DiskCopy, FrameSlot};
use crate::codec::Form;
use crate::error::{Error, Result};
use crate::id::{Class, PathId, Version};
use crate::path::{Condition, TransferError};
use crate::residency::{After, Host, Prefetch};
use crate::sync::Ordering;
use crate::units::Bytes;

use super::room::{Frame, Need};
use super::state::Mover;
use super::transfers::{Answered, Load, Part, TransferId};
use super::want::{Demand, Hint, Want};
use super::worker::{self, HERE_BYTES, Job};
use super::{Lent, Loading, Msg};

/// How often a read that failed is tried again: an error may pass.
const RETRIES: u32 = 2;

impl Mover {
    /// Serves wants until one must wait for memory: demands first, then prefetches, then what the
    /// declared schedule says comes next. But memory for new contents and for prefetches is given in
    /// turns where both wait: who writes more than the paths take would otherwise have all of it, and
    /// nothing be read ahead.
    pub(super) fn pump_memory(&mut self) {
        // Set before the look at the chunks, so that a lease that ends during it is not missed. What
        // the mover itself frees meanwhile is no news.
        self.handle.shared.starving.store(true, Ordering::SeqCst);
        self.handle.shared.arena.set_starving(false);
        let waiting = !self.pump_demand() || !self.pump_prefetch() || !self.pump_ahead();
        self.handle.shared.starving.store(waiting, Ordering::SeqCst);
        self.handle.shared.arena.set_starving(waiting);
    }

    /// Takes note of chunks that will be wanted.
    pub(super) fn hint(&mut self, chunks: Vec<ChunkRef>, said: u64) {
        self.prefetch.extend(chunks.into_iter().map(|chunk| Hint { chunk, said }));
    }

    /// Takes note of a demand.
    pub(super) fn want(&mut self, want: Want) {
        self.demand.push_back(Demand { want, since: self.now() });
    }

    fn pump_demand(&mut self) -> bool {
        self.look_again = None;
        while let Some(Demand { want, since }) = self.demand.pop_front() {
            if want.is_abandoned() {
                self.give_up_want(want);
                continue;
            }
            let is_new = matches!(want, Want::Frame { .. });
            if is_new && self.prefetch_turn {
                self.prefetch_turn = !self.prefetch_in_turn();
            }
            match self.find_frame(want.bytes(), Need::Demand) {
                Frame::Found(frame) => {
                    self.evict_ahead(want.rest());
                    self.serve(want, frame);
                    self.prefetch_turn |= is_new;
                }
                Frame::Coming => {
                    self.demand.push_front(Demand { want, since });
                    return false;
                }
                Frame::Held(_) if self.now().saturating_sub(since) < self.patience => {
                    self.look_again = since.checked_add(self.patience);
                    self.demand.push_front(Demand { want, since });
                    return false;
                }
                Frame::Held(error) | Frame::Never(error) => want.refuse(&error),
            }
        }
        true
    }

    fn serve(&mut self, want: Want, frame: FrameMut) {
        match want {
            Want::Load(loading) => {
                if let Some(chunk) = loading.take() {
                    self.fill(chunk, frame, Class::Demand);
                }
            }
            Want::Frame { reply, .. } => {
                self.lent += 1;
                reply.complete(Ok(Lent::new(frame, self.handle.clone())));
            }
        }
    }

    /// Drops a want of nobody; somebody may have come since it was looked at.
    fn give_up_want(&mut self, want: Want) {
        if let Want::Load(loading) = want
            && let Some(chunk) = loading.take()
        {
            self.want(Want::Load(Loading::of(&chunk)));
        }
    }

    fn pump_prefetch(&mut self) -> bool {
        while let Some(hint) = self.prefetch.pop_front() {
            if !hint.is_past() && !self.prefetch_one(&hint.chunk, u64::MAX) {
                self.prefetch.push_front(hint);
                return false;
            }
        }
        true
    }

    /// Gives memory to one prefetch; returns whether one took it or none wants it.
    fn prefetch_in_turn(&mut self) -> bool {
        let before = self.filling;
        while self.filling == before {
            let Some(hint) = self.prefetch.pop_front() else { break };
            if !hint.is_past() && !self.prefetch_one(&hint.chunk, u64::MAX) {
                self.prefetch.push_front(hint);
                return false;
            }
        }
        true
    }

    /// Begins the load of a chunk if it needs one; returns whether it is done with. Only a chunk
    /// that must leave first, or memory that is on its way, make it wait. Of what schedules name,
    /// only what is used further away than `beyond` makes room.
    pub(super) fn prefetch_one(&mut self, chunk: &ChunkRef, beyond: u64) -> bool {
        if chunk.cell.lock().residency.wants_load() {
            if self.on_hung_path(chunk).is_some() {
                return true;
            }
            match self.find_frame(chunk.bytes(), Need::Prefetch { beyond }) {
                Frame::Found(frame) => return self.prefetch_into(chunk, frame),
                Frame::Coming => return false,
                Frame::Held(_) | Frame::Never(_) => return true,
            }
        }
        self.touch(chunk)
    }

    fn prefetch_into(&mut self, chunk: &ChunkRef, frame: FrameMut) -> bool {
        if chunk.cell.lock().residency.prefetch() != Prefetch::Load {
            // A lease asked for it since it was looked at: the frame is for that one, whose message
            // is on its way. What is used later would take it, and cost a chunk that is kept.
            return false;
        }
        chunk.last_use.store(self.handle.stamp(), Ordering::Relaxed);
        self.fill(chunk.clone(), frame, Class::Prefetch);
        true
    }

    /// A prefetch of a chunk that is in memory keeps it there; returns whether it does.
    fn touch(&mut self, chunk: &ChunkRef) -> bool {
        let mut cell = chunk.cell.lock();
        if cell.residency.host == Host::Filling && matches!(cell.frame(), FrameSlot::Empty) {
            // A lease asked for it, and its message is on its way: nothing used later goes before.
            return false;
        }
        let answer = cell.residency.prefetch();
        if answer == Prefetch::Load {
            // It left between two looks; the next look finds it a frame.
            cell.residency.filled(false);
            return false;
        }
        drop(cell);
        chunk.last_use.store(self.handle.stamp(), Ordering::Relaxed);
        if answer == (Prefetch::Needless { rescued: true }) {
            self.handle.took_back(chunk);
        }
        answer != Prefetch::Leaving
    }

    /// Fills a frame with the chunk's newest version; its residency is `Filling` already.
    fn fill(&mut self, chunk: ChunkRef, frame: FrameMut, class: Class) {
        self.filling += 1;
        self.enter(&chunk);
        let counters = &self.handle.shared.counters;
        let mut cell = chunk.cell.lock();
        cell.framed(Instant::now());
        let awaited = class == Class::Prefetch && cell.is_unwaited();
        cell.set_awaited(awaited);
        let frame = match cell.grant_to_overwrite(frame) {
            Ok(woken) => {
                if let Some(keeper) = self.resident.get(&chunk.id()) {
                    cell.set_keeper(keeper);
                }
                drop(cell);
                self.filling -= 1;
                return self.handle.wake(&chunk, woken, false);
            }
            Err(frame) => frame,
        };
        if cell.disk.is_none() {
            debug_assert_eq!(cell.residency.newest, Version(0));
            cell.set_frame(FrameSlot::Out);
            drop(cell);
            counters.zero_fills.add(1);
            counters.zero_fill_bytes.add(chunk.bytes());
            let _ = self.workers.send(Job::Zero { chunk, frame });
            return;
        };
        drop(cell);
        counters.loads.add(1);
        counters.load_bytes.add(chunk.bytes());
        self.read(chunk, frame, class, 0);
    }

    /// Has the paths fill a frame with the chunk's stored bytes, which failed so often before.
    fn read(&mut self, chunk: ChunkRef, frame: FrameMut, class: Class, failed: u32) {
        let (guard, into) = frame.fill_from_outside();
        let mut cell = chunk.cell.lock();
        cell.set_frame(FrameSlot::Filling(guard));
        let disk = cell.disk.as_ref();
        let extents: Vec<_> = disk.into_iter().flat_map(DiskCopy::extents).collect();
        let stored_bytes = disk.map_or(0, |disk| disk.form().stored_bytes(chunk.bytes()));
        drop(cell);
        debug_assert!(!extents.is_empty(), "a chunk to be read has no copy on a path");
        let left = extents.len();
        self.transfers.begin_load(Load { chunk: chunk.clone(), class, failed, left, error: None });
        // What is stored compressed is decompressed from here, in place.
        let mut rest = into.split_at(granules_up(stored_bytes) as usize).0;
        for (path, extent) in extents {
            let (into, after) = rest.split_at(extent.bytes() as usize);
            rest = after;
            let (named, chunk) = (extent.alias(), chunk.clone());
            let transfer = self.transfers.add(Part::Read { chunk, path, extent });
            let handle = self.handle.clone();
            let done = Box::new(move |result| handle.send(Msg::Read { transfer, result }));
            self.path(path).read(&named, 0, into, class, done);
        }
    }

    /// A path answered a read. After the last part of a chunk: check the bytes, try again, or tell who
    /// waits what went wrong.
    pub(super) fn read_done(
        &mut self,
        id: TransferId,
        result: std::result::Result<(), TransferError>,
    ) {
        let Load { chunk, class, failed, error, .. } = match self.transfers.read(id, result) {
            Answered::Whole(load) => load,
            Answered::Part => return,
            Answered::Late => return self.answered_late(id),
        };
        let mut cell = chunk.cell.lock();
        let form = cell.disk.as_ref().map(DiskCopy::form);
        let slot = cell.take_frame(FrameSlot::Out);
        drop(cell);
        let frame = match slot {
            FrameSlot::Filling(guard) => guard.try_finish().ok(),
            _ => None,
        };
        match (error, frame, form.filter(Form::is_work)) {
            (None, Some(frame), Some(form)) if frame.len() <= HERE_BYTES => {
                let scratch = &mut self.scratch;
                let result = worker::verify(&self.handle, &chunk, frame, &form, scratch);
                self.filled(&chunk, result);
            }
            (None, Some(frame), Some(form)) => {
                let _ = self.workers.send(Job::Verify { chunk, frame, form });
            }
            (None, Some(frame), None) => self.filled(&chunk, Ok(frame)),
            (Some((path, error)), Some(frame), _)
                if failed < RETRIES && self.may_pass(&chunk, path, error) =>
            {
                self.handle.shared.counters.retried.add(1);
                self.read(chunk, frame, class, failed + 1);
            }
            (Some((path, error)), frame, _) => {
                // Whoever is told may count on its memory being free.
                drop(frame);
                let error = self.read_error(&chunk, path, error);
                self.filled(&chunk, Err(error));
            }
            // A path that answers before it let go of the memory broke its contract.
            (None, None, _) => {
                debug_assert!(false, "a read was answered with its slices still held");
                self.filled(&chunk, Err(Error::Closed));
            }
        }
    }

    /// Returns whether a read that failed is worth another try.
    fn may_pass(&self, chunk: &ChunkRef, path: PathId, error: TransferError) -> bool {
        let final_ones = [libc::ECANCELED, libc::EINVAL, libc::ENODATA, libc::ETIMEDOUT];
        let wanted = !chunk.cell.lock().residency.deleted && self.closing.is_none();
        wanted && !self.health[path.index()].hung && !final_ones.contains(&error.errno.0)
    }

    fn read_error(&self, chunk: &ChunkRef, path: PathId, error: TransferError) -> Error {
        let store = self.path(path);
        // A hung path says so of what it never began, before the mover hears that it hangs.
        let hangs = || matches!(store.condition(), Condition::Hung { .. });
        if error.errno.0 == libc::ETIMEDOUT && hangs() {
            return self.hung_error("read", chunk, path);
        }
        Error::Read {
            key: chunk.key_text(),
            chunk: chunk.index(),
            path: store.capabilities().dir.clone(),
            offset: error.offset,
            bytes: Bytes(chunk.bytes()),
            source: error.errno,
        }
    }

    /// A frame is ready, or will not be: the leases that waited go on.
    pub(super) fn filled(&mut self, chunk: &ChunkRef, result: Result<FrameMut>) {
        self.filling -= 1;
        let mut cell = chunk.cell.lock();
        let mut woken = Vec::new();
        let after = match result {
            Ok(frame) => {
                cell.set_frame(FrameSlot::Here(frame.share()));
                if let Some(keeper) = self.resident.get(&chunk.id()) {
                    cell.set_keeper(keeper);
                }
                cell.residency.filled(true)
            }
            Err(error) => {
                cell.set_frame(FrameSlot::Empty);
                cell.residency.filled(false);
                woken = cell.refuse_all(&error);
                After::Drop
            }
        };
        let dropped = cell.drop_frame(after);
        let (granted, load) = cell.grant(chunk);
        let gone = cell.residency.deleted;
        drop(cell);
        drop(dropped);
        woken.extend(granted);
        if after == After::Drop {
            self.forget(chunk);
        }
        if gone {
            self.delete(chunk);
        }
        self.handle.wake(chunk, woken, load);
    }

    /// A put handed its frame over to a chunk.
    pub(super) fn adopt(&mut self, chunk: ChunkRef) {
        self.lent -= 1;
        self.enter(&chunk);
        if let Some(keeper) = self.resident.get(&chunk.id()) {
            chunk.cell.lock().set_keeper(keeper);
        }
    }
}
