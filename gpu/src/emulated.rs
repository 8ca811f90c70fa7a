//! A device without hardware: its own allocations, a worker per stream, and copies that are late on
//! purpose, so that a missing wait shows as wrong bytes.

mod page_locks;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use crate::device::{CopyOut, Device, DeviceBuffer, HostSource, HostTarget, Memory, Stream};
use crate::error::{Error, Result};
use crate::event::{Event, Trigger};
use crate::id::DeviceId;
use crate::page_lock::{HostMemory, PageLock};

use page_locks::{Locked, PageLocks};

/// The name by which the emulated device is asked for.
pub const NAME: &str = "emulated";

/// What fresh device memory holds: not zero, so that a forgotten copy shows.
const UNDEFINED: u8 = 0xA5;

/// How an emulated device behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How much memory it has; taken from the host as it is allocated.
    pub memory_bytes: u64,
    /// How long after its call a copy starts at the earliest.
    pub lateness: Duration,
    /// How much host memory it may page-lock.
    pub lockable_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory_bytes: 1 << 30,
            lateness: Duration::from_millis(1),
            lockable_bytes: u64::MAX,
        }
    }
}

/// The emulated device.
pub struct Emulated {
    options: Options,
    used: Arc<AtomicU64>,
    page_locks: Arc<PageLocks>,
    unlocked_bytes: AtomicU64,
}

/// An allocation; the device counts its bytes until the last copy on it is done.
#[derive(Debug)]
struct Allocation {
    bytes: Mutex<Vec<u8>>,
    length: u64,
    used: Arc<AtomicU64>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.length, Ordering::SeqCst);
    }
}

enum Work {
    In { from: HostSource, range: Range<usize>, to: Arc<Allocation>, at: usize },
    Out { from: Arc<Allocation>, at: usize, into: HostTarget, back: Sender<HostTarget> },
    Wait(Event),
    Nothing,
}

struct Queued {
    work: Work,
    /// What of the host's memory stays locked until it is done.
    locked: Vec<Arc<Locked>>,
    not_before: Instant,
    done: Trigger,
}

impl Emulated {
    const ID: DeviceId = DeviceId(0);

    /// Returns a device that behaves as `options` say.
    pub fn new(options: Options) -> Self {
        Emulated {
            options,
            used: Arc::new(AtomicU64::new(0)),
            page_locks: Arc::new(PageLocks::new(options.lockable_bytes)),
            unlocked_bytes: AtomicU64::new(0),
        }
    }

    /// Returns how much of what was ever copied was not page-locked on the host's side, in bytes.
    pub fn copied_unlocked_bytes(&self) -> u64 {
        self.unlocked_bytes.load(Ordering::SeqCst)
    }

    fn allocation(&self, buffer: &DeviceBuffer) -> Result<Arc<Allocation>> {
        Arc::clone(&buffer.memory).downcast().map_err(|_| foreign("buffer", buffer.device))
    }

    /// Keeps a copy's host memory locked where it is, and counts what is not.
    fn hold_locked(&self, memory: &[u8]) -> Vec<Arc<Locked>> {
        let (locked, unlocked_bytes) = self.page_locks.under(memory);
        self.unlocked_bytes.fetch_add(unlocked_bytes, Ordering::SeqCst);
        locked
    }

    fn queue(&self, stream: &Stream, work: Work, locked: Vec<Arc<Locked>>) -> Result<Event> {
        let Some(queue) = stream.queue.downcast_ref::<Sender<Queued>>() else {
            return Err(foreign("stream", stream.device));
        };
        let (event, done) = Event::new();
        let not_before = Instant::now() + self.options.lateness;
        let queued = Queued { work, locked, not_before, done };
        queue.send(queued).map_err(|_| Error::StreamLost)?;
        Ok(event)
    }
}

impl Device for Emulated {
    fn id(&self) -> DeviceId {
        Self::ID
    }

    fn name(&self) -> &str {
        NAME
    }

    fn memory(&self) -> Memory {
        let total_bytes = self.options.memory_bytes;
        let used = self.used.load(Ordering::SeqCst);
        Memory { total_bytes, free_bytes: total_bytes.saturating_sub(used) }
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceBuffer> {
        let total = self.options.memory_bytes;
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= total);
        let length = usize::try_from(bytes).ok();
        let taken = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        let (Some(length), Ok(_)) = (length, taken) else {
            return Err(Error::OutOfMemory {
                device: Self::ID,
                bytes,
                free_bytes: self.memory().free_bytes,
                total_bytes: total,
            });
        };
        let memory = Allocation {
            bytes: Mutex::new(vec![UNDEFINED; length]),
            length: bytes,
            used: Arc::clone(&self.used),
        };
        Ok(DeviceBuffer { device: Self::ID, bytes, memory: Arc::new(memory) })
    }

    fn page_lock(&self, memory: Arc<dyn HostMemory>) -> Result<PageLock> {
        self.page_locks.lock(memory)
    }

    fn page_locked_bytes(&self) -> u64 {
        self.page_locks.bytes()
    }

