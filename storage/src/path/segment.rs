//! Space on a path: few large files, allocated ahead, out of which extents are cut and reused.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FallocateFlags, OFlags};

use super::Extent;
use crate::arena::{GRANULE, RangeAllocator, granules_up};
use crate::error::Errno;
use crate::io::probe::open_at;
use crate::sync::{AtomicBool, Mutex, Ordering};

/// The first file's size; each next one is twice as large...
const FIRST_BYTES: u64 = 64 << 20;

/// ...up to this. A large store goes on in steps of a 16th of what it has, so that the number of
/// open files grows with the logarithm of its size.
const STEP_BYTES: u64 = 1 << 30;
const STEP_PART: u64 = 16;

/// What the names of segment files begin with.
pub(super) const SEGMENT_PREFIX: &str = "segment-";

/// How segment files are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Making {
    /// Opened for direct transfers, until one is refused.
    pub(super) direct: bool,
    /// Allocated ahead; otherwise only their length is set and a full disk shows at the write.
    pub(super) fallocate: bool,
    /// The most bytes that all files may have.
    pub(super) quota: u64,
}

/// The segment files of one path.
#[derive(Debug)]
pub(super) struct Segments {
    making: Making,
    /// What was said when a direct transfer was refused after all; set under the lock of the state.
    refused: OnceLock<Errno>,
    state: Mutex<State>,
    /// Held while a file is made, so that the state stays free for everybody else meanwhile; true
    /// once no more may be made.
    closed: Mutex<bool>,
}

#[derive(Debug, Default)]
struct State {
    segments: Vec<Segment>,
    space: u64,
    used: u64,
}

#[derive(Debug)]
struct Segment {
    file: Arc<File>,
    ranges: RangeAllocator,
    /// Written since the last sync began.
    dirty: Arc<AtomicBool>,
}

impl State {
    fn take(&mut self, bytes: u64) -> Option<Extent> {
        let (place, offset) = self
            .segments
            .iter_mut()
            .enumerate()
            .find_map(|(place, segment)| Some((place, segment.ranges.take(bytes)?)))?;
        self.used += bytes;
        Some(Extent::new(place as u64, offset, bytes))
    }
}

impl Segments {
    pub(super) fn new(making: Making) -> Self {
        Segments {
            making,
            refused: OnceLock::new(),
            state: Mutex::default(),
            closed: Mutex::new(false),
        }
    }

    /// Takes an extent, from free space or from a new file in `dir`.
    pub(super) fn reserve(&self, dir: BorrowedFd<'_>, bytes: u64) -> Result<Extent, Errno> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRANULE).ok_or(Errno(libc::ENOSPC))?;
        if let Some(extent) = self.state.lock().take(bytes) {
            return Ok(extent);
        }
        let closed = self.closed.lock();
        if *closed {
            return Err(Errno(libc::ECANCELED));
        }
        // Somebody may have grown it, or given back, while we waited.
        let (space, count) = {
            let mut state = self.state.lock();
            if let Some(extent) = state.take(bytes) {
                return Ok(extent);
            }
            (state.space, state.segments.len())
        };
        let (file, size) = self.grow(dir, &format!("{SEGMENT_PREFIX}{count}"), space, bytes)?;
        let mut state = self.state.lock();
        if self.refused.get().is_some() {
            // It was opened before the others were told.
            through_the_cache(&file);
        }
        state.space += size;
        state.segments.push(Segment {
            file: Arc::new(file),
            ranges: RangeAllocator::new(size),
            dirty: Arc::default(),
        });
        state.take(bytes).ok_or(Errno(libc::ENOSPC))
    }

