//! A first view of a path's speed: a few MiB written and read through the engine that will be used.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::request::TRANSFER_BYTES;
use super::segment::Segments;
use super::{Extent, Path, PathProfile};
use crate::arena::{Arena, FrameMut, FrameRef, GRANULE};
use crate::error::Errno;
use crate::io::{IoEngine, Operation, Transfer};
use crate::units::BytesPerSecond;

/// How much is moved at a time once the first transfer has shown that it will not take long.
const BATCH_BYTES: u64 = 4 << 20;

/// How long each way may take, roughly: a transfer that has begun is waited for.
const EACH_WAY: Duration = Duration::from_millis(60);

/// What is assumed of a path that could not be tried.
const UNKNOWN_BPS: f64 = 500e6;

/// What is needed to try a path.
pub(super) struct Rig<'a> {
    pub(super) engine: &'a dyn IoEngine,
    pub(super) segments: &'a Segments,
    pub(super) dir: BorrowedFd<'a>,
}

/// Returns a first view of the path: its caps where both are set, else its part of what a short trial
/// of the device shows, cut to the caps. The directions are taken to share one device unless both are
/// capped: learning that they do not costs less than the opposite.
pub(super) fn seed(rig: &Rig<'_>, options: &Path, sharers: usize) -> PathProfile {
    if let (Some(read), Some(write)) = (options.read_cap, options.write_cap) {
        return PathProfile::new(read.0, write.0, 0.0);
    }
    let (read, write) = trial(rig).unwrap_or_else(|errno| {
        tracing::debug!(%errno, dir = %options.dir.display(), "the speed could not be tried");
        (UNKNOWN_BPS, UNKNOWN_BPS)
    });
    part_of_device((read, write), sharers, options)
}

/// Returns the view of one of the `sharers` of a device that was seen to read and write at these rates.
fn part_of_device((read, write): (f64, f64), sharers: usize, options: &Path) -> PathProfile {
    let part = |bps: f64, cap: Option<BytesPerSecond>| {
        let part = bps / sharers as f64;
        cap.map_or(part, |cap| part.min(cap.0))
    };
    PathProfile::new(part(read, options.read_cap), part(write, options.write_cap), 1.0)
}

/// Returns the read and write rate of a short trial.
fn trial(rig: &Rig<'_>) -> Result<(f64, f64), Errno> {
    let extent = [BATCH_BYTES, TRANSFER_BYTES, 16 * GRANULE, GRANULE]
        .into_iter()
        .find_map(|bytes| rig.segments.reserve(rig.dir, bytes).ok())
        .ok_or(Errno(libc::ENOSPC))?;
    let result = try_both(rig, &extent);
    rig.segments.free(&extent);
    result
}

fn try_both(rig: &Rig<'_>, extent: &Extent) -> Result<(f64, f64), Errno> {
    let no_memory = Errno(libc::ENOMEM);
    let trial = Trial {
        engine: rig.engine,
        file: rig.segments.file(extent, true).ok_or(Errno(libc::ENOENT))?,
        offset: extent.offset(),
        // What the page cache has taken is not yet accepted for good.
        dsync: !rig.segments.is_direct(),
    };
    let arena = Arena::new(extent.bytes()).map_err(|_| no_memory)?;
    let frame = arena.try_alloc(extent.bytes()).map_err(|_| no_memory)?;
    let mut frame = frame.ok_or(no_memory)?;
    fill_with_noise(&mut frame);
    let shared = frame.share();
    let write = rate(extent.bytes(), |bytes| trial.write(&shared, bytes))?;
    // What the page cache holds is no measure of what is below it.
    let _ = rustix::fs::fadvise(&*trial.file, 0, None, rustix::fs::Advice::DontNeed);
    let mut back = shared.try_exclusive().ok();
    let read = rate(extent.bytes(), |bytes| {
        back = Some(trial.read(back.take().ok_or(no_memory)?, bytes)?);
        Ok(())
    })?;
    Ok((read, write))
}

/// Some file systems store nothing for bytes that are all alike.
fn fill_with_noise(frame: &mut FrameMut) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for word in frame.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

/// Returns bytes per second of `go`: one transfer first, and if that was quick, batches of `most`
/// bytes, of which the fastest counts: others may be using the device just now.
fn rate(most: u64, mut go: impl FnMut(u64) -> Result<(), Errno>) -> Result<f64, Errno> {
    let begin = Instant::now();
    let mut timed = |bytes: u64| -> Result<f64, Errno> {
        let begin = Instant::now();
        go(bytes)?;
        Ok(bytes as f64 / begin.elapsed().as_secs_f64().max(1e-6))
    };
    let first = timed(most.min(TRANSFER_BYTES))?;
    let mut best = first;
    let expected = Duration::from_secs_f64(most as f64 / first);
    while begin.elapsed() + expected < EACH_WAY && begin.elapsed() < EACH_WAY / 2 {
        best = best.max(timed(most)?);
    }
    Ok(best)
}

struct Trial<'a> {
    engine: &'a dyn IoEngine,
    file: Arc<File>,
    offset: u64,
    dsync: bool,
}

impl Trial<'_> {
    fn write(&self, frame: &FrameRef, bytes: u64) -> Result<(), Errno> {
        let (mut rest, _) = frame.whole().split_at(bytes as usize);
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (part, more) = rest.split_at(TRANSFER_BYTES as usize);
            parts.push(Transfer::Write(part));
            rest = more;
        }
        self.run(parts)
    }

    fn read(&self, frame: FrameMut, bytes: u64) -> Result<FrameMut, Errno> {
        let (guard, whole) = frame.fill_from_outside();
        let (mut rest, unused) = whole.split_at(bytes as usize);
        drop(unused);
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (part, more) = rest.split_at(TRANSFER_BYTES as usize);
            parts.push(Transfer::Read(part));
            rest = more;
        }
        drop(rest);
        self.run(parts)?;
        guard.try_finish().map_err(|_| Errno(libc::EIO))
    }

    /// Moves all parts at once and waits for them.
    fn run(&self, parts: Vec<Transfer>) -> Result<(), Errno> {
        let (tell, told) = mpsc::channel();
        let mut offset = self.offset;
        for transfer in parts {
            let bytes = transfer.bytes();
            let tell = tell.clone();
            self.engine.submit(Operation {
                file: Arc::clone(&self.file),
                offset,
                transfer,
                dsync: self.dsync,
                done: Box::new(move |completion| {
                    drop(completion.transfer);
                    let _ = tell.send(completion.result);
                }),
            });
            offset += bytes;
        }
        drop(tell);
        let mut result = Ok(());
        // All of them, also after an error: the memory must be back.
        for one in told {
            result = result.and(one);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_on_one_device_share_what_a_trial_shows_but_not_what_they_are_capped_to() {
        let path = Path::new("/somewhere").write_cap(BytesPerSecond(200e6));
        let view = |sharers| part_of_device((3e9, 1e9), sharers, &path);
        assert_eq!((view(1).read_bps, view(1).write_bps), (3e9, 200e6));
        assert_eq!((view(3).read_bps, view(3).write_bps), (1e9, 200e6));
        assert_eq!(view(10).write_bps, 100e6);
    }
}
