//! A share of one path: its places on the drive are its own and have their turn one after the other.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tensortier::storage::arena::{FrameSlice, FrameSliceMut};
use tensortier::storage::clock::Clock;
use tensortier::storage::error::Errno;
use tensortier::storage::id::Class;
use tensortier::storage::io::EngineChoice;
use tensortier::storage::path::{
    self, Capabilities, CloseError, Condition, Extent, FilePathStore, Outstanding, PathCounters,
    PathProfile, PathStore, ReadDone, Tell, WriteDone,
};

use crate::Failure;

/// One of those that share a path, to be held against each other.
///
/// Parts of a drive may differ in speed by a third, for good. What the sharers lay out in turns lies
/// among each other, and stays so: what one frees only it takes again, the longest free first, so
/// that a pass over its chunks goes over all of its places. Out of one pool, lowest first, some would
/// come to have more of a slow part than others. What a share holds free when it is dropped goes back
/// to the path, to be dealt anew.
#[derive(Debug)]
pub struct Share {
    path: Arc<FilePathStore>,
    /// Free extents by their length.
    free: Mutex<HashMap<u64, VecDeque<Extent>>>,
}

/// Opens a path to be shared.
///
/// # Errors
/// Those of the path.
pub fn shared_path(dir: &Path) -> Result<Arc<FilePathStore>, Failure> {
    let options = path::Path::new(dir);
    Ok(Arc::new(FilePathStore::open(&options, EngineChoice::Auto, Clock::system())?))
}

impl Share {
    /// Returns a share of a path that has no place yet.
    pub fn of(path: &Arc<FilePathStore>) -> Arc<Self> {
        Arc::new(Share { path: path.clone(), free: Mutex::default() })
    }

    fn places(&self) -> MutexGuard<'_, HashMap<u64, VecDeque<Extent>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let free = std::mem::take(&mut *self.places());
        free.into_values().flatten().for_each(|extent| self.path.free(extent));
    }
}

impl PathStore for Share {
    fn reserve(&self, bytes: u64) -> Result<Extent, Errno> {
        let own = self.places().get_mut(&bytes).and_then(VecDeque::pop_front);
        own.map_or_else(|| self.path.reserve(bytes), Ok)
    }

    fn free(&self, extent: Extent) {
        self.places().entry(extent.bytes()).or_default().push_back(extent);
    }

    fn write(&self, extent: &Extent, from: FrameSlice, class: Class, done: WriteDone) {
        self.path.write(extent, from, class, done);
    }

    fn read(&self, extent: &Extent, at: u64, into: FrameSliceMut, class: Class, done: ReadDone) {
        self.path.read(extent, at, into, class, done);
    }

    fn sync(&self) -> Result<(), Errno> {
        self.path.sync()
    }

    fn capabilities(&self) -> &Capabilities {
        self.path.capabilities()
    }

    fn profile(&self) -> PathProfile {
        self.path.profile()
    }

    fn outstanding(&self) -> Outstanding {
        self.path.outstanding()
    }

    fn depth_bytes(&self) -> u64 {
        self.path.depth_bytes()
    }

    fn counters(&self) -> PathCounters {
        self.path.counters()
    }

    fn condition(&self) -> Condition {
        self.path.condition()
    }

    fn watch(&self, tell: Tell) {
        self.path.watch(tell);
    }

    /// Leaves the path to the others; it closes when the last of them is gone.
    fn close(&self, _: Duration) -> Result<(), CloseError> {
        Ok(())
    }
}
