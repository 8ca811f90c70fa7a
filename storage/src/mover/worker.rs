//! Threads for what costs processor time between memory and a path: checksums, compression, and
//! zeroing frames of chunks that were never written.

use std::sync::{Arc, OnceLock};

use crate::arena::{FrameMut, FrameRef};
use crate::catalog::ChunkRef;
use crate::codec::{Bad, Checksums, Encoding, Form, Mismatch, Packed, Scratch, Trial, Undecodable};
use crate::error::{Error, Result};
use crate::sync::channel::{self, Receiver, Sender};
use crate::sync::thread;

use super::{Handle, Msg, Sealed, refuse_thread};

/// More threads would only wait for memory.
const MOST_WORKERS: usize = 2;

/// Up to so many bytes the mover does what a worker would: to wake one takes as long.
pub(super) const HERE_BYTES: usize = 64 << 10;

pub(super) enum Job {
    /// Find out whether compressing a chunk to be written pays.
    Try { sealed: Sealed, frame: FrameRef },
    /// Compress a chunk to be written into a frame.
    Pack { sealed: Sealed, frame: FrameRef, into: FrameMut, encoding: Encoding },
    /// Take the checksums of a chunk that is being written.
    Sum { chunk: ChunkRef, frame: FrameRef, form: Arc<OnceLock<Form>> },
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
    match job {
        Job::Try { sealed, frame } => match Trial::of(&frame, sealed.chunk.width(), scratch) {
            Some(trial) => Msg::Pays { sealed, frame, trial },
            None => Msg::Sealed { sealed },
        },
        Job::Pack { sealed, frame, into, encoding } => {
            let sums = handle.shared.checksums;
            Msg::Sealed { sealed: pack(sealed, &frame, (into, encoding), sums, scratch) }
        }
        Job::Sum { chunk, frame, form } => {
            let sums = Checksums::of(&frame);
            // Whoever sees them may count on the frame being free.
            drop(frame);
            let _ = form.set(Form::new(Some(sums), None));
            Msg::Summed(chunk)
        }
        Job::Zero { chunk, mut frame } => {
            frame.fill(0);
            Msg::Filled { chunk, result: Ok(frame) }
        }
        Job::Verify { chunk, frame, form } => {
            Msg::Filled { result: verify(handle, &chunk, frame, &form, scratch), chunk }
        }
    }
}

/// Makes a loaded frame the chunk that was written.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Undecodable`].
pub(super) fn verify(
    handle: &Handle,
    chunk: &ChunkRef,
    mut frame: FrameMut,
    form: &Form,
    scratch: &mut Scratch,
) -> Result<FrameMut> {
    match form.restore(&mut frame, scratch) {
        Ok(()) => Ok(frame),
        Err(bad) => Err(corrupt(handle, chunk, form, &bad)),
    }
}

/// Compresses a chunk into a frame, of which it keeps no more than it needs; leaves it as it is if it
/// needs more.
fn pack(
    mut sealed: Sealed,
    chunk: &FrameRef,
    (mut into, encoding): (FrameMut, Encoding),
    sums: bool,
    scratch: &mut Scratch,
) -> Sealed {
    if let Some(packed) = Packed::pack(chunk, encoding, &mut into, scratch) {
        into.truncate(packed.stored_bytes() as usize);
        let sums = sums.then(|| Checksums::of_parts(packed.parts(&into)));
        sealed.form = Arc::new(OnceLock::from(Form::new(sums, Some(packed))));
        sealed.packed = Some(into.share());
    }
    sealed
}

fn corrupt(handle: &Handle, chunk: &ChunkRef, form: &Form, bad: &Bad) -> Error {
    let offset = form.stored_offset(bad.block());
    let path = chunk.cell.lock().disk.as_ref().and_then(|disk| disk.path_at(offset));
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
