//! The life of a store's directory on a path: made, locked, found again when left over, removed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno as Raw;

use super::segment::SEGMENT_PREFIX;
use crate::error::{Errno, Error, Result};
use crate::io::probe::{PROBE_PREFIX, open_at, random, unusable};

/// What our directories are called, followed by 16 hexadecimal digits.
const PREFIX: &str = "tensortier-";

/// What follows while a directory is being made.
const UNFINISHED: &str = ".new";

const LOCK: &str = "lock";

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
    fn this_process() -> Self {
        let pid = std::process::id();
        Owner { host: host(), boot_id: boot_id(), pid, start: start_of(pid).unwrap_or(0) }
    }

    fn is_on_this_machine(&self) -> bool {
        self.host == host() || self.boot_id == boot_id()
    }

    fn lives_here(&self) -> bool {
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
        for _ in 0..ATTEMPTS {
            let name = format!("{PREFIX}{:016x}", random());
            match Self::try_create(&parent, base, &name) {
                // Somebody looked at it, or removed it, before it was locked: take another name.
                Err((_, Errno(libc::EWOULDBLOCK | libc::ENOENT | libc::EEXIST))) => {}
                Err((attempted, errno)) => return Err(unusable(base, attempted, errno)),
                Ok(dir) => return Ok(dir),
            }
        }
        Err(unusable(base, "make a directory of our own", Errno(libc::EBUSY)))
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

fn open_base(base: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(base, flags, Mode::empty())
        .map_err(|error| unusable(base, "open the directory", error.into()))
}

fn open_dir(parent: BorrowedFd<'_>, name: &str) -> std::result::Result<OwnedFd, Errno> {
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
fn is_our_file(name: &str) -> bool {
    let of = |prefix: &str, is: fn(&char) -> bool| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| (1..=16).contains(&rest.len()) && rest.chars().all(|c| is(&c)))
    };
    name == LOCK
        || of(SEGMENT_PREFIX, char::is_ascii_digit)
        || of(PROBE_PREFIX, char::is_ascii_hexdigit)
}

