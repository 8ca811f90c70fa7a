//! Bringing chunks into memory: wants in the order of their class, a frame for each, then a read, a
//! check, and the leases that waited.

use std::time::Instant;

use crate::arena::{FrameMut, granules_up};
use crate::catalog::{ChunkRef, FrameSlot};
use crate::codec::Form;
use crate::error::{Error, Result};
use crate::id::{Class, PathId, Version};
use crate::path::TransferError;
use crate::residency::{After, Host, Prefetch};
use crate::sync::Ordering;
use crate::units::Bytes;

use super::room::Frame;
use super::state::Mover;
use super::want::{Demand, Hint, Want};
use super::worker::Job;
use super::{Lent, Loading, Msg};

impl Mover {
    /// Serves wants until one must wait for memory: demands first, then prefetches, then what the
    /// declared schedule says comes next.
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
        self.demand.push_back(Demand { want, since: Instant::now() });
    }

    fn pump_demand(&mut self) -> bool {
        self.look_again = None;
        while let Some(Demand { want, since }) = self.demand.pop_front() {
            if want.is_abandoned() {
                self.give_up_want(want);
                continue;
            }
            match self.find_frame(want.bytes(), Class::Demand) {
                Frame::Found(frame) => self.serve(want, frame),
                Frame::Coming => {
                    self.demand.push_front(Demand { want, since });
                    return false;
                }
                Frame::Never(Error::BudgetExhausted { .. }) if since.elapsed() < self.patience => {
                    self.look_again = since.checked_add(self.patience);
                    self.demand.push_front(Demand { want, since });
                    return false;
                }
                Frame::Never(error) => want.refuse(&error),
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
            if !hint.is_past() && !self.prefetch_one(&hint.chunk) {
                self.prefetch.push_front(hint);
                return false;
            }
        }
        true
    }

    /// Begins the load of a chunk if it needs one; returns whether it is done with. Only a chunk
    /// that must leave first, or memory that is on its way, make it wait.
    pub(super) fn prefetch_one(&mut self, chunk: &ChunkRef) -> bool {
        if chunk.cell.lock().residency.wants_load() {
            match self.find_frame(chunk.bytes(), Class::Prefetch) {
                Frame::Found(frame) => return self.prefetch_into(chunk, frame),
                Frame::Coming => return false,
                Frame::Never(_) => return true,
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
        chunk.last_use.store(self.handle.tick(), Ordering::Relaxed);
        chunk.awaited.store(true, Ordering::Relaxed);
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
        chunk.last_use.store(self.handle.tick(), Ordering::Relaxed);
        if answer == (Prefetch::Needless { rescued: true }) {
            self.handle.took_back(chunk);
        }
        answer != Prefetch::Leaving
    }

    /// Fills a frame with the chunk's newest version; its residency is `Filling` already.
    fn fill(&mut self, chunk: ChunkRef, frame: FrameMut, class: Class) {
        self.filling += 1;
        self.resident.insert(chunk.id(), chunk.clone());
        let counters = &self.handle.shared.counters;
        let mut cell = chunk.cell.lock();
        cell.framed(Instant::now());
        let Some(disk) = &cell.disk else {
            debug_assert_eq!(cell.residency.newest, Version(0));
            cell.set_frame(FrameSlot::Out);
            drop(cell);
            counters.zero_fills.add(1);
            counters.zero_fill_bytes.add(chunk.bytes());
            let _ = self.workers.send(Job::Zero { chunk, frame });
            return;
        };
        let (path, extent) = (disk.piece.path(), disk.piece.extent());
        let (guard, into) = frame.fill_from_outside();
        // What is stored compressed is decompressed from here, in place.
        let stored_bytes = disk.form.stored_bytes(chunk.bytes());
        let into = into.split_at(granules_up(stored_bytes) as usize).0;
        cell.set_frame(FrameSlot::Filling(guard));
        drop(cell);
        counters.loads.add(1);
        counters.load_bytes.add(chunk.bytes());
        let handle = self.handle.clone();
        let done = Box::new(move |result| handle.send(Msg::Read { chunk, path, result }));
        self.path(path).read(&extent, 0, into, class, done);
    }

    /// A path answered a read: check the bytes, or tell who waits what went wrong.
    pub(super) fn read_done(
        &mut self,
        chunk: ChunkRef,
        path: PathId,
        result: std::result::Result<(), TransferError>,
    ) {
        let mut cell = chunk.cell.lock();
        let form = cell.disk.as_ref().map(|disk| disk.form.clone());
        let slot = cell.take_frame(FrameSlot::Out);
        drop(cell);
        let frame = match slot {
            FrameSlot::Filling(guard) => guard.try_finish().ok(),
            _ => None,
        };
        let read = |error: TransferError| Error::Read {
            key: chunk.key_text(),
            chunk: chunk.index(),
            path: self.path(path).capabilities().dir.clone(),
            offset: error.offset,
            bytes: Bytes(chunk.bytes()),
            source: error.errno,
        };
        match (result, frame, form.filter(Form::is_work)) {
            (Ok(()), Some(frame), Some(form)) => {
                let _ = self.workers.send(Job::Verify { chunk, frame, form, path });
            }
            (Ok(()), Some(frame), None) => self.filled(&chunk, Ok(frame)),
            (Err(error), frame, _) => {
                // Whoever is told may count on its memory being free.
                drop(frame);
                let error = read(error);
                self.filled(&chunk, Err(error));
            }
            // A path that answers before it let go of the memory broke its contract.
            (Ok(()), None, _) => {
                debug_assert!(false, "a read was answered with its slices still held");
                self.filled(&chunk, Err(Error::Closed));
            }
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
        self.resident.insert(chunk.id(), chunk);
    }
}
