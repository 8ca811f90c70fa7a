//! The path in a directory of a file system: segments, a queue, and an engine, put together.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::admission::Direction;
use super::lock::ScratchDir;
use super::pump::{Part, Pump};
use super::request::{Answer, Request, TRANSFER_BYTES};
use super::segment::Segments;
use super::store::{ReadDone, TransferError, WriteDone};
use super::{Capabilities, CloseError, Condition, Extent, Outstanding, PathCounters};
use super::{PathProfile, PathStore, Tell};
use crate::arena::{FrameSlice, FrameSliceMut, GRANULE};
use crate::error::Errno;
use crate::id::Class;
use crate::io::Transfer;
use crate::sync::Mutex;

/// How long a store that is dropped without [`PathStore::close`] waits for what is in flight.
const DROP_GRACE: Duration = Duration::from_secs(5);

/// A path in a directory. Its files are in a directory of its own there, which goes when it closes.
#[derive(Debug)]
pub struct FilePathStore {
    pub(super) capabilities: Capabilities,
    /// What is true instead once the file system has refused a direct transfer.
    pub(super) without_direct: OnceLock<Capabilities>,
    pub(super) pump: Arc<Pump>,
    pub(super) segments: Arc<Segments>,
    pub(super) scratch: Mutex<Scratch>,
    pub(super) dir: std::os::fd::OwnedFd,
}

#[derive(Debug)]
pub(super) enum Scratch {
    Open(ScratchDir),
    /// What came of it; a directory that the kernel may still write to stays locked until the drop.
    Closed {
        result: std::result::Result<(), CloseError>,
        _kept: Option<ScratchDir>,
    },
}

