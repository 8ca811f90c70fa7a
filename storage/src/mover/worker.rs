//! Threads for what costs processor time between memory and a path: checksums, and zeroing frames
//! of chunks that were never written.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::arena::{FrameMut, FrameRef};
use crate::catalog::Chunk;
use crate::codec::{Checksums, Mismatch};
use crate::error::{Error, Result};
use crate::id::PathId;

use super::{Handle, Msg, Sealed, refuse_thread};

/// More threads would only wait for memory.
const MOST_WORKERS: usize = 2;

pub(super) enum Job {
    /// Take the checksums of a chunk to be written.
    Seal { sealed: Sealed, frame: FrameRef },
    /// Compare a loaded frame with the checksums of its write.
    Verify { chunk: Arc<Chunk>, frame: FrameMut, sums: Checksums, path: PathId },
    /// Make a chunk that was never written.
    Zero { chunk: Arc<Chunk>, frame: FrameMut },
}

/// Starts the workers; they end when the sender is dropped.
///
/// # Errors
/// [`Error::System`] when the system refuses a thread.
pub(super) fn start(handle: &Handle) -> Result<Sender<Job>> {
    let (sender, jobs) = crossbeam_channel::unbounded();
    let count = std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_WORKERS));
    for index in 0..count {
        let (jobs, handle) = (Receiver::clone(&jobs), handle.clone());
        std::thread::Builder::new()
            .name(format!("tensortier-codec-{index}"))
            .spawn(move || {
                for job in jobs {
                    handle.send(run(job, &handle));
                }
            })
            .map_err(|error| refuse_thread(&error))?;
    }
    Ok(sender)
}

fn run(job: Job, handle: &Handle) -> Msg {
    match job {
        Job::Seal { mut sealed, frame } => {
            sealed.sums = Some(Checksums::of(&frame));
            Msg::Sealed { sealed }
        }
        Job::Zero { chunk, mut frame } => {
            frame.fill(0);
            Msg::Filled { chunk, result: Ok(frame) }
        }
        Job::Verify { chunk, frame, sums, path } => {
            let result = match sums.verify(&frame) {
                Ok(()) => Ok(frame),
                Err(mismatch) => Err(corrupt(handle, &chunk, path, mismatch)),
            };
            Msg::Filled { chunk, result }
        }
    }
}

fn corrupt(handle: &Handle, chunk: &Chunk, path: PathId, mismatch: Mismatch) -> Error {
    Error::Corrupt {
        key: chunk.key_text(),
        chunk: chunk.id.index,
        path: handle.shared.paths.get(path).capabilities().dir.clone(),
        block: mismatch.block,
        expected: mismatch.expected,
        actual: mismatch.actual,
    }
}
