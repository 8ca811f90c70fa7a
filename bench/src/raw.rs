//! The yardstick: the path store alone, moving the same frames to and from the same directory,
//! without the store above it.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use tensortier::storage::arena::{Arena, FillGuard, FrameMut, FrameRef};
use tensortier::storage::clock::Clock;
use tensortier::storage::id::Class;
use tensortier::storage::io::EngineChoice;
use tensortier::storage::path::{self, Extent, FilePathStore, PathStore};

use crate::Failure;

/// One path and frames to move; what is under way at a time is what all frames hold.
#[derive(Debug)]
pub struct Raw {
    path: FilePathStore,
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
    /// Opens the path and writes `chunks` chunks once, with `frames` frames.
    ///
    /// # Errors
    /// Those of the path.
    pub fn open(
        dir: &Path,
        chunk_bytes: u64,
        chunks: usize,
        frames: usize,
    ) -> Result<Self, Failure> {
        let options = path::Path::new(dir);
        let path = FilePathStore::open(&options, EngineChoice::Auto, Clock::system())?;
        let arena = Arena::new(chunk_bytes * frames as u64)?;
        let frame = |_| -> Result<Slot, Failure> {
            let mut frame = arena.try_alloc(chunk_bytes)?.ok_or("no room for a frame")?;
            frame.fill(0x5A);
            Ok(Slot::Here(frame))
        };
        let frames = (0..frames).map(frame).collect::<Result<_, _>>()?;
        let extents = (0..chunks).map(|_| None).collect();
        let (done, ended) = channel();
        let mut raw = Raw { path, frames, extents, chunk_bytes, done, ended };
        raw.pass(Pass::Write)?;
        Ok(raw)
    }

    /// Returns how many bytes a pass moves each way it goes.
    pub fn bytes(&self) -> u64 {
        self.chunk_bytes * self.extents.len() as u64
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
        let mut fresh: VecDeque<Option<Extent>> = VecDeque::new();
        fresh.resize_with(self.extents.len(), || None);
        let mut under_way = 0;
        for slot in 0..self.frames.len().min(chunks.len()) {
            self.begin(slot, next, pass, &mut fresh)?;
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
                self.begin(slot, next, pass, &mut fresh)?;
                (next, under_way) = (next + 1, under_way + 1);
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        slot: usize,
        chunk: usize,
        pass: Pass,
        fresh: &mut VecDeque<Option<Extent>>,
    ) -> Result<(), Failure> {
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
        fresh: &mut VecDeque<Option<Extent>>,
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