    /// Makes a file of at least `need`, as large as is wanted and allowed. Returns it and its size.
    fn grow(
        &self,
        dir: BorrowedFd<'_>,
        name: &str,
        space: u64,
        need: u64,
    ) -> Result<(File, u64), Errno> {
        let left = self.making.quota.saturating_sub(space) / GRANULE * GRANULE;
        if need > left {
            return Err(Errno(libc::EDQUOT));
        }
        let step = granules_up(space.clamp(FIRST_BYTES, STEP_BYTES).max(space / STEP_PART));
        let mut size = step.max(need).min(left);
        let more = if self.is_direct() { OFlags::DIRECT } else { OFlags::empty() };
        let file = open_at(dir, name, more | OFlags::CREATE | OFlags::EXCL)?;
        loop {
            let Err(errno) = self.allocate(&file, size) else {
                return Ok((file, size));
            };
            if size <= need || !matches!(errno.0, libc::ENOSPC | libc::EDQUOT | libc::EFBIG) {
                if let Err(error) = rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                    tracing::warn!(name, %error, "a file without space stays until close");
                }
                return Err(errno);
            }
            // What a failed call left allocated must not stand in the way of the smaller one.
            file.set_len(0)?;
            size = granules_up(size / 2).max(need);
        }
    }

    fn allocate(&self, file: &File, size: u64) -> Result<(), Errno> {
        if self.making.fallocate {
            loop {
                match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
                    Err(rustix::io::Errno::INTR) => {}
                    other => return Ok(other?),
                }
            }
        }
        Ok(file.set_len(size)?)
    }

    /// Returns whether transfers bypass the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.making.direct && self.refused.get().is_none()
    }

    /// Returns what was said when a direct transfer was refused after all.
    pub(super) fn refused(&self) -> Option<Errno> {
        self.refused.get().copied()
    }

    /// A direct transfer was refused: from the return on, all files go through the page cache.
    pub(super) fn leave_direct(&self, errno: Errno) {
        let state = self.state.lock();
        if self.refused.set(errno).is_ok() {
            state.segments.iter().for_each(|segment| through_the_cache(&segment.file));
            drop(state);
            tracing::warn!(%errno, "a direct transfer was refused; the path goes on buffered");
        }
    }

    /// Lets go of all files: their space is free once they are unlinked and no transfer has them.
    pub(super) fn close(&self) {
        *self.closed.lock() = true;
        *self.state.lock() = State::default();
    }

    /// Gives an extent back. One that is not ours is ignored.
    pub(super) fn free(&self, extent: &Extent) {
        let mut state = self.state.lock();
        if let Some(segment) = state.segments.get_mut(extent.place() as usize) {
            segment.ranges.give(extent.offset(), extent.bytes());
            state.used -= extent.bytes();
        }
    }

    /// Returns the file of an extent, and marks it as to be synced if it is about to be written.
    pub(super) fn file(&self, extent: &Extent, write: bool) -> Option<Arc<File>> {
        let state = self.state.lock();
        let segment = state.segments.get(extent.place() as usize)?;
        if write {
            segment.dirty.store(true, Ordering::SeqCst);
        }
        Some(Arc::clone(&segment.file))
    }

    /// Syncs every file that was written since the last time; tries all, returns the first error.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        let touched: Vec<_> = {
            let state = self.state.lock();
            let dirty = |segment: &&Segment| segment.dirty.swap(false, Ordering::SeqCst);
            let both = |segment: &Segment| (Arc::clone(&segment.file), Arc::clone(&segment.dirty));
            state.segments.iter().filter(dirty).map(both).collect()
        };
        let mut result = Ok(());
        for (file, dirty) in touched {
            if let Err(error) = rustix::fs::fdatasync(file.as_fd()) {
                dirty.store(true, Ordering::SeqCst);
                result = result.and(Err(error.into()));
            }
        }
        result
    }

    /// Returns bytes in files, and of these bytes in extents.
    pub(super) fn space(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.space, state.used)
    }
}

/// Takes the flag of direct transfers off an open file. A transfer the kernel has already is not
/// touched.
fn through_the_cache(file: &File) {
    let flags = rustix::fs::fcntl_getfl(file).map(|flags| flags.difference(OFlags::DIRECT));
    if let Err(error) = flags.and_then(|flags| rustix::fs::fcntl_setfl(file, flags)) {
        tracing::warn!(%error, "a file stays open for direct transfers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn segments(quota: u64) -> (tempfile::TempDir, File, Segments) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let opened = File::open(dir.path()).unwrap();
        (dir, opened, Segments::new(Making { direct: false, fallocate: true, quota }))
    }

    #[test]
    fn files_grow_in_steps_and_space_is_reused() {
        let (dir, opened, segments) = segments(u64::MAX);
        let first = segments.reserve(opened.as_fd(), 5000).unwrap();
        assert_eq!((first.bytes(), segments.space()), (8192, (64 * MIB, 8192)));
        let second = segments.reserve(opened.as_fd(), 64 * MIB).unwrap();
        assert_eq!((second.place(), segments.space().0), (1, 128 * MIB));
        segments.free(&first);
        let again = segments.reserve(opened.as_fd(), 8192).unwrap();
        assert_eq!(again, first);
        segments.free(&again);
        segments.free(&second);
        let all = segments.reserve(opened.as_fd(), 64 * MIB).unwrap();
        assert_eq!(segments.space(), (128 * MIB, 64 * MIB));
        segments.free(&all);
        let sizes: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(sizes, [64 * MIB, 64 * MIB]);
    }

    #[test]
    fn a_quota_cuts_files_and_then_refuses() {
        let (_dir, opened, segments) = segments(3 * MIB + 100);
        let held = segments.reserve(opened.as_fd(), 2 * MIB).unwrap();
        assert_eq!(segments.space(), (3 * MIB, 2 * MIB));
        let refused = segments.reserve(opened.as_fd(), 2 * MIB);
        assert_eq!(refused, Err(Errno(libc::EDQUOT)));
        assert_eq!(segments.reserve(opened.as_fd(), u64::MAX), Err(Errno(libc::ENOSPC)));
        segments.free(&held);
        assert!(segments.reserve(opened.as_fd(), 3 * MIB).is_ok());
    }

    #[test]
    fn a_sync_takes_what_was_written_since_the_last() {
        let (_dir, opened, segments) = segments(u64::MAX);
        let extent = segments.reserve(opened.as_fd(), 1).unwrap();
        let file = segments.file(&extent, true).unwrap();
        rustix::io::pwrite(&file, b"x", 0).unwrap();
        assert_eq!(segments.sync(), Ok(()));
        assert_eq!(segments.sync(), Ok(()));
        assert!(segments.file(&Extent::new(9, 0, 1), false).is_none());
    }
}
