//! Sealing chunks to be written: compressed where that pays and a frame is free for the stored bytes,
//! as they are in memory otherwise. Nothing here ever waits for memory: what is to be written is often
//! what makes it. Checksums of bytes as they are in memory are taken while these are written.

use std::sync::{Arc, OnceLock};

use crate::arena::{Arena, FrameRef};
use crate::catalog::ChunkRef;
use crate::codec::{Checksums, Compression, Form, Trial};

use super::Sealed;
use super::state::Mover;
use super::worker::{HERE_BYTES, Job};

impl Mover {
    /// Seals a chunk, after a trial by a worker whether compressing it pays.
    pub(super) fn seal(&mut self, chunk: ChunkRef, frame: FrameRef) {
        let shared = &self.handle.shared;
        let known =
            if shared.checksums { chunk.cell.lock().take_sums() } else { Some(Form::default()) };
        let form = Arc::new(known.map_or_else(OnceLock::new, OnceLock::from));
        let (packed, summing, tried) = (None, false, Vec::new());
        let sealed = Sealed { chunk, form, summing, packed, held_bytes: 0, tried };
        if shared.compression == Compression::Off {
            self.sealed.push_back(sealed);
            return;
        }
        self.sealing += 1;
        let _ = self.workers.send(Job::Try { sealed, frame });
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
        match room {
            Some(into) => {
                let encoding = trial.encoding;
                let _ = self.workers.send(Job::Pack { sealed, frame, into, encoding });
            }
            None => self.sealed(sealed),
        }
    }

    /// A worker is done with a chunk: it waits for its place on a path.
    pub(super) fn sealed(&mut self, mut sealed: Sealed) {
        self.sealing -= 1;
        let kept_bytes = sealed.packed.as_ref().map_or(0, FrameRef::memory_bytes);
        // What was set aside was never counted.
        let held_bytes = kept_bytes.min(sealed.held_bytes);
        self.coming_bytes -= sealed.held_bytes - held_bytes;
        sealed.held_bytes = held_bytes;
        self.sealed.push_back(sealed);
    }

    /// Takes the checksums of a chunk that is about to be written, if they are not known; returns what
    /// a worker is to do for that.
    pub(super) fn sum(sealed: &mut Sealed, frame: &FrameRef) -> Option<Job> {
        if sealed.form.get().is_some() {
            return None;
        }
        if frame.len() <= HERE_BYTES {
            let _ = sealed.form.set(Form::new(Some(Checksums::of(frame)), None));
            return None;
        }
        sealed.summing = true;
        let (chunk, frame) = (sealed.chunk.clone(), frame.clone());
        Some(Job::Sum { chunk, frame, form: Arc::clone(&sealed.form) })
    }

    /// The checksums of a chunk are known, which may be all that its write-back waited for.
    pub(super) fn summed(&mut self, chunk: &ChunkRef) {
        if let Some(drain) = self.transfers.summed(chunk.id()) {
            self.written_or_not(drain);
        }
    }

    /// Gives the memory of a chunk's stored bytes back.
    pub(super) fn drop_packed(&mut self, sealed: &mut Sealed) {
        self.coming_bytes -= std::mem::take(&mut sealed.held_bytes);
        sealed.packed = None;
    }
}

impl Sealed {
    /// Returns how many bytes a path is to store.
    pub(super) fn stored_bytes(&self) -> u64 {
        let bytes = self.chunk.bytes();
        self.form.get().map_or(bytes, |form| form.stored_bytes(bytes))
    }

    /// Returns whether a worker reads its bytes: it may not be done with before.
    pub(super) fn is_being_summed(&self) -> bool {
        self.summing && self.form.get().is_none()
    }

    /// Returns the bytes a path is to store; `None` would mean that a draining chunk lost its frame.
    pub(super) fn frame_to_write(&self) -> Option<FrameRef> {
        match &self.packed {
            Some(frame) => Some(frame.clone()),
            None => self.chunk.cell.lock().frame_to_read(),
        }
    }
}