impl FilePathStore {
    /// What would block in the kernel is not even begun on a path that hangs.
    fn refuse_when_hung(&self) -> std::result::Result<(), Errno> {
        match self.pump.condition() {
            Condition::Hung { .. } => Err(Errno(libc::ETIMEDOUT)),
            Condition::Good | Condition::Probation => Ok(()),
        }
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
            let closed = matches!(*self.scratch.lock(), Scratch::Closed { .. });
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
        if let Err((errno, parts)) = self.pump.submit(class, parts) {
            for Part { request, offset, transfer, .. } in parts {
                drop(transfer);
                let refused = Err(TransferError { errno, offset });
                if let Some((answer, result)) = request.part_done(refused) {
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

impl PathStore for FilePathStore {
    fn reserve(&self, bytes: u64) -> std::result::Result<Extent, Errno> {
        use std::os::fd::AsFd;
        self.refuse_when_hung()?;
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
        self.refuse_when_hung()?;
        self.segments.sync()
    }

    fn capabilities(&self) -> &Capabilities {
        let Some(errno) = self.segments.refused() else { return &self.capabilities };
        self.without_direct.get_or_init(|| Capabilities {
            direct: false,
            direct_why: format!(
                "O_DIRECT opens, but a direct transfer was refused later: {errno}; buffered \
                 transfers with RWF_DSYNC are used since"
            ),
            align: 1,
            ..self.capabilities.clone()
        })
    }

    fn profile(&self) -> PathProfile {
        self.pump.profile()
    }

    fn outstanding(&self) -> Outstanding {
        self.pump.outstanding()
    }

    fn depth_bytes(&self) -> u64 {
        self.pump.depth_bytes()
    }

    fn counters(&self) -> PathCounters {
        let (read_bytes, reads) = self.pump.done(Direction::Read);
        let (written_bytes, writes) = self.pump.done(Direction::Write);
        let (space_bytes, used_bytes) = self.segments.space();
        let hung = self.pump.hung();
        PathCounters {
            read_bytes,
            written_bytes,
            reads,
            writes,
            space_bytes,
            used_bytes,
            hung_operations: hung.operations,
            hung_bytes: hung.bytes,
            waited_for_processes: self.pump.waited(),
        }
    }

    fn condition(&self) -> Condition {
        self.pump.condition()
    }

    fn watch(&self, tell: Tell) {
        self.pump.watch(tell);
    }

    fn close(&self, grace: Duration) -> std::result::Result<(), CloseError> {
        let (in_flight, quiet) = self.pump.close(grace);
        let mut scratch = self.scratch.lock();
        let dir = match &mut *scratch {
            Scratch::Closed { result, .. } => return result.clone(),
            Scratch::Open(dir) => dir,
        };
        self.segments.close();
        let shown = self.capabilities.dir.display();
        let result = if quiet {
            dir.remove().map_err(|(left, errno)| CloseError {
                in_flight: 0,
                left,
                why: format!("not everything on path {shown} could be removed: {errno}"),
            })
        } else {
            // The kernel may still write to these files: whoever collects leftovers removes them.
            dir.let_stay();
            Err(CloseError {
                in_flight,
                left: vec![dir.path().to_owned()],
                why: format!("path {shown} left {in_flight} transfers unanswered for {grace:?}"),
            })
        };
        let closed = Scratch::Closed { result: result.clone(), _kept: None };
        if let Scratch::Open(dir) = std::mem::replace(&mut *scratch, closed)
            && !quiet
        {
            *scratch = Scratch::Closed { result: result.clone(), _kept: Some(dir) };
        }
        result
    }
}

impl Drop for FilePathStore {
    fn drop(&mut self) {
        if matches!(*self.scratch.lock(), Scratch::Closed { .. }) {
            return;
        }
        if let Err(error) = self.close(DROP_GRACE) {
            tracing::warn!(%error, "a path was dropped without a clean close");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{pattern, read, write};
    use super::super::{Path, leftovers};
    use super::*;
    use crate::arena::Arena;
    use crate::clock::Clock;
    use crate::io::decorate::{Fault, Faulty};
    use crate::io::{EngineChoice, IoEngine};
    use crate::units::BytesPerSecond;
    use std::sync::mpsc;
    use tempfile::TempDir;

    const MIB: u64 = 1 << 20;

    fn faulty(
        decide: impl Fn(u64, &crate::io::Operation) -> Fault + Send + Sync + 'static,
    ) -> (TempDir, FilePathStore) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        // Capped, so that no trial runs and the first operation is the test's own.
        let cap = BytesPerSecond(100e9);
        let options = Path::new(dir.path()).read_cap(cap).write_cap(cap);
        let (auto, clock) = (EngineChoice::Auto, Clock::system());
        let wrap = |inner| Arc::new(Faulty::new(inner, decide)) as Arc<dyn IoEngine>;
        let store = FilePathStore::open_decorated(&options, auto, clock, wrap).unwrap();
        (dir, store)
    }

    fn is_empty(dir: &std::path::Path) -> bool {
        std::fs::read_dir(dir).unwrap().count() == 0
    }

    #[test]
    fn a_dropped_store_removes_itself_and_stores_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            FilePathStore::open(&Path::new(dir.path()), EngineChoice::Auto, Clock::system())
                .unwrap()
        };
        let (first, second) = (open(), open());
        let found = leftovers(dir.path()).unwrap();
        assert!(found.len() == 2 && found.iter().all(|one| one.alive), "{found:?}");
        drop(first);
        assert!(second.capabilities().scratch.exists());
        drop(second);
        assert!(is_empty(dir.path()));
    }

    #[test]
    fn a_failed_part_fails_its_request_and_no_other() {
        let (_dir, store) = faulty(|index, _| match index {
            1 | 4 => Fault::Fail(Errno(libc::EIO)),
            _ => Fault::Pass,
        });
        let arena = Arena::new(16 * MIB).unwrap();
        let extent = store.reserve(3 * MIB).unwrap();
        let frame = || pattern(&arena, 3 * MIB, 5);
        assert_eq!(write(&store, &extent, frame()), Err(Errno(libc::EIO)));
        let failed = read(&store, &arena, &extent, 0, 3 * MIB).unwrap_err();
        assert_eq!((failed.errno.0, failed.offset), (libc::EIO, extent.offset() + MIB));
        assert_eq!(store.counters().writes + store.counters().reads, 0);
        assert_eq!(write(&store, &extent, frame()), Ok(()));
        assert!(*read(&store, &arena, &extent, 0, 3 * MIB).unwrap() == *frame());
        assert_eq!(store.outstanding(), Outstanding::default());
    }

    #[test]
    fn completions_in_reverse_reach_their_owners() {
        let (_dir, store) = faulty(|_, operation| match operation.transfer {
            Transfer::Read(_) => Fault::Hold(2),
            Transfer::Write(_) => Fault::Pass,
        });
        let arena = Arena::new(16 * MIB).unwrap();
        let extent = store.reserve(4 * MIB).unwrap();
        write(&store, &extent, pattern(&arena, 4 * MIB, 9)).unwrap();
        let (tell, told) = mpsc::channel();
        let mut guards = Vec::new();
        for index in 0..4 {
            let frame = arena.try_alloc(MIB).unwrap().unwrap();
            let (guard, into) = frame.fill_from_outside();
            guards.push(guard);
            let tell = tell.clone();
            let done = Box::new(move |result| tell.send((index, result)).unwrap());
            store.read(&extent, index * MIB, into, Class::Demand, done);
        }
        drop(tell);
        let expected = pattern(&arena, 4 * MIB, 9);
        assert_eq!(told.iter().filter(|(_, result)| result.is_ok()).count(), 4);
        for (part, guard) in expected.chunks(MIB as usize).zip(guards) {
            assert!(*guard.try_finish().unwrap() == *part);
        }
    }

    #[test]
    fn a_flipped_bit_is_one_bit() {
        let (_dir, store) = faulty(|_, _| Fault::FlipBit(12_345));
        let arena = Arena::new(MIB).unwrap();
        let extent = store.reserve(4096).unwrap();
        write(&store, &extent, pattern(&arena, 4096, 1)).unwrap();
        let back = read(&store, &arena, &extent, 0, 4096).unwrap();
        let good = pattern(&arena, 4096, 1);
        let bits: u32 = back.iter().zip(good.iter()).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((bits, back[1543] ^ good[1543]), (1, 2));
    }

    #[test]
    fn a_path_that_does_not_answer_is_closed_in_time_and_listed() {
        let (dir, store) = faulty(|_, _| Fault::Hold(usize::MAX));
        let arena = Arena::new(4 * MIB).unwrap();
        let extent = store.reserve(MIB).unwrap();
        let (tell, told) = mpsc::channel();
        let from = pattern(&arena, MIB, 1).share().whole();
        let done = Box::new(move |result| tell.send(result).unwrap());
        store.write(&extent, from, Class::WriteBack, done);
        let error = store.close(Duration::from_millis(20)).unwrap_err();
        assert_eq!((error.in_flight, error.left.len()), (1, 1), "{error}");
        assert_eq!(store.close(Duration::ZERO), Err(error));
        assert!(leftovers(dir.path()).unwrap()[0].alive);
        assert_eq!(arena.usage().in_use, MIB, "what the kernel may read is not given back");
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_cap_holds_back_what_its_time_has_not_come_for() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let cap = BytesPerSecond(100e6);
        let options = Path::new(dir.path()).read_cap(cap).write_cap(cap);
        let clock = Clock::manual();
        let store = FilePathStore::open(&options, EngineChoice::Auto, clock.clone()).unwrap();
        let arena = Arena::new(4 * MIB).unwrap();
        let extent = store.reserve(3 * MIB).unwrap();
        let (tell, told) = mpsc::channel();
        let from = pattern(&arena, 3 * MIB, 1).share().whole();
        store.write(&extent, from, Class::Demand, Box::new(move |r| tell.send(r).unwrap()));
        // The clock stands still: however long this takes, the second part's time does not come.
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
        assert_eq!(store.outstanding().write_bytes, 2 * MIB);
        clock.advance(Duration::from_secs(1));
        assert_eq!(told.recv().unwrap(), Ok(()));
        assert_eq!(store.profile().read_bps, 100e6);
        store.close(Duration::from_secs(10)).unwrap();
    }
}
