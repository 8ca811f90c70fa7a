//! Directories that stores left on a path: how they are found, judged and removed.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, OFlags};
use rustix::io::Errno as Raw;

use super::lock::{LOCK, Owner, is_our_dir, names_in, open_base, open_dir, remove_ours};
use crate::error::{Errno, Error, Result};
use crate::io::probe::{open_at, unusable};

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
    use super::super::lock::tests::entries;
    use super::super::lock::{ScratchDir, is_our_file};
    use super::*;
    use std::os::unix::fs::symlink;

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