fn is_our_dir(name: &str) -> bool {
    let name = name.strip_suffix(UNFINISHED).unwrap_or(name);
    name.strip_prefix(PREFIX)
        .is_some_and(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn names_in(dir: BorrowedFd<'_>) -> std::result::Result<Vec<String>, Errno> {
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
fn remove_ours(
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

/// A directory that a store left, or that one is using.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// The directory.
    pub dir: PathBuf,
    /// Bytes its files take.
    pub bytes: u64,
    /// Who made it, if that can be read.
    pub owner: Option<Owner>,
    /// Whether it is, or may be, in use. `false` only if it provably is not.
    pub alive: bool,
    /// How that is known, in words.
    pub why: String,
}

/// Whether a directory is in use.
enum Verdict {
    InUse(String),
    Free(String),
    /// Not known; a person may decide.
    Unknown(String),
}

/// One of our directories, opened and looked at; the lock, where it was to be had, stays taken.
struct Examined {
    dir: OwnedFd,
    _lock: Option<File>,
    owner: Option<Owner>,
    verdict: Verdict,
}

fn examine(
    parent: BorrowedFd<'_>,
    name: &str,
    lock_as: FlockOperation,
) -> std::result::Result<Examined, Errno> {
    let dir = open_dir(parent, name)?;
    let unknown = |dir, why: String| {
        Ok(Examined { dir, _lock: None, owner: None, verdict: Verdict::Unknown(why) })
    };
    let lock = match open_at(dir.as_fd(), LOCK, OFlags::empty()) {
        Ok(lock) => lock,
        Err(Errno(libc::ENOENT)) => {
            return unknown(dir, String::from("it has no lock file; it may be in the making"));
        }
        Err(errno) => return unknown(dir, format!("its lock file cannot be opened: {errno}")),
    };
    let mut text = Vec::new();
    let _ = (&lock).take(4096).read_to_end(&mut text);
    let owner: Option<Owner> = serde_json::from_slice(&text).ok();
    let locked = rustix::fs::flock(&lock, lock_as);
    let works = locked.is_ok()
        && open_at(dir.as_fd(), LOCK, OFlags::empty()).is_ok_and(|second| {
            let exclusive = FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(&second, exclusive) == Err(Raw::WOULDBLOCK)
        });
    let verdict = match (&owner, locked) {
        (_, Err(Raw::WOULDBLOCK)) => Verdict::InUse(String::from("its owner holds its lock")),
        (Some(owner), _) if !works => judge_without_locks(owner),
        (Some(owner), _) if owner.is_on_this_machine() => {
            Verdict::Free(format!("nobody holds its lock; process {} is gone", owner.pid))
        }
        (Some(owner), _) => Verdict::Unknown(format!(
            "it was made on {}, whose locks may not be seen from here",
            owner.host
        )),
        (None, _) => Verdict::Unknown(String::from("its lock file does not say whose it is")),
    };
    Ok(Examined { dir, _lock: Some(lock), owner, verdict })
}

fn judge_without_locks(owner: &Owner) -> Verdict {
    if owner.lives_here() {
        Verdict::InUse(format!("process {} on this machine uses it", owner.pid))
    } else if owner.is_on_this_machine() {
        Verdict::Unknown(format!(
            "file locks do not work here; process {} is not seen any more",
            owner.pid
        ))
    } else {
        Verdict::Unknown(format!("file locks do not work here; it was made on {}", owner.host))
    }
}

fn bytes_in(dir: BorrowedFd<'_>) -> u64 {
    let names = names_in(dir).unwrap_or_default();
    let stats = names
        .iter()
        .filter_map(|name| rustix::fs::statat(dir, &**name, AtFlags::SYMLINK_NOFOLLOW).ok());
    stats.map(|stat| stat.st_blocks as u64 * 512).sum()
}

/// Returns the directories in `dir` that stores made, in use or left over, by name. Reads only.
///
/// # Errors
/// [`Error::PathUnusable`] when `dir` cannot be read.
pub fn leftovers(dir: &Path) -> Result<Vec<Leftover>> {
    let parent = open_base(dir)?;
    let mut names =
        names_in(parent.as_fd()).map_err(|errno| unusable(dir, "list the directory", errno))?;
    names.retain(|name| is_our_dir(name));
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let is_dir = rustix::fs::statat(&parent, &*name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if !is_dir {
            continue;
        }
        let path = dir.join(&name);
        // A shared lock: two that look do not take each other for the owner.
        found.push(match examine(parent.as_fd(), &name, FlockOperation::NonBlockingLockShared) {
            Ok(Examined { dir, owner, verdict, .. }) => {
                let bytes = bytes_in(dir.as_fd());
                let (alive, why) = match verdict {
                    Verdict::Free(why) => (false, why),
                    Verdict::InUse(why) | Verdict::Unknown(why) => (true, why),
                };
                Leftover { dir: path, bytes, owner, alive, why }
            }
            // Removed by its owner meanwhile.
            Err(Errno(libc::ENOENT)) => continue,
            Err(errno) => {
                let why = format!("it cannot be opened: {errno}");
                Leftover { dir: path, bytes: 0, owner: None, alive: true, why }
            }
        });
    }
    Ok(found)
}

/// Removes a leftover: our files in it and, if nothing else is there, the directory. Looks again
/// first, under its lock. `force` is a person's word for one of which it cannot be known whether it
/// is in use; one that is known to be in use is never removed.
///
/// # Errors
/// [`Error::PathUnusable`] when it is or may be in use, or when something in it could not be removed.
pub fn remove_leftover(leftover: &Leftover, force: bool) -> Result<()> {
    let path = &leftover.dir;
    let refuse = |why: &str, errno: i32| Error::PathUnusable {
        path: path.clone(),
        attempted: String::from("remove the leftover"),
        source: Errno(errno),
        remedy: why.to_owned(),
    };
    let (Some(base), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        return Err(refuse("name a directory that a store made", libc::EINVAL));
    };
    if !is_our_dir(name) {
        return Err(refuse("only directories that a store made are removed", libc::EINVAL));
    }
    let parent = open_base(base)?;
    let seen = examine(parent.as_fd(), name, FlockOperation::NonBlockingLockExclusive)
        .map_err(|errno| unusable(path, "open the leftover", errno))?;
    match &seen.verdict {
        Verdict::InUse(why) => {
            return Err(refuse(&format!("{why}: end that process first"), libc::EBUSY));
        }
        Verdict::Unknown(why) if !force => {
            let why = format!("{why}: use force if you know that nobody uses it");
            return Err(refuse(&why, libc::EBUSY));
        }
        Verdict::Unknown(_) | Verdict::Free(_) => {}
    }
    remove_ours(parent.as_fd(), seen.dir.as_fd(), name, path).map_err(|(left, errno)| {
        let left: Vec<_> = left.iter().map(|path| path.display().to_string()).collect();
        refuse(&format!("remove by hand what stays: {}", left.join(", ")), errno.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn entries(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Leaves a directory behind as a process that was killed does.
    fn abandon(base: &Path, change: impl FnOnce(&mut Owner)) -> PathBuf {
        let mut scratch = ScratchDir::create(base).unwrap();
        let path = scratch.path().to_owned();
        let mut owner = Owner::this_process();
        change(&mut owner);
        std::fs::write(path.join(LOCK), serde_json::to_vec(&owner).unwrap()).unwrap();
        std::fs::write(path.join("segment-0"), vec![1; 10_000]).unwrap();
        scratch.let_stay();
        path
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

    #[test]
    fn a_directory_in_use_is_listed_and_never_removed() {
        let base = tempfile::tempdir().unwrap();
        let scratch = ScratchDir::create(base.path()).unwrap();
        let found = leftovers(base.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].alive, "{found:?}");
        assert_eq!(found[0].owner.as_ref().unwrap().pid, std::process::id());
        for force in [false, true] {
            let refused = remove_leftover(&found[0], force).unwrap_err();
            assert!(refused.to_string().contains("holds its lock"), "{refused}");
        }
        assert!(scratch.path().join(LOCK).exists());
    }

    #[test]
    fn a_leftover_of_this_machine_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let path = abandon(base.path(), |owner| owner.pid = 4_000_000);
        let found = leftovers(base.path()).unwrap();
        assert_eq!(found[0].dir, path);
        assert!(!found[0].alive && found[0].bytes >= 10_000, "{found:?}");
        remove_leftover(&found[0], false).unwrap();
        assert!(entries(base.path()).is_empty());
        assert!(remove_leftover(&found[0], true).is_err());
    }

    #[test]
    fn a_leftover_of_another_machine_needs_force() {
        let base = tempfile::tempdir().unwrap();
        abandon(base.path(), |owner| {
            owner.host = String::from("elsewhere");
            owner.boot_id = String::from("other");
        });
        let found = leftovers(base.path()).unwrap();
        assert!(found[0].alive && found[0].why.contains("elsewhere"), "{found:?}");
        let refused = remove_leftover(&found[0], false).unwrap_err().to_string();
        assert!(refused.contains("force"), "{refused}");
        remove_leftover(&found[0], true).unwrap();
        assert!(entries(base.path()).is_empty());
    }

    #[test]
    fn only_real_directories_of_our_naming_are_looked_at() {
        let base = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir().unwrap();
        std::fs::write(target.path().join("segment-0"), "precious").unwrap();
        let link = base.path().join("tensortier-0123456789abcdef");
        symlink(target.path(), &link).unwrap();
        for name in ["tensortier-xyz", "tensortier-0123456789abcdeg", "other"] {
            std::fs::create_dir(base.path().join(name)).unwrap();
        }
        assert_eq!(leftovers(base.path()).unwrap(), []);
        let why = String::new();
        let forged = Leftover { dir: link, bytes: 0, owner: None, alive: false, why };
        assert!(remove_leftover(&forged, true).is_err());
        assert_eq!(entries(target.path()), ["segment-0"]);
        assert!(is_our_file("segment-12") && is_our_file("probe-00ff"));
        assert!(!is_our_file("segment-") && !is_our_file("segment-x") && !is_our_file("lock2"));
    }

    #[test]
    fn without_locks_a_living_process_is_told_by_its_start() {
        let mut owner = Owner::this_process();
        assert!(owner.start > 0 && owner.lives_here());
        assert!(matches!(judge_without_locks(&owner), Verdict::InUse(_)));
        owner.start += 1;
        assert!(matches!(judge_without_locks(&owner), Verdict::Unknown(_)));
    }

    #[test]
    fn makers_and_collectors_may_meet() {
        let base = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            let mut scratch = ScratchDir::create(base.path()).unwrap();
                            assert!(scratch.path().join(LOCK).exists());
                            scratch.remove().unwrap();
                        }
                    })
                })
                .collect();
            while !makers.iter().all(|maker| maker.is_finished()) {
                for found in leftovers(base.path()).unwrap() {
                    if !found.alive {
                        let _ = remove_leftover(&found, false);
                    }
                }
            }
        });
        assert!(entries(base.path()).is_empty());
    }
}
