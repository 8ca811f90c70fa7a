//! The life of a store's directory on a path: made, locked, said whose it is, removed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno as Raw;

use super::segment::SEGMENT_PREFIX;
use crate::error::{Errno, Error, Result};
use crate::io::probe::{PROBE_PREFIX, open_at, random, unusable};

/// What our directories are called, followed by 16 hexadecimal digits.
const PREFIX: &str = "tensortier-";

/// What follows while a directory is being made.
const UNFINISHED: &str = ".new";

pub(super) const LOCK: &str = "lock";

/// How often a name is given up because a collector was looking at it just then.
const ATTEMPTS: u32 = 16;

/// Who made a directory: enough to tell whether he still lives.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Owner {
    /// The machine's name.
    pub host: String,
    /// The kernel's random number of this boot; the same in every container on it.
    pub boot_id: String,
    /// Process number, as he sees it.
    pub pid: u32,
    /// When the process started, in clock ticks since the boot: tells a reused number apart.
    pub start: u64,
}

impl Owner {
    pub(super) fn this_process() -> Self {
        let pid = std::process::id();
        Owner { host: host(), boot_id: boot_id(), pid, start: start_of(pid).unwrap_or(0) }
    }

    pub(super) fn is_on_this_machine(&self) -> bool {
        self.host == host() || self.boot_id == boot_id()
    }

