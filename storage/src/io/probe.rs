//! What one directory can really do, found by doing it with a temporary file that is removed.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags};

use super::engine::{EngineKind, IoEngine, Operation, Transfer};
use super::uring::Uring;
use crate::arena::{Arena, FrameRef, GRANULE};
use crate::error::{Errno, Error, Result};

/// Which engine the caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum EngineChoice {
    /// io_uring where it works, else threads.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Threads.
    Threads,
}

/// A kind of file system, by the magic number of `statfs`. Displayed by name where we know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSystem(pub u64);

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            0xEF53 => "ext4",
            0x5846_5342 => "xfs",
            0x9123_683E => "btrfs",
            0x2FC1_2FC1 => "zfs",
            0xF2F5_2010 => "f2fs",
            0x0102_1994 => "tmpfs",
            0x8584_58F6 => "ramfs",
            0x794C_7630 => "overlay",
            0x6573_5546 => "fuse",
            0x6969 => "nfs",
            0xFF53_4D42 | 0xFE53_4D42 => "smb",
            0x0102_1997 => "9p",
            0x0BD0_0BD0 => "lustre",
            0x4750_4653 => "gpfs",
            0x1983_0326 => "beegfs",
            0x00C3_6400 => "ceph",
            other => return write!(f, "0x{other:x}"),
        })
    }
}

/// What was found out about a directory, with reasons in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// Whether direct transfers (past the page cache) work.
    pub direct: bool,
    /// Why, or why not.
    pub direct_why: String,
    /// Alignment in bytes that direct transfers need; our granules of 4096 are a multiple of it.
    pub align: u32,
    /// Whether space can be allocated ahead.
    pub fallocate: bool,
    /// Whether file locks exclude a second holder.
    pub locks: bool,
    /// The engine to use.
    pub engine: EngineKind,
    /// Why this one.
    pub engine_why: String,
    /// The file system.
    pub file_system: FileSystem,
    /// The device number (`st_dev`); equal for directories on one device.
    pub device: u64,
}

/// Finds out what `dir` can do. Writes a few KiB to a file there, which is removed again.
///
/// # Errors
/// [`Error::PathUnusable`] when no file can be made, written or read there, [`Error::Config`] when
/// io_uring is asked for and does not work.
pub fn negotiate(dir: &Path, choice: EngineChoice) -> Result<Negotiated> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, Mode::empty())
        .map_err(|error| unusable(dir, "open the directory", error.into()))?;
    negotiate_in(opened.as_fd(), dir, choice).map(|(found, _)| found)
}

/// As [`negotiate`] in an open directory; `shown` is its name for messages. Returns the ring that was
/// tried, if it is to be used: a second one might be refused.
pub(crate) fn negotiate_in(
    dir: BorrowedFd<'_>,
    shown: &Path,
    choice: EngineChoice,
) -> Result<(Negotiated, Option<Uring>)> {
    let fail = |what: &'static str| move |errno: Errno| unusable(shown, what, errno);
    let probe = ProbeFile::create(dir).map_err(fail("create a file"))?;
    let stat = rustix::fs::fstat(&*probe.file).map_err(|e| fail("inspect a file")(e.into()))?;
    let magic = rustix::fs::fstatfs(&*probe.file)
        .map_err(|e| fail("inspect the file system")(e.into()))?
        .f_type;
    let fallocate = match rustix::fs::fallocate(&*probe.file, FallocateFlags::empty(), 0, AHEAD) {
        Ok(()) => true,
        Err(error @ (rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)) => {
            return Err(fail("allocate space")(error.into()));
        }
        Err(_) => false,
    };
    if !fallocate {
        let set = probe.file.set_len(AHEAD);
        set.map_err(|e| fail("set the length of a file (ftruncate)")(e.into()))?;
    }
    let pattern = Pattern::new()?;
    pattern.round_trip(&probe.file).map_err(fail("write and read a file"))?;
    rustix::fs::fdatasync(&*probe.file).map_err(|e| fail("sync a file (fdatasync)")(e.into()))?;
    let (direct, align, direct_why) = match probe_direct(&probe, &pattern) {
        Ok((file, align, why)) => (Some(file), align, why),
        Err(why) => (None, 1, format!("{why}; buffered transfers with RWF_DSYNC are used")),
    };
    let file = direct.as_ref().unwrap_or(&probe.file);
    let (ring, engine_why) = choose_engine(choice, file, &pattern)?;
    let found = Negotiated {
        direct: direct.is_some(),
        direct_why,
        align,
        fallocate,
        locks: probe.locks_exclude(),
        engine: ring.as_ref().map_or(EngineKind::Threads, IoEngine::kind),
        engine_why,
        // The field's type differs between platforms; magic numbers are 32 bits.
        file_system: FileSystem(magic as u64 & 0xFFFF_FFFF),
        device: stat.st_dev,
    };
    Ok((found, ring))
}

