//! A path of one's own: extents in a map, copied by a thread. All that a store asks of a path.

use std::collections::HashMap;
use std::error::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tensortier::storage::arena::{FrameSlice, FrameSliceMut};
use tensortier::storage::dtype::DType;
use tensortier::storage::error::Errno;
use tensortier::storage::id::Class;
use tensortier::storage::path::{
    Capabilities, CloseError, Extent, Outstanding, PathCounters, PathProfile, PathStore, ReadDone,
    TransferError, WriteDone,
};
use tensortier::storage::store::Store;

const INVALID: Errno = Errno(22);
const NO_SPACE: Errno = Errno(28);
const CANCELED: Errno = Errno(125);
const MOST_BYTES: u64 = 1 << 30;

type Job = Box<dyn FnOnce() + Send>;

/// A path whose extents are in a map.
#[derive(Debug)]
pub struct MapPath {
    state: Arc<Mutex<State>>,
    jobs: Mutex<Option<Sender<Job>>>,
    ended: Mutex<Receiver<()>>,
    capabilities: Capabilities,
}

#[derive(Debug, Default)]
struct State {
    extents: HashMap<u64, Vec<u8>>,
    next: u64,
    counters: PathCounters,
    closed: bool,
}

impl PathStore for MapPath {
    fn reserve(&self, bytes: u64) -> Result<Extent, Errno> {
        let mut state = lock(&self.state);
        let bytes = state.room_for(bytes)?;
        state.next += 1;
        state.counters.used_bytes += bytes;
        let place = state.next;
        state.extents.insert(place, vec![0; bytes as usize]);
        Ok(Extent::new(place, 0, bytes))
    }
    fn free(&self, extent: Extent) {
        let mut state = lock(&self.state);
        state.extents.remove(&extent.place());
        state.counters.used_bytes -= extent.bytes();
    }
    fn write(&self, extent: &Extent, from: FrameSlice, _: Class, done: WriteDone) {
        self.copy(extent, 0, from.len(), move |stored| {
            let answer = stored.map(|(stored, counters)| {
                stored.copy_from_slice(&from);
                counters.writes += 1;
                counters.written_bytes += from.len() as u64;
            });
            drop(from); // before the answer: its memory is free then
            Box::new(move || done(answer))
        });
    }
    fn read(&self, extent: &Extent, at: u64, mut into: FrameSliceMut, _: Class, done: ReadDone) {
        self.copy(extent, at, into.len(), move |stored| {
            let answer = stored.map(|(stored, counters)| {
                into.copy_from_slice(stored);
                counters.reads += 1;
                counters.read_bytes += into.len() as u64;
            });
            drop(into);
            Box::new(move || done(answer.map_err(|errno| TransferError { errno, offset: at })))
        });
    }
    fn sync(&self) -> Result<(), Errno> {
        Ok(()) // nothing survives a loss of power
    }
    fn close(&self, grace: Duration) -> Result<(), CloseError> {
        lock(&self.state).closed = true;
        drop(lock(&self.jobs).take());
        let ended = lock(&self.ended).recv_timeout(grace);
        if ended == Err(RecvTimeoutError::Timeout) { Err(busy()) } else { Ok(()) }
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn profile(&self) -> PathProfile {
        PathProfile::new(1e9, 1e9, 0.0)
    }
    fn outstanding(&self) -> Outstanding {
        Outstanding::default()
    }
    fn counters(&self) -> PathCounters {
        lock(&self.state).counters
    }
}

impl State {
    /// Returns a length rounded up to what is reserved for it.
    fn room_for(&self, bytes: u64) -> Result<u64, Errno> {
        match bytes.max(1).checked_next_multiple_of(4096) {
            _ if self.closed => Err(CANCELED),
            Some(bytes) if bytes <= MOST_BYTES - self.counters.used_bytes => Ok(bytes),
            _ => Err(NO_SPACE),
        }
    }
}

fn busy() -> CloseError {
    let why = String::from("the map's thread is still busy");
    CloseError { in_flight: 1, left: Vec::new(), why }
}

/// Part of an extent, and the counters.
type Stored<'a> = Result<(&'a mut [u8], &'a mut PathCounters), Errno>;

impl Default for MapPath {
    fn default() -> Self {
        let (jobs, inbox) = channel::<Job>();
        let (end, ended) = channel();
        std::thread::spawn(move || {
            inbox.into_iter().for_each(|job| job());
            drop(end);
        });
        let (jobs, ended) = (Mutex::new(Some(jobs)), Mutex::new(ended));
        let capabilities = Capabilities::of_own("a map", "memory");
        MapPath { state: Arc::default(), jobs, ended, capabilities }
    }
}

impl MapPath {
    /// Has the thread copy to or from an extent, and then answer, with no lock held.
    fn copy(
        &self,
        extent: &Extent,
        at: u64,
        len: usize,
        copy: impl FnOnce(Stored<'_>) -> Job + Send + 'static,
    ) {
        let (state, place, at) = (Arc::clone(&self.state), extent.place(), at as usize);
        let job: Job = Box::new(move || {
            let mut state = lock(&state);
            let State { extents, counters, closed, .. } = &mut *state;
            let bytes = extents.get_mut(&place).filter(|_| at.is_multiple_of(4096));
            let stored = bytes.and_then(|bytes| bytes.get_mut(at..)?.get_mut(..len));
            let answer = copy(match stored {
                _ if *closed => Err(CANCELED),
                Some(stored) => Ok((stored, counters)),
                None => Err(INVALID),
            });
            drop(state);
            answer();
        });
        let jobs = lock(&self.jobs).clone();
        match jobs {
            Some(jobs) => drop(jobs.send(job)),
            None => job(), // closed: it is refused on the spot
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps four times as much in a store as fits in its memory, and returns what the path moved.
pub fn use_it() -> Result<PathCounters, Box<dyn Error>> {
    let path = Arc::new(MapPath::default());
    let own: Arc<dyn PathStore> = path.clone();
    let store = Store::builder().host_budget(1 << 20).path_store(own).open()?;
    for i in 0..16u8 {
        store.put(&format!("tensor {i}"), DType::U8, &[256 << 10], &vec![i; 256 << 10])?;
    }
    let mut bytes = vec![0; 256 << 10];
    for i in 0..16u8 {
        store.get_into(&format!("tensor {i}"), &mut bytes)?;
        if bytes.iter().any(|byte| *byte != i) {
            return Err(format!("tensor {i} came back as something else").into());
        }
    }
    store.close(Duration::from_secs(5))?;
    Ok(path.counters())
}

fn main() -> Result<(), Box<dyn Error>> {
    let counters = use_it()?;
    println!("written {} bytes, read {}", counters.written_bytes, counters.read_bytes);
    Ok(())
}
