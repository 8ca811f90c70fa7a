//! Sealing chunks to be written: compressed where that pays and a frame is free for the stored bytes,
//! as they are in memory otherwise. Nothing here ever waits for memory: what is to be written is often
//! what makes it.

use crate::arena::{Arena, FrameRef};
use crate::catalog::ChunkRef;
use crate::codec::{Compression, Packed, Trial};

use super::Sealed;
use super::state::Mover;
use super::worker::Job;

impl Mover {
    /// Has a worker take a chunk's checksums, after a trial whether compressing it pays.
    pub(super) fn seal(&mut self, chunk: ChunkRef, frame: FrameRef) {
        let sealed = Sealed { chunk, sums: None, packed: None, held_bytes: 0, tried: Vec::new() };
        let shared = &self.handle.shared;
        let job = if shared.compression != Compression::Off {
            Job::Try { sealed, frame }
        } else if shared.checksums {
            Job::Seal { sealed, frame, into: None }
        } else {
            self.sealed.push_back(sealed);
            return;
        };
        self.sealing += 1;
        let _ = self.workers.send(job);
    }

    /// Compressing pays: goes on with a frame for the stored bytes, or without.
    pub(super) fn pack(&mut self, mut sealed: Sealed, frame: FrameRef, trial: Trial) {
        let shared = &self.handle.shared;
        let in_arena = |arena: &Arena| arena.try_alloc(trial.room_bytes).ok().flatten();
        let mut room = shared.packing.as_ref().and_then(in_arena);
        if room.is_none() {
            room = in_arena(&shared.arena);
            // It comes back with the write, as the chunk's own frame does. Whoever waits for memory
            // must see it so, or he would evict what the schedule keeps in place of it.
            sealed.held_bytes = if room.is_some() { trial.room_bytes } else { 0 };
            self.coming_bytes += sealed.held_bytes;
        }
        let into = room.map(|room| (room, trial.encoding));
        let _ = self.workers.send(Job::Seal { sealed, frame, into });
    }

    /// A worker is done with a chunk: it waits for its place on a path.
    pub(super) fn sealed(&mut self, mut sealed: Sealed) {
        self.sealing -= 1;
        let kept_bytes = sealed.packed.as_ref().map_or(0, |(frame, _)| frame.memory_bytes());
        // What was set aside was never counted.
        let held_bytes = kept_bytes.min(sealed.held_bytes);
        self.coming_bytes -= sealed.held_bytes - held_bytes;
        sealed.held_bytes = held_bytes;
        self.sealed.push_back(sealed);
    }

    /// Gives the memory of a chunk's stored bytes back, and returns how they are compressed.
    pub(super) fn drop_packed(&mut self, sealed: &mut Sealed) -> Option<Packed> {
        self.coming_bytes -= std::mem::take(&mut sealed.held_bytes);
        sealed.packed.take().map(|(_, packed)| packed)
    }
}

impl Sealed {
    /// Returns how many bytes a path is to store.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.packed.as_ref().map_or(self.chunk.bytes(), |(_, packed)| packed.stored_bytes())
    }

    /// Returns the bytes a path is to store; `None` would mean that a draining chunk lost its frame.
    pub(super) fn frame_to_write(&self) -> Option<FrameRef> {
        match &self.packed {
            Some((frame, _)) => Some(frame.clone()),
            None => self.chunk.cell.lock().frame_to_read(),
        }
    }
}