/// How much space the probe allocates.
const AHEAD: u64 = 4 * GRANULE;

/// The temporary file; gone when dropped.
struct ProbeFile<'a> {
    dir: BorrowedFd<'a>,
    name: String,
    file: Arc<File>,
}

impl<'a> ProbeFile<'a> {
    fn create(dir: BorrowedFd<'a>) -> Result<Self, Errno> {
        let name = format!("{PROBE_PREFIX}{:016x}", random());
        let flags = OFlags::CREATE | OFlags::EXCL;
        let file = open_at(dir, &name, flags)?;
        Ok(ProbeFile { dir, name, file: Arc::new(file) })
    }

    /// Returns whether a second handle is refused the lock that the first one has.
    fn locks_exclude(&self) -> bool {
        let lock = FlockOperation::NonBlockingLockExclusive;
        if rustix::fs::flock(&*self.file, lock).is_err() {
            return false;
        }
        open_at(self.dir, &self.name, OFlags::empty()).is_ok_and(|second| {
            rustix::fs::flock(&second, lock) == Err(rustix::io::Errno::WOULDBLOCK)
        })
    }
}

impl Drop for ProbeFile<'_> {
    fn drop(&mut self) {
        if let Err(error) = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty()) {
            tracing::warn!(name = self.name, %error, "a probe file stays");
        }
    }
}

/// What the names of probe files begin with.
pub(crate) const PROBE_PREFIX: &str = "probe-";

/// Opens a file of ours for reading and writing: never through a symbolic link, never inherited.
pub(crate) fn open_at(dir: BorrowedFd<'_>, name: &str, more: OFlags) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    Ok(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)?)
}

/// Returns a number that nobody else is likely to have; not for secrets.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// A granule of known bytes, and a place to read it back.
struct Pattern {
    arena: Arena,
    bytes: FrameRef,
}

impl Pattern {
    fn new() -> Result<Self> {
        let arena = Arena::new(2 * GRANULE)?;
        let mut frame = Self::frame(&arena)?;
        let seed = random();
        for (index, byte) in frame.iter_mut().enumerate() {
            *byte = (seed >> (index % 8 * 8)) as u8 ^ index as u8;
        }
        Ok(Pattern { bytes: frame.share(), arena })
    }

    fn frame(arena: &Arena) -> Result<crate::arena::FrameMut> {
        arena.try_alloc(GRANULE)?.ok_or(Error::System {
            attempted: String::from("take memory for a probe"),
            source: Errno(libc::ENOMEM),
            remedy: String::from("free memory"),
        })
    }

    /// Writes the granule and reads it back through `file`.
    fn round_trip(&self, file: &File) -> Result<(), Errno> {
        let count = rustix::io::pwrite(file, &self.bytes, GRANULE)?;
        let mut back = Self::frame(&self.arena).map_err(|_| Errno(libc::ENOMEM))?;
        if count == back.len()
            && rustix::io::pread(file, &mut back[..], GRANULE)? == count
            && *back == *self.bytes
        {
            Ok(())
        } else {
            Err(Errno(libc::EIO))
        }
    }

    /// Reads the granule back through an engine.
    fn read_through(&self, engine: &dyn IoEngine, file: &Arc<File>) -> Result<(), Errno> {
        let back = Self::frame(&self.arena).map_err(|_| Errno(libc::ENOMEM))?;
        let (guard, into) = back.fill_from_outside();
        let (tell, told) = mpsc::sync_channel(1);
        engine.submit(Operation {
            file: Arc::clone(file),
            offset: GRANULE,
            transfer: Transfer::Read(into),
            dsync: false,
            done: Box::new(move |completion| {
                drop(completion.transfer);
                let _ = tell.send(completion.result);
            }),
        });
        told.recv().map_err(|_| Errno(libc::EIO))??;
        match guard.try_finish() {
            Ok(frame) if *frame == *self.bytes => Ok(()),
            _ => Err(Errno(libc::EIO)),
        }
    }
}

/// Opens the file for direct transfers and tries one; returns it with its alignment and the reason,
/// or why not.
fn probe_direct(
    probe: &ProbeFile<'_>,
    pattern: &Pattern,
) -> std::result::Result<(Arc<File>, u32, String), String> {
    let file = open_at(probe.dir, &probe.name, OFlags::DIRECT)
        .map_err(|errno| format!("opening with O_DIRECT: {errno}"))?;
    let reported = direct_alignment(&file);
    if let Some(align) = reported
        && (align == 0 || u64::from(align) > GRANULE || !GRANULE.is_multiple_of(align.into()))
    {
        return Err(format!("the file system reports a direct alignment of {align}, ours is 4096"));
    }
    pattern
        .round_trip(&file)
        .map_err(|errno| format!("O_DIRECT opens, but a direct transfer of 4 KiB: {errno}"))?;
    let align = reported.map_or(GRANULE as u32, |align| align.max(512));
    let why = match reported {
        Some(align) => format!("a direct transfer worked; alignment {align} by statx"),
        None => String::from("a direct transfer worked; alignment not reported, 4096 is used"),
    };
    Ok((Arc::new(file), align, why))
}

