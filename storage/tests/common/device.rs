//! A device for tests: the emulated one, watched for the most memory it ever gave away, and with faults
//! to switch on.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tensortier_gpu::emulated::{Emulated, Options};
use tensortier_gpu::{
    CopyOut, Device, DeviceBuffer, DeviceId, Error, Event, HostMemory, HostSource, HostTarget,
    Memory, PageLock, Result, Stream,
};
use tensortier_storage::ticket::Ticket;

use super::PATIENCE;

/// What to do wrong, while it is set.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) allocate: AtomicBool,
    pub(crate) copy_in: AtomicBool,
    /// Copies back are refused.
    pub(crate) copy_out: AtomicBool,
    /// Copies back begin and are never done.
    pub(crate) lose_copy_out: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Watched {
    inner: Emulated,
    pub(crate) faults: Faults,
    /// The most bytes that were ever allocated at once.
    pub(crate) peak: AtomicU64,
    /// What the next copy to the device waits for.
    gate: Mutex<Option<Arc<Gate>>>,
}

pub(crate) fn watched(lateness: Duration) -> Arc<Watched> {
    watched_as(Options { memory_bytes: 1 << 30, lateness, ..Options::default() })
}

pub(crate) fn watched_as(options: Options) -> Arc<Watched> {
    let (faults, peak) = (Faults::default(), AtomicU64::new(0));
    Arc::new(Watched { inner: Emulated::new(options), faults, peak, gate: Mutex::default() })
}

pub(crate) fn set(fault: &AtomicBool, on: bool) {
    fault.store(on, Ordering::SeqCst);
}

fn refuses(fault: &AtomicBool) -> Result<()> {
    if fault.load(Ordering::SeqCst) { Err(Error::StreamLost) } else { Ok(()) }
}

/// Memory that can be looked at once; then whoever copies it ends badly.
struct Trap<T>(T, AtomicBool);

impl<T> Trap<T> {
    fn spring(&self) {
        assert!(!self.1.swap(true, Ordering::SeqCst), "as a test wants it");
    }
}

impl AsRef<[u8]> for Trap<[u8; 1]> {
    fn as_ref(&self) -> &[u8] {
        self.spring();
        &self.0
    }
}

impl AsMut<[u8]> for Trap<HostTarget> {
    fn as_mut(&mut self) -> &mut [u8] {
        self.spring();
        (*self.0).as_mut()
    }
}

/// A source that blocks its stream until its other end is dropped.
#[derive(Debug)]
struct Gate(Mutex<mpsc::Receiver<()>>, AtomicBool);

impl AsRef<[u8]> for Gate {
    fn as_ref(&self) -> &[u8] {
        // The first look only asks for the length.
        if self.1.swap(true, Ordering::SeqCst) {
            let _ = self.0.lock().unwrap().recv();
        }
        &[0]
    }
}

/// Opens a stream that does nothing before what is returned with it is dropped.
pub(crate) fn blocked_stream(device: &dyn Device) -> (Stream, mpsc::Sender<()>) {
    let (gate, opens) = gate();
    let (stream, mut buffer) = (device.open_stream().unwrap(), device.allocate(1).unwrap());
    device.copy_in(&stream, gate, 0..1, &mut buffer, 0).unwrap();
    (stream, opens)
}

fn gate() -> (Arc<Gate>, mpsc::Sender<()>) {
    let (opens, gate) = mpsc::channel();
    (Arc::new(Gate(Mutex::new(gate), AtomicBool::new(false))), opens)
}

/// Returns an event whose stream is lost before it is done.
pub(crate) fn lost_event(device: &dyn Device) -> Event {
    let stream = device.open_stream().unwrap();
    let mut buffer = device.allocate(1).unwrap();
    let trap = Arc::new(Trap([0; 1], AtomicBool::new(false)));
    device.copy_in(&stream, trap, 0..1, &mut buffer, 0).unwrap()
}

