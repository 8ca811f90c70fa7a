//! Frames lent to callers who fill them with new contents: handed over to a chunk, or given back.

use crate::arena::FrameMut;
use crate::catalog::{ChunkRef, FrameSlot};
use crate::codec::{Checksums, Form, copy};
use crate::sync::Ordering;
use crate::ticket::{Ticket, ticket};

use super::{Handle, Msg};

/// A frame that is somebody's to fill. Dropped, its memory comes back and the mover hears of it:
/// while frames are lent, who waits for memory goes on waiting.
#[derive(Debug)]
pub(crate) struct Lent {
    frame: Option<FrameMut>,
    handle: Handle,
}

impl Handle {
    /// Asks for a frame for new contents, of which `rest` bytes more will follow.
    pub(crate) fn borrow_frame(&self, bytes: u64, rest: u64) -> Ticket<Lent> {
        let (reply, frame) = ticket();
        self.send(Msg::Frame { bytes, rest, reply });
        frame
    }
}

impl Lent {
    /// Lends a frame; the mover has counted it.
    pub(super) fn new(frame: FrameMut, handle: Handle) -> Self {
        Lent { frame: Some(frame), handle }
    }

    /// Makes a copy of `bytes`, which are as many as the frame has, the contents of a chunk that was
    /// never in memory. Their checksums are taken on the way, while they are in the cache.
    pub(crate) fn become_contents(mut self, chunk: &ChunkRef, bytes: &[u8]) {
        let Some(mut frame) = self.frame.take() else { return };
        let sums = if self.handle.shared.checksums {
            Some(Form::new(Some(Checksums::of_copy(bytes, &mut frame)), None))
        } else {
            copy(bytes, &mut frame);
            None
        };
        let mut cell = chunk.cell.lock();
        cell.set_frame(FrameSlot::Here(frame.share()));
        if let Some(sums) = sums {
            cell.set_sums(sums);
        }
        cell.residency.put();
        drop(cell);
        chunk.last_use.store(self.handle.stamp(), Ordering::Relaxed);
        self.handle.send(Msg::Adopt(chunk.clone()));
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            drop(frame);
            self.handle.send(Msg::GivenBack);
        }
    }
}