/// Returns the alignment for direct transfers, memory or offset whichever is larger, if the kernel
/// (6.1 and later) and the file system tell it.
fn direct_alignment(file: &File) -> Option<u32> {
    // STATX_DIOALIGN, which the binding does not name.
    let mask = StatxFlags::from_bits_retain(0x2000);
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask).ok()?;
    (stat.stx_mask & mask.bits() != 0).then(|| {
        match (stat.stx_dio_mem_align, stat.stx_dio_offset_align) {
            (0, _) | (_, 0) => 0,
            (memory, offset) => memory.max(offset),
        }
    })
}

/// Decides on an engine, a ring or threads; a ring counts only if a read through it worked.
fn choose_engine(
    choice: EngineChoice,
    file: &Arc<File>,
    pattern: &Pattern,
) -> Result<(Option<Uring>, String)> {
    if choice == EngineChoice::Threads {
        return Ok((None, String::from("asked for")));
    }
    let refused = match Uring::start() {
        Ok(engine) => match pattern.read_through(&engine, file) {
            Ok(()) => return Ok((Some(engine), String::from("a read through it worked"))),
            Err(errno) => format!("io_uring read: {errno}: the file system may not support it"),
        },
        Err(Error::System { attempted, source, remedy }) => {
            format!("{attempted}: {source}: {remedy}{}", sysctl())
        }
        Err(other) => other.to_string(),
    };
    if choice == EngineChoice::Uring {
        return Err(Error::Config {
            what: String::from("engine io_uring"),
            why: format!("{refused}; allow it, or choose the engine auto or threads"),
        });
    }
    Ok((None, refused))
}

/// Returns the setting that forbids io_uring, if it does.
fn sysctl() -> String {
    const FILE: &str = "/proc/sys/kernel/io_uring_disabled";
    match std::fs::read_to_string(FILE).as_deref().map(str::trim) {
        Ok("0") | Err(_) => String::new(),
        Ok(value) => format!(" (kernel.io_uring_disabled is {value})"),
    }
}

/// Returns the error of a path that cannot be used, with what to do about it.
pub(crate) fn unusable(path: &Path, attempted: &str, source: Errno) -> Error {
    let remedy = match source.0 {
        libc::ENOENT => "create the directory first",
        libc::ENOTDIR => "name a directory, not a file",
        libc::EACCES | libc::EPERM => "make the directory writable for this user",
        libc::EROFS => "the file system is read-only; name a directory on another",
        libc::ENOSPC => "the file system is full; free space there or name a directory on another",
        libc::EDQUOT => "the user's quota there is used up; free space or raise it",
        libc::ELOOP => "there is a loop of symbolic links; name the directory itself",
        libc::EMFILE | libc::ENFILE => "raise the limit of open files (ulimit -n)",
        _ => "check that the storage behind it works, or name another directory",
    };
    let (path, attempted) = (path.to_owned(), attempted.to_owned());
    Error::PathUnusable { path, attempted, source, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories() -> Vec<tempfile::TempDir> {
        ["/dev/shm", "/var/tmp"]
            .into_iter()
            .filter_map(|dir| tempfile::tempdir_in(dir).ok())
            .collect()
    }

    #[test]
    fn a_directory_is_negotiated_and_left_empty() {
        for dir in directories() {
            let found = negotiate(dir.path(), EngineChoice::Threads).unwrap();
            assert_eq!(found.engine, EngineKind::Threads);
            assert!(found.locks);
            assert!(found.align == 1 || found.align >= 512, "{found:?}");
            assert!(!found.direct_why.is_empty() && !found.file_system.to_string().is_empty());
            let auto = negotiate(dir.path(), EngineChoice::Auto).unwrap();
            assert_eq!((auto.direct, auto.device), (found.direct, found.device));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_is_no_usable_directory_is_named_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let missing = negotiate(&dir.path().join("missing"), EngineChoice::Auto).unwrap_err();
        assert!(missing.to_string().contains("create the directory first"), "{missing}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let text = negotiate(&file, EngineChoice::Auto).unwrap_err().to_string();
        assert!(text.contains("name a directory") && text.contains("file"), "{text}");
    }

    #[test]
    fn unknown_file_systems_show_their_number() {
        assert_eq!(FileSystem(0xEF53).to_string(), "ext4");
        assert_eq!(FileSystem(0xABC).to_string(), "0xabc");
    }
}
