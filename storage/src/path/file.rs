//! The path in a directory of a file system: segments, a queue, and an engine, put together.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{Direction, Limits};
use super::lock::ScratchDir;
use super::pump::{Part, Pump};
use super::request::{Answer, Request};
use super::seed::{Rig, seed};
use super::segment::{Making, Segments};
use super::store::{ReadDone, TransferError, WriteDone};
use super::{Capabilities, CloseError, Extent, Outstanding, Path, PathCounters};
use super::{PathProfile, PathStore};
use crate::arena::{FrameSlice, FrameSliceMut, GRANULE};
use crate::clock::Clock;
use crate::error::{Errno, Error, Result};
use crate::id::Class;
use crate::io::{EngineChoice, IoEngine, Transfer, probe, start_engine};
use crate::sync::Mutex;

/// The most that one operation moves. Large enough that a device runs at its full rate with a few of
/// them, small enough that an urgent one does not wait long behind others.
pub const TRANSFER_BYTES: u64 = 1 << 20;

/// How long a store that is dropped without [`PathStore::close`] waits for what is in flight.
const DROP_GRACE: Duration = Duration::from_secs(5);

/// A path in a directory. Its files are in a directory of its own there, which goes when it closes.
#[derive(Debug)]
pub struct FilePathStore {
    capabilities: Capabilities,
    pump: Arc<Pump>,
    segments: Arc<Segments>,
    scratch: Mutex<Scratch>,
    dir: std::os::fd::OwnedFd,
}

#[derive(Debug)]
enum Scratch {
    Open(ScratchDir),
    Closed(std::result::Result<(), CloseError>),
}

impl FilePathStore {
    /// Makes a directory of its own in the path's, finds out what it can do, and starts an engine.
    /// Unless both rates are capped, writes and reads a few MiB to see how fast it is (some 100 ms).
    ///
    /// # Errors
    /// [`Error::PathUnusable`] when the directory is missing, not writable or full, [`Error::Config`]
    /// when the engine asked for is not available, [`Error::System`] without threads or memory.
    /// Nothing is left behind then.
    pub fn open(options: &Path, engine: EngineChoice, clock: Clock) -> Result<Self> {
        Self::open_with(options, engine, clock, |engine| engine)
    }

    /// As [`FilePathStore::open`], with the engine that `decorate` makes of the one chosen.
    ///
    /// # Errors
    /// As [`FilePathStore::open`].
    #[cfg(any(test, feature = "testing"))]
    pub fn open_decorated(
        options: &Path,
        engine: EngineChoice,
        clock: Clock,
        decorate: impl FnOnce(Arc<dyn IoEngine>) -> Arc<dyn IoEngine>,
    ) -> Result<Self> {
        Self::open_with(options, engine, clock, decorate)
    }

    fn open_with(
        options: &Path,
        choice: EngineChoice,
        clock: Clock,
        decorate: impl FnOnce(Arc<dyn IoEngine>) -> Arc<dyn IoEngine>,
    ) -> Result<Self> {
        validate(options)?;
        let scratch = ScratchDir::create(&options.dir)?;
        let found = probe::negotiate_in(scratch.fd(), &options.dir, choice)?;
        let limits = Limits::new(options.kind, options.read_cap, options.write_cap);
        let workers = limits.in_flight_bytes.iter().sum::<u64>() / TRANSFER_BYTES;
        let engine = decorate(start_engine(found.engine, workers as usize)?);
        let quota = options.quota.map_or(u64::MAX, |quota| quota.0);
        let (direct, fallocate) = (found.direct, found.fallocate);
        let segments = Arc::new(Segments::new(Making { direct, fallocate, quota }));
        // What the page cache has taken is not yet accepted for good.
        let dsync = !direct;
        let dir = scratch.fd();
        let profile = seed(&Rig { engine: &*engine, segments: &segments, dir, dsync }, options);
        let pump = Pump::start(engine, clock, dsync, limits, profile)?;
        let dir = dir.try_clone_to_owned().map_err(|error| {
            probe::unusable(&options.dir, "keep the directory open", error.into())
        })?;
        let capabilities = capabilities(options, &scratch, found, &limits);
        let scratch = Mutex::new(Scratch::Open(scratch));
        Ok(FilePathStore { capabilities, pump, segments, scratch, dir })
    }

    /// Queues the parts of a transfer.
    fn start(&self, extent: &Extent, at: u64, transfer: Transfer, class: Class, answer: Answer) {
        let bytes = transfer.bytes();
        let offset = extent.offset().saturating_add(at);
        let end = at.checked_add(bytes);
        let fits = end.is_some_and(|end| end <= extent.bytes());
        let is_whole = bytes.is_multiple_of(GRANULE) && at.is_multiple_of(GRANULE);
        let refuse = |answer: Answer, errno| {
            answer.tell(Err(TransferError { errno: Errno(errno), offset }));
        };
        let file = self.segments.file(extent, transfer.is_write());
        let Some(file) = file.filter(|_| fits && is_whole) else {
            let closed = matches!(*self.scratch.lock(), Scratch::Closed(_));
            drop(transfer);
            return refuse(answer, if closed { libc::ECANCELED } else { libc::EINVAL });
        };
        if bytes == 0 {
            drop(transfer);
            return answer.tell(Ok(()));
        }
        let parts = bytes.div_ceil(TRANSFER_BYTES);
        let request = Arc::new(Request::new(answer, bytes, parts));
        let parts = split(transfer)
            .zip((0..parts).map(|part| offset + part * TRANSFER_BYTES))
            .map(|(transfer, offset)| {
                let (request, file) = (Arc::clone(&request), Arc::clone(&file));
                Part { request, file, offset, transfer }
            })
            .collect();
        if let Err(parts) = self.pump.submit(class, parts) {
            for Part { request, offset, transfer, .. } in parts {
                drop(transfer);
                let canceled = Err(TransferError { errno: Errno(libc::ECANCELED), offset });
                if let Some((answer, result)) = request.part_done(canceled) {
                    answer.tell(result);
                }
            }
        }
    }
}