    fn open_stream(&self) -> Result<Stream> {
        let (queue, work) = crossbeam_channel::unbounded();
        std::thread::Builder::new()
            .name("tt-emulated".into())
            .spawn(move || run(&work))
            .map_err(|error| Error::Stream { why: error.to_string() })?;
        Ok(Stream { device: Self::ID, queue: Arc::new(queue) })
    }

    fn copy_in(
        &self,
        stream: &Stream,
        from: HostSource,
        range: Range<usize>,
        to: &mut DeviceBuffer,
        offset: u64,
    ) -> Result<Event> {
        let memory = self.allocation(to)?;
        let host = (*from).as_ref();
        let bytes = range.end.saturating_sub(range.start) as u64;
        fits("host memory", host.len() as u64, range.start as u64, bytes)?;
        fits("device buffer", to.bytes, offset, bytes)?;
        let locked = self.hold_locked(host.get(range.clone()).unwrap_or_default());
        self.queue(stream, Work::In { from, range, to: memory, at: offset as usize }, locked)
    }

    fn copy_out(
        &self,
        stream: &Stream,
        from: &DeviceBuffer,
        offset: u64,
        mut into: HostTarget,
    ) -> Result<CopyOut> {
        let memory = self.allocation(from)?;
        let host = (*into).as_mut();
        fits("device buffer", from.bytes, offset, host.len() as u64)?;
        let locked = self.hold_locked(host);
        let (back, target) = crossbeam_channel::bounded(1);
        let work = Work::Out { from: memory, at: offset as usize, into, back };
        Ok(CopyOut { done: self.queue(stream, work, locked)?, target })
    }

    fn record(&self, stream: &Stream) -> Result<Event> {
        self.queue(stream, Work::Nothing, Vec::new())
    }

    fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        self.queue(stream, Work::Wait(event.clone()), Vec::new()).map(drop)
    }
}

/// A stream's worker: one piece of work after the other, each late; ends with its stream.
fn run(queue: &Receiver<Queued>) {
    while let Ok(Queued { work, locked, not_before, done }) = queue.recv() {
        std::thread::sleep(not_before.saturating_duration_since(Instant::now()));
        match work {
            Work::In { from, range, to, at } => {
                let target = &mut to.bytes.lock()[at..at + range.len()];
                target.copy_from_slice(&(*from).as_ref()[range]);
                drop(from);
            }
            Work::Out { from, at, mut into, back } => {
                let target = (*into).as_mut();
                target.copy_from_slice(&from.bytes.lock()[at..at + target.len()]);
                // Whoever dropped the ticket does not want the memory back.
                let _ = back.send(into);
            }
            Work::Wait(event) => {
                if event.wait().is_err() {
                    return;
                }
            }
            Work::Nothing => {}
        }
        drop(locked);
        done.fire();
    }
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Emulated").field(&self.options).field(&self.memory()).finish()
    }
}

fn foreign(what: &'static str, owner: DeviceId) -> Error {
    Error::Foreign { what, owner, device: Emulated::ID }
}

fn fits(which: &'static str, length: u64, offset: u64, bytes: u64) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= length => Ok(()),
        _ => Err(Error::OutOfRange { which, length, offset, bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_lock::Forever;

    #[test]
    fn it_passes_the_conformance_suite() {
        let device = Emulated::new(Options { memory_bytes: 1 << 20, ..Options::default() });
        crate::conformance::check(&device).unwrap();
    }

    #[test]
    fn buffers_streams_and_locks_may_outlive_the_device() {
        let memory: &'static mut [u8] = vec![7; 4096].leak();
        let owner = Arc::new(Forever::part(&memory, 0..4096));
        let device = Emulated::new(Options { memory_bytes: 4096, ..Options::default() });
        let lock = device.page_lock(Arc::clone(&owner) as Arc<dyn HostMemory>).unwrap();
        let (stream, mut buffer) = (device.open_stream().unwrap(), device.allocate(4096).unwrap());
        let copied = device.copy_in(&stream, Arc::new(memory), 0..4096, &mut buffer, 0).unwrap();
        drop(device);
        drop((lock, stream, buffer));
        copied.wait().unwrap();
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_missing_wait_between_streams_shows_as_wrong_bytes() {
        let lateness = Duration::from_millis(200);
        let small = Options { memory_bytes: 4096, lateness, ..Options::default() };
        let late = Emulated::new(small);
        let prompt = Emulated::new(Options { lateness: Duration::ZERO, ..small });
        let mut buffer = late.allocate(4).unwrap();
        let (writer, reader) = (late.open_stream().unwrap(), prompt.open_stream().unwrap());
        let written = late.copy_in(&writer, Arc::new([7u8; 4]), 0..4, &mut buffer, 0).unwrap();
        let early = prompt.copy_out(&reader, &buffer, 0, Box::new(vec![0u8; 4])).unwrap();
        assert_eq!((*early.wait().unwrap()).as_mut(), [UNDEFINED; 4]);
        prompt.stream_wait(&reader, &written).unwrap();
        let ordered = prompt.copy_out(&reader, &buffer, 0, Box::new(vec![0u8; 4])).unwrap();
        assert_eq!((*ordered.wait().unwrap()).as_mut(), [7; 4]);
    }
}
