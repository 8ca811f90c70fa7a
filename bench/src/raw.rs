//! The yardstick: the path store alone, moving the same frames to and from its share of the same
//! files, without the store above it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use tensortier::storage::arena::{Arena, FillGuard, FrameMut, FrameRef};
use tensortier::storage::id::Class;
use tensortier::storage::path::{Extent, PathStore};

use crate::Failure;
use crate::share::Share;

/// One path and frames to move: reads have all of them under way, writes as many as keep the drive busy.
#[derive(Debug)]
pub struct Raw {
    path: Arc<Share>,
    frames: Vec<Slot>,
    extents: Vec<Option<Extent>>,
    chunk_bytes: u64,
    done: Sender<Done>,
    ended: Receiver<Done>,
}

#[derive(Debug)]
struct Done {
    slot: usize,
    chunk: usize,
    ok: bool,
}

#[derive(Debug)]
enum Slot {
    Here(FrameMut),
    Filling(FillGuard),
    Written(FrameRef),
    Moving,
}

/// What happens to every chunk of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Its extent is read.
    Read,
    /// It is written to a fresh extent, and the old one freed.
    Write,
    /// It is read, then written from the same frame.
    Update,
}

impl Raw {
    /// Takes `frames` frames; nothing of the `chunks` chunks is on the path until a pass wrote it.
    ///
    /// # Errors
    /// Those of the path, or that there is no memory.
    pub fn new(
        path: Arc<Share>,
        chunk_bytes: u64,
        chunks: usize,
        frames: usize,
    ) -> Result<Self, Failure> {
        let arena = Arena::new(chunk_bytes * frames as u64)?;
        let frame = |_| -> Result<Slot, Failure> {
            let mut frame = arena.try_alloc(chunk_bytes)?.ok_or("no room for a frame")?;
            frame.fill(0x5A);
            Ok(Slot::Here(frame))
        };
        let frames = (0..frames).map(frame).collect::<Result<_, _>>()?;
        let extents = (0..chunks).map(|_| None).collect();
        let (done, ended) = channel();
        Ok(Raw { path, frames, extents, chunk_bytes, done, ended })
    }

    /// Makes one pass over all chunks in order and waits for the end.
    ///
    /// # Errors
    /// Those of the path.
    pub fn pass(&mut self, pass: Pass) -> Result<(), Failure> {
        self.pass_over(0..self.extents.len(), pass)
    }

    /// Makes one pass over some of the chunks in order and waits for the end.
    ///
    /// # Errors
    /// Those of the path, or that there are not so many chunks.
    pub fn pass_over(&mut self, chunks: Range<usize>, pass: Pass) -> Result<(), Failure> {
        if chunks.end > self.extents.len() {
            return Err(format!("chunks {chunks:?} of {}", self.extents.len()).into());
        }
        let mut next = chunks.start;
        let mut fresh: Vec<Option<Extent>> = Vec::new();
        fresh.resize_with(self.extents.len(), || None);
        let mut under_way = 0;
        for _ in 0..chunks.len().min(self.at_once(pass)) {
            self.begin(next, pass, &mut fresh)?;
            (next, under_way) = (next + 1, under_way + 1);
        }
        while under_way > 0 {
            let Done { slot, chunk, ok } = self.ended.recv()?;
            if !ok {
                return Err(format!("chunk {chunk} could not be moved").into());
            }
            let was_read = matches!(self.frames[slot], Slot::Filling(_));
            self.rest(slot)?;
            if was_read && pass == Pass::Update {
                self.write(slot, chunk, &mut fresh)?;
                continue;
            }
            if let Some(fresh) = fresh[chunk].take()
                && let Some(old) = self.extents[chunk].replace(fresh)
            {
                self.path.free(old);
            }
            under_way -= 1;
            if next < chunks.end {
                self.begin(next, pass, &mut fresh)?;
                (next, under_way) = (next + 1, under_way + 1);
            }
        }
        Ok(())
    }

    /// Returns how many chunks are moved at once. Writes keep the drive busy and no more, as those of
    /// the store do.
    fn at_once(&self, pass: Pass) -> usize {
        match pass {
            Pass::Write => {
                let busy = (self.path.depth_bytes() / self.chunk_bytes) as usize + 2;
                busy.min(self.frames.len())
            }
            Pass::Read | Pass::Update => self.frames.len(),
        }
    }

    /// Returns a frame at rest. All have their turn: a few used again and again would stay in caches.
    fn frame_for(&self, chunk: usize) -> Option<usize> {
        let count = self.frames.len();
        let mut slots = (0..count).map(|i| (chunk + i) % count);
        slots.find(|slot| matches!(self.frames[*slot], Slot::Here(_)))
    }

    fn begin(
        &mut self,
        chunk: usize,
        pass: Pass,
        fresh: &mut [Option<Extent>],
    ) -> Result<(), Failure> {
        let slot = self.frame_for(chunk).ok_or("no frame is at rest")?;
        if pass == Pass::Write {
            return self.write(slot, chunk, fresh);
        }
        let Slot::Here(frame) = std::mem::replace(&mut self.frames[slot], Slot::Moving) else {
            return Err("a frame is not at rest".into());
        };
        let extent = self.extents[chunk].as_ref().ok_or("nothing was written yet")?;
        let (guard, into) = frame.fill_from_outside();
        self.frames[slot] = Slot::Filling(guard);
        let done = self.done.clone();
        let end = move |ok| drop(done.send(Done { slot, chunk, ok }));
        self.path.read(extent, 0, into, Class::Demand, Box::new(move |r| end(r.is_ok())));
        Ok(())
    }

    fn write(
        &mut self,
        slot: usize,
        chunk: usize,
        fresh: &mut [Option<Extent>],
    ) -> Result<(), Failure> {
        let Slot::Here(frame) = std::mem::replace(&mut self.frames[slot], Slot::Moving) else {
            return Err("a frame is not at rest".into());
        };
        let extent = self.path.reserve(self.chunk_bytes)?;
        let frame = frame.share();
        let from = frame.whole();
        self.frames[slot] = Slot::Written(frame);
        let done = self.done.clone();
        let end = move |ok| drop(done.send(Done { slot, chunk, ok }));
        self.path.write(&extent, from, Class::WriteBack, Box::new(move |r| end(r.is_ok())));
        fresh[chunk] = Some(extent);
        Ok(())
    }

    fn rest(&mut self, slot: usize) -> Result<(), Failure> {
        let frame = match std::mem::replace(&mut self.frames[slot], Slot::Moving) {
            Slot::Filling(guard) => guard.try_finish().ok(),
            Slot::Written(frame) => frame.try_exclusive().ok(),
            Slot::Here(frame) => Some(frame),
            Slot::Moving => None,
        };
        self.frames[slot] = Slot::Here(frame.ok_or("a path answered with a frame still held")?);
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.extents.drain(..).flatten().for_each(|extent| self.path.free(extent));
    }
}