/// Cuts a transfer into parts of at most [`TRANSFER_BYTES`].
fn split(transfer: Transfer) -> impl Iterator<Item = Transfer> {
    let mut rest = Some(transfer);
    std::iter::from_fn(move || {
        let at = TRANSFER_BYTES as usize;
        let (part, more) = match rest.take()? {
            Transfer::Read(into) => {
                let (part, more) = into.split_at(at);
                (Transfer::Read(part), Transfer::Read(more))
            }
            Transfer::Write(from) => {
                let (part, more) = from.split_at(at);
                (Transfer::Write(part), Transfer::Write(more))
            }
        };
        rest = (more.bytes() > 0).then_some(more);
        Some(part)
    })
}

fn validate(options: &Path) -> Result<()> {
    for (what, cap) in [("read cap", options.read_cap), ("write cap", options.write_cap)] {
        if cap.is_some_and(|cap| !cap.0.is_finite() || cap.0 < GRANULE as f64) {
            return Err(Error::Config {
                what: format!("{what} of path {}", options.dir.display()),
                why: String::from("at least 4096 B/s are needed; leave it out for no cap"),
            });
        }
    }
    if options.quota.is_some_and(|quota| quota.0 < GRANULE) {
        return Err(Error::Config {
            what: format!("quota of path {}", options.dir.display()),
            why: String::from("at least 4 KiB are needed; leave it out for no quota"),
        });
    }
    Ok(())
}

fn capabilities(
    options: &Path,
    scratch: &ScratchDir,
    found: probe::Negotiated,
    limits: &Limits,
) -> Capabilities {
    let [read_in_flight_bytes, write_in_flight_bytes] = limits.in_flight_bytes;
    Capabilities {
        dir: options.dir.clone(),
        scratch: scratch.path().to_owned(),
        kind: options.kind,
        file_system: found.file_system.to_string(),
        device: found.device,
        direct: found.direct,
        direct_why: found.direct_why,
        align: found.align,
        fallocate: found.fallocate,
        locks: found.locks,
        engine: found.engine,
        engine_why: found.engine_why,
        read_in_flight_bytes,
        write_in_flight_bytes,
    }
}

impl PathStore for FilePathStore {
    fn reserve(&self, bytes: u64) -> std::result::Result<Extent, Errno> {
        use std::os::fd::AsFd;
        self.segments.reserve(self.dir.as_fd(), bytes)
    }

    fn write(&self, extent: &Extent, from: FrameSlice, class: Class, done: WriteDone) {
        self.start(extent, 0, Transfer::Write(from), class, Answer::Write(done));
    }

    fn read(&self, extent: &Extent, at: u64, into: FrameSliceMut, class: Class, done: ReadDone) {
        self.start(extent, at, Transfer::Read(into), class, Answer::Read(done));
    }

    fn free(&self, extent: Extent) {
        self.segments.free(&extent);
    }

    fn sync(&self) -> std::result::Result<(), Errno> {
        self.segments.sync()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn profile(&self) -> PathProfile {
        self.pump.profile()
    }

    fn outstanding(&self) -> Outstanding {
        self.pump.outstanding()
    }

    fn counters(&self) -> PathCounters {
        let (read_bytes, reads) = self.pump.done(Direction::Read);
        let (written_bytes, writes) = self.pump.done(Direction::Write);
        let (space_bytes, used_bytes) = self.segments.space();
        PathCounters { read_bytes, written_bytes, reads, writes, space_bytes, used_bytes }
    }

    fn close(&self, grace: Duration) -> std::result::Result<(), CloseError> {
        let (in_flight, quiet) = self.pump.close(grace);
        let mut scratch = self.scratch.lock();
        let dir = match &mut *scratch {
            Scratch::Closed(result) => return result.clone(),
            Scratch::Open(dir) => dir,
        };
        self.segments.close();
        let result = if quiet {
            dir.remove().map_err(|(left, errno)| CloseError {
                in_flight: 0,
                left,
                why: format!("not everything on path {} could be removed: {errno}", self.shown()),
            })
        } else {
            // The kernel may still write to these files: whoever collects leftovers removes them.
            dir.let_stay();
            Err(CloseError {
                in_flight,
                left: vec![dir.path().to_owned()],
                why: format!(
                    "path {} did not answer {in_flight} transfers within {grace:?}",
                    self.shown()
                ),
            })
        };
        *scratch = Scratch::Closed(result.clone());
        result
    }
}

impl FilePathStore {
    fn shown(&self) -> std::path::Display<'_> {
        self.capabilities.dir.display()
    }
}

impl Drop for FilePathStore {
    fn drop(&mut self) {
        if matches!(*self.scratch.lock(), Scratch::Closed(_)) {
            return;
        }
        if let Err(error) = self.close(DROP_GRACE) {
            tracing::warn!(%error, "a path was dropped without a clean close");
        }
    }
}