impl Watched {
    /// Returns how many bytes are allocated now.
    pub(crate) fn in_use(&self) -> u64 {
        let memory = self.inner.memory();
        memory.total_bytes - memory.free_bytes
    }

    /// Returns how much was copied whose memory on the host was not page-locked.
    pub(crate) fn copied_unlocked_bytes(&self) -> u64 {
        self.inner.copied_unlocked_bytes()
    }

    /// Has the next copy to the device, and what its stream does later, wait for what is returned to
    /// be dropped.
    pub(crate) fn block_next_copy(&self) -> mpsc::Sender<()> {
        let (gate, opens) = gate();
        *self.gate.lock().unwrap() = Some(gate);
        opens
    }

    /// Returns a buffer's bytes.
    pub(crate) fn read(&self, buffer: &DeviceBuffer) -> Vec<u8> {
        let stream = self.open_stream().unwrap();
        let into = Box::new(vec![0; buffer.bytes() as usize]);
        let copy = self.inner.copy_out(&stream, buffer, 0, into).unwrap();
        (*copy.wait().unwrap()).as_mut().to_vec()
    }

    /// Begins to fill a buffer, and returns when that is done.
    pub(crate) fn fill(&self, buffer: &mut DeviceBuffer, bytes: Vec<u8>) -> Event {
        self.fill_on(&self.open_stream().unwrap(), buffer, bytes)
    }

    pub(crate) fn fill_on(
        &self,
        stream: &Stream,
        buffer: &mut DeviceBuffer,
        bytes: Vec<u8>,
    ) -> Event {
        let all = 0..bytes.len();
        self.inner.copy_in(stream, Arc::new(bytes), all, buffer, 0).unwrap()
    }
}

impl Device for Watched {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn name(&self) -> &str {
        "watched"
    }

    fn memory(&self) -> Memory {
        self.inner.memory()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceBuffer> {
        refuses(&self.faults.allocate)?;
        let buffer = self.inner.allocate(bytes);
        self.peak.fetch_max(self.in_use(), Ordering::SeqCst);
        buffer
    }

    fn page_lock(&self, memory: Arc<dyn HostMemory>) -> Result<PageLock> {
        self.inner.page_lock(memory)
    }

    fn page_locked_bytes(&self) -> u64 {
        self.inner.page_locked_bytes()
    }

    fn open_stream(&self) -> Result<Stream> {
        self.inner.open_stream()
    }

    fn copy_in(
        &self,
        stream: &Stream,
        from: HostSource,
        range: Range<usize>,
        to: &mut DeviceBuffer,
        offset: u64,
    ) -> Result<Event> {
        refuses(&self.faults.copy_in)?;
        if let Some(gate) = self.gate.lock().unwrap().take() {
            self.inner.copy_in(stream, gate, 0..1, &mut self.inner.allocate(1)?, 0)?;
        }
        self.inner.copy_in(stream, from, range, to, offset)
    }

    fn copy_out(
        &self,
        stream: &Stream,
        from: &DeviceBuffer,
        offset: u64,
        into: HostTarget,
    ) -> Result<CopyOut> {
        refuses(&self.faults.copy_out)?;
        if self.faults.lose_copy_out.load(Ordering::SeqCst) {
            let trap: HostTarget = Box::new(Trap(into, AtomicBool::new(false)));
            return self.inner.copy_out(stream, from, offset, trap);
        }
        self.inner.copy_out(stream, from, offset, into)
    }

    fn record(&self, stream: &Stream) -> Result<Event> {
        self.inner.record(stream)
    }

    fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        self.inner.stream_wait(stream, event)
    }
}

/// Waits for an answer, but not forever.
pub(crate) fn answer<T>(ticket: Ticket<T>) -> tensortier_storage::error::Result<T> {
    ticket.wait_timeout(PATIENCE).unwrap_or_else(|_| panic!("a ticket was never answered"))
}
