//! Threads for what costs processor time between memory and a path: checksums, compression, and
//! zeroing frames of chunks that were never written.

use crate::arena::{FrameMut, FrameRef};
use crate::catalog::ChunkRef;
use crate::codec::{Bad, Checksums, Encoding, Form, Mismatch, Packed, Scratch, Trial, Undecodable};
use crate::error::{Error, Result};
use crate::sync::channel::{self, Receiver, Sender};
use crate::sync::thread;

use super::{Handle, Msg, Sealed, refuse_thread};

/// More threads would only wait for memory.
const MOST_WORKERS: usize = 2;

pub(super) enum Job {
    /// Find out whether compressing a chunk to be written pays, and seal it if not.
    Try { sealed: Sealed, frame: FrameRef },
    /// Take the checksums of a chunk to be written, compressed into a frame if there is one.
    Seal { sealed: Sealed, frame: FrameRef, into: Option<(FrameMut, Encoding)> },
    /// Make a loaded frame the chunk that was written.
    Verify { chunk: ChunkRef, frame: FrameMut, form: Form },
    /// Make a chunk that was never written.
    Zero { chunk: ChunkRef, frame: FrameMut },
}

/// Starts the workers; they end when the sender is dropped.
///
/// # Errors
/// [`Error::System`] when the system refuses a thread.
pub(super) fn start(handle: &Handle) -> Result<Sender<Job>> {
    let (sender, jobs) = channel::unbounded();
    let count = thread::available_parallelism().map_or(1, |n| n.get().min(MOST_WORKERS));
    for index in 0..count {
        let (jobs, handle) = (Receiver::clone(&jobs), handle.clone());
        thread::Builder::new()
            .name(format!("tensortier-codec-{index}"))
            .spawn(move || {
                let mut scratch = Scratch::default();
                for job in jobs {
                    handle.send(run(job, &handle, &mut scratch));
                }
            })
            .map_err(|error| refuse_thread(&error))?;
    }
    Ok(sender)
}

fn run(job: Job, handle: &Handle, scratch: &mut Scratch) -> Msg {
    let checksums = handle.shared.checksums;
    match job {
        Job::Try { sealed, frame } => match Trial::of(&frame, sealed.chunk.width(), scratch) {
            Some(trial) => Msg::Pays { sealed, frame, trial },
            None => Msg::Sealed { sealed: seal(sealed, &frame, checksums) },
        },
        Job::Seal { mut sealed, frame, into } => {
            sealed.packed = into.and_then(|(into, encoding)| pack(&frame, into, encoding, scratch));
            Msg::Sealed { sealed: seal(sealed, &frame, checksums) }
        }
        Job::Zero { chunk, mut frame } => {
            frame.fill(0);
            Msg::Filled { chunk, result: Ok(frame) }
        }
        Job::Verify { chunk, mut frame, form } => {
            let result = match form.restore(&mut frame, scratch) {
                Ok(()) => Ok(frame),
                Err(bad) => Err(corrupt(handle, &chunk, &form, &bad)),
            };
            Msg::Filled { chunk, result }
        }
    }
}

/// Compresses a chunk into a frame, of which it keeps no more than it needs.
fn pack(
    chunk: &FrameRef,
    mut into: FrameMut,
    encoding: Encoding,
    scratch: &mut Scratch,
) -> Option<(FrameRef, Packed)> {
    let packed = Packed::pack(chunk, encoding, &mut into, scratch)?;
    into.truncate(packed.stored_bytes() as usize);
    Some((into.share(), packed))
}

fn seal(mut sealed: Sealed, frame: &FrameRef, checksums: bool) -> Sealed {
    if checksums {
        sealed.sums = Some(match &sealed.packed {
            Some((stored, packed)) => Checksums::of_parts(packed.parts(stored)),
            None => Checksums::of(frame),
        });
    }
    sealed
}

fn corrupt(handle: &Handle, chunk: &ChunkRef, form: &Form, bad: &Bad) -> Error {
    let offset = form.stored_offset(bad.block());
    let path = chunk.cell.lock().disk.as_ref().and_then(|disk| disk.pieces.path_at(offset));
    let dir = |path| handle.shared.paths.get(path).capabilities().dir.clone();
    let path = path.map(dir).unwrap_or_default();
    let (key, chunk) = (chunk.key_text(), chunk.index());
    match bad {
        Bad::Sum(Mismatch { block, expected, actual }) => {
            Error::Corrupt { key, chunk, path, block: *block, expected: *expected, actual: *actual }
        }
        Bad::Code(Undecodable { block }) => Error::Undecodable { key, chunk, path, block: *block },
    }
}
