//! A tensor file as a path that is only read: its tensors become objects of a store at once, without
//! a byte being copied before it is asked for.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{TensorEntry, TensorFile};
use crate::arena::{FrameSlice, FrameSliceMut, granules_up};
use crate::error::{Errno, Error, Result};
use crate::id::Class;
use crate::path::{
    Capabilities, CloseError, Extent, Outstanding, PathCounters, PathProfile, PathStore, ReadDone,
    TransferError, WriteDone,
};
use crate::sync::channel::{self, Receiver, Sender};
use crate::sync::thread;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Threads that read a file: direct reads of one file take turns anyway.
const READERS: usize = 2;

/// The path of an adopted file. What is read is what the file holds at that moment: it must not be
/// changed while a store names it.
#[derive(Debug)]
pub(crate) struct AdoptedFile {
    shared: Arc<Shared>,
    /// `None` once closed; then the readers end.
    jobs: Mutex<Option<Sender<Job>>>,
    capabilities: Capabilities,
}

#[derive(Debug)]
struct Shared {
    file: TensorFile,
    /// Where the last tensor ends in the file.
    end: u64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    outstanding_bytes: AtomicU64,
}

struct Job {
    /// Bytes of the file; what the frame has beyond them is padding.
    range: Range<u64>,
    into: FrameSliceMut,
    done: ReadDone,
}

impl AdoptedFile {
    /// Takes a file over.
    ///
    /// # Errors
    /// [`Error::System`] when the system refuses threads.
    pub(crate) fn new(file: TensorFile) -> Result<Self> {
        let capabilities = capabilities(file.path(), file.how());
        let end = file.entries().iter().map(|entry| entry.range.end).max().unwrap_or(0);
        let shared = Arc::new(Shared {
            file,
            end,
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            outstanding_bytes: AtomicU64::new(0),
        });
        let (jobs, inbox) = channel::unbounded();
        for _ in 0..READERS {
            let (inbox, shared) = (Receiver::clone(&inbox), Arc::clone(&shared));
            thread::Builder::new()
                .name(String::from("tensortier-adopted"))
                .spawn(move || inbox.into_iter().for_each(|job| shared.read(job)))
                .map_err(|error| Error::System {
                    attempted: String::from("start a thread to read a tensor file"),
                    source: error.into(),
                    remedy: String::from("raise the limit on threads (ulimit -u)"),
                })?;
        }
        Ok(AdoptedFile { shared, jobs: Mutex::new(Some(jobs)), capabilities })
    }

    /// Returns the tensors of the file.
    pub(crate) fn entries(&self) -> &[TensorEntry] {
        self.shared.file.entries()
    }

    /// Returns the extent that `len` bytes of the file from `offset` on are; as all extents it is
    /// whole granules, so it may reach into what follows, or beyond the end.
    pub(crate) fn extent(offset: u64, len: u64) -> Extent {
        Extent::new(0, offset, granules_up(len))
    }
}

impl Shared {
    fn read(&self, job: Job) {
        let Job { range, mut into, done } = job;
        let (offset, bytes) = (range.start, range.end - range.start);
        let (here, padding) = into.split_at_mut(bytes as usize);
        // The range was cut from a checked entry, so its name says nothing that the error needs.
        let entry = TensorEntry {
            name: String::new(),
            dtype: crate::dtype::DType::U8,
            shape: vec![bytes],
            range,
        };
        let result = self.file.read_into(&entry, 0, here);
        padding.fill(0);
        self.outstanding_bytes.fetch_sub(into.len() as u64, Ordering::SeqCst);
        drop(into);
        if result.is_ok() {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.read_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
        done(result.map_err(|_| TransferError { errno: Errno(libc::EIO), offset }));
    }
}

fn capabilities(path: &Path, how: &str) -> Capabilities {
    Capabilities {
        device: 0,
        direct: how.starts_with("direct"),
        direct_why: how.to_owned(),
        engine_why: String::from("adopted files are read by threads"),
        write_in_flight_bytes: 0,
        ..Capabilities::of_own(path, "a tensor file")
    }
}

impl PathStore for AdoptedFile {
    fn reserve(&self, _bytes: u64) -> std::result::Result<Extent, Errno> {
        Err(Errno(libc::EROFS))
    }

    fn write(&self, _extent: &Extent, from: FrameSlice, _class: Class, done: WriteDone) {
        drop(from);
        done(Err(Errno(libc::EROFS)));
    }

    fn read(&self, extent: &Extent, at: u64, into: FrameSliceMut, _class: Class, done: ReadDone) {
        let start = extent.offset() + at;
        let end = (start + into.len() as u64).min(extent.offset() + extent.bytes());
        let end = end.min(self.shared.end);
        let refuse = |errno, into, done: ReadDone| {
            drop(into);
            done(Err(TransferError { errno: Errno(errno), offset: start }));
        };
        let jobs = self.jobs.lock().clone();
        let Some(jobs) = jobs else { return refuse(libc::ECANCELED, into, done) };
        if start > end {
            return refuse(libc::EINVAL, into, done);
        }
        self.shared.outstanding_bytes.fetch_add(into.len() as u64, Ordering::SeqCst);
        // The readers live as long as this sender, so the job is taken.
        let _ = jobs.send(Job { range: start..end, into, done });
    }

    fn free(&self, _extent: Extent) {}

    fn sync(&self) -> std::result::Result<(), Errno> {
        Ok(())
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn profile(&self) -> PathProfile {
        PathProfile::new(1e9, 1e9, 0.0)
    }

    fn outstanding(&self) -> Outstanding {
        let read_bytes = self.shared.outstanding_bytes.load(Ordering::SeqCst);
        Outstanding { read_bytes, write_bytes: 0 }
    }

    fn counters(&self) -> PathCounters {
        PathCounters {
            reads: self.shared.reads.load(Ordering::SeqCst),
            read_bytes: self.shared.read_bytes.load(Ordering::SeqCst),
            ..PathCounters::default()
        }
    }

    fn close(&self, _grace: Duration) -> std::result::Result<(), CloseError> {
        drop(self.jobs.lock().take());
        Ok(())
    }
}