    pub(super) fn lives_here(&self) -> bool {
        self.boot_id == boot_id() && start_of(self.pid) == Some(self.start)
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Returns the start time of a process, the 22nd field of its `stat`.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, a name in brackets, may hold anything; what follows may not.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A directory of our own inside the caller's, removed when dropped unless it is to stay.
#[derive(Debug)]
pub(super) struct ScratchDir {
    parent: OwnedFd,
    dir: OwnedFd,
    name: String,
    shown: PathBuf,
    /// Held, where locks work, for as long as the directory is ours.
    _lock: File,
    stays: bool,
}

impl ScratchDir {
    /// Makes a fresh directory in `base`, locked for as long as it lives.
    ///
    /// # Errors
    /// [`Error::PathUnusable`]; nothing is left then.
    pub(super) fn create(base: &Path) -> Result<Self> {
        let parent = open_base(base)?;
        let mut last = ("make a directory of our own", Errno(libc::EBUSY));
        for _ in 0..ATTEMPTS {
            let name = format!("{PREFIX}{:016x}", random());
            match Self::try_create(&parent, base, &name) {
                // Somebody looked at it, or removed it, before it was locked: take another name.
                Err((
                    attempted,
                    errno @ Errno(libc::EWOULDBLOCK | libc::ENOENT | libc::EEXIST),
                )) => {
                    last = (attempted, errno);
                }
                Err((attempted, errno)) => return Err(unusable(base, attempted, errno)),
                Ok(dir) => return Ok(dir),
            }
        }
        // The directory is there: a remedy for the error as such would mislead.
        Err(Error::PathUnusable {
            path: base.to_owned(),
            attempted: last.0.to_owned(),
            source: last.1,
            remedy: String::from("name another directory"),
        })
    }

    fn try_create(
        parent: &OwnedFd,
        base: &Path,
        name: &str,
    ) -> std::result::Result<Self, (&'static str, Errno)> {
        let unfinished = format!("{name}{UNFINISHED}");
        rustix::fs::mkdirat(parent, &*unfinished, Mode::RWXU)
            .map_err(|error| ("make a directory there", error.into()))?;
        let made = || -> std::result::Result<Self, (&'static str, Errno)> {
            let dir = open_dir(parent.as_fd(), &unfinished)
                .map_err(|errno| ("open the directory made there", errno))?;
            let lock = write_lock(dir.as_fd()).map_err(|errno| ("write a lock file", errno))?;
            rustix::fs::renameat(parent, &*unfinished, parent, name)
                .map_err(|error| ("name the directory made there", error.into()))?;
            let parent = parent.try_clone().map_err(|e| ("keep the directory open", e.into()))?;
            let (name, shown) = (name.to_owned(), base.join(name));
            Ok(ScratchDir { parent, dir, name, shown, _lock: lock, stays: false })
        };
        made().inspect_err(|_| {
            if let Ok(dir) = open_dir(parent.as_fd(), &unfinished) {
                let _ = rustix::fs::unlinkat(&dir, LOCK, AtFlags::empty());
            }
            let _ = rustix::fs::unlinkat(parent, &*unfinished, AtFlags::REMOVEDIR);
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Returns the directory's path, for people; we never go through it again.
    pub(super) fn path(&self) -> &Path {
        &self.shown
    }

    /// Leaves the directory in place when dropped.
    pub(super) fn let_stay(&mut self) {
        self.stays = true;
    }

    /// Removes what is ours, and the directory if nothing else is in it.
    ///
    /// # Errors
    /// What stays, and why.
    pub(super) fn remove(&mut self) -> std::result::Result<(), (Vec<PathBuf>, Errno)> {
        // Whatever comes of it, a second attempt when dropped would not fare better.
        self.stays = true;
        remove_ours(self.parent.as_fd(), self.dir.as_fd(), &self.name, &self.shown)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if !self.stays
            && let Err((_, errno)) = self.remove()
        {
            tracing::warn!(dir = %self.shown.display(), %errno, "a scratch directory stays");
        }
    }
}

pub(super) fn open_base(base: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(base, flags, Mode::empty())
        .map_err(|error| unusable(base, "open the directory", error.into()))
}

pub(super) fn open_dir(parent: BorrowedFd<'_>, name: &str) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Makes the lock file, locks it where locks work, and says in it whose it is.
fn write_lock(dir: BorrowedFd<'_>) -> std::result::Result<File, Errno> {
    let mut lock = open_at(dir, LOCK, OFlags::CREATE | OFlags::EXCL)?;
    // A scratch store works without locks; only its leftovers need a word from a person.
    if let Err(Raw::WOULDBLOCK) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
    {
        return Err(Errno(libc::EWOULDBLOCK));
    }
    let text = serde_json::to_vec(&Owner::this_process()).map_err(|_| Errno(libc::EIO))?;
    lock.write_all(&text)?;
    Ok(lock)
}

/// Returns whether a file in our directory is one that we name so.
pub(super) fn is_our_file(name: &str) -> bool {
    let of = |prefix: &str, is: fn(&char) -> bool| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| (1..=16).contains(&rest.len()) && rest.chars().all(|c| is(&c)))
    };
    name == LOCK
        || of(SEGMENT_PREFIX, char::is_ascii_digit)
        || of(PROBE_PREFIX, char::is_ascii_hexdigit)
}

pub(super) fn is_our_dir(name: &str) -> bool {
    let name = name.strip_suffix(UNFINISHED).unwrap_or(name);
    name.strip_prefix(PREFIX)
        .is_some_and(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

pub(super) fn names_in(dir: BorrowedFd<'_>) -> std::result::Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes our files, the lock last, then the directory; what is not ours stays and keeps it.
pub(super) fn remove_ours(
    parent: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    name: &str,
    shown: &Path,
) -> std::result::Result<(), (Vec<PathBuf>, Errno)> {
    let stays = |errno: Errno| (vec![shown.to_owned()], errno);
    let same =
        |a: &rustix::fs::Stat, b: &rustix::fs::Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
    let linked = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| stays(error.into()))?;
    let opened = rustix::fs::fstat(dir).map_err(|error| stays(error.into()))?;
    if !same(&linked, &opened) {
        // Another directory has taken the name: it is not ours to touch.
        return Err(stays(Errno(libc::ESTALE)));
    }
    let (mut left, mut first) = (Vec::new(), Errno(libc::ENOTEMPTY));
    for file in names_in(dir).map_err(stays)?.into_iter().filter(|file| file != LOCK) {
        let removed = if is_our_file(&file) {
            rustix::fs::unlinkat(dir, &*file, AtFlags::empty())
        } else {
            Err(Raw::NOTEMPTY)
        };
        if let Err(error) = removed {
            first = error.into();
            left.push(shown.join(file));
        }
    }
    if !left.is_empty() {
        return Err((left, first));
    }
    match rustix::fs::unlinkat(dir, LOCK, AtFlags::empty()) {
        Ok(()) | Err(Raw::NOENT) => {}
        Err(error) => return Err(stays(error.into())),
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(|error| stays(error.into()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Returns the names in a directory, in order.
    pub(in super::super) fn entries(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_is_private_named_by_us_and_gone_afterwards() {
        let base = tempfile::tempdir().unwrap();
        let mut scratch = ScratchDir::create(base.path()).unwrap();
        let names = entries(base.path());
        assert!(names.len() == 1 && is_our_dir(&names[0]), "{names:?}");
        let mode = std::fs::metadata(scratch.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let lock = std::fs::metadata(scratch.path().join(LOCK)).unwrap();
        assert_eq!(lock.permissions().mode() & 0o777, 0o600);
        scratch.remove().unwrap();
        assert!(entries(base.path()).is_empty());
        drop(ScratchDir::create(base.path()).unwrap());
        assert!(entries(base.path()).is_empty());
    }

    #[test]
    fn what_is_not_ours_stays_and_is_named() {
        let base = tempfile::tempdir().unwrap();
        let mut scratch = ScratchDir::create(base.path()).unwrap();
        let foreign = scratch.path().join("notes.txt");
        std::fs::write(&foreign, "keep").unwrap();
        std::fs::write(scratch.path().join("segment-0"), "ours").unwrap();
        let (left, _) = scratch.remove().unwrap_err();
        assert_eq!(left, std::slice::from_ref(&foreign));
        assert_eq!(entries(scratch.path()), ["lock", "notes.txt"]);
        assert_eq!(std::fs::read(foreign).unwrap(), b"keep");
    }
}
