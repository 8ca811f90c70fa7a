//! The line of processes before a device: tickets that the kernel holds, so that it moves on when
//! one dies.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno as Raw;

use super::lock::{names_in, open_dir};
use super::width::Width;
use crate::error::Errno;
use crate::io::probe::open_at;

/// Whoever has this file locked makes tickets; its first eight bytes are the last number given.
const DOOR: &str = "door";

/// A ticket that has no number yet.
const NEW: &str = "new";

/// How many processes at a time have been found to pay.
const WIDTH: &str = "width";

/// The line before one device. Processes of one user that see the same memory file system stand in
/// one line; those of others are not seen.
#[derive(Debug)]
pub(super) struct Line {
    base: PathBuf,
    user: String,
    device: String,
}

impl Line {
    /// Returns the line before the device of this number.
    ///
    /// # Errors
    /// What the system said of a directory for it, or of a lock there.
    pub(super) fn of_device(device: u64) -> Result<Self, Errno> {
        let memory = PathBuf::from("/dev/shm");
        Self::in_dir(if memory.is_dir() { memory } else { std::env::temp_dir() }, device)
    }

    pub(super) fn in_dir(base: PathBuf, device: u64) -> Result<Self, Errno> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let user = format!("tensortier-{}", rustix::process::geteuid().as_raw());
        let line = Line { base, user, device: format!("{major}-{minor}") };
        // Whether it works is known before anybody relies on it.
        line.join(Width::default()).map(drop)?;
        Ok(line)
    }

    /// Goes to the end of the line; `None` while another process is just doing so. `first` is what
    /// the first process ever believes to pay.
    ///
    /// # Errors
    /// What the system said.
    pub(super) fn join(&self, first: Width) -> Result<Option<Ticket>, Errno> {
        let Some(door) = self.close_door()? else { return Ok(None) };
        // A new ticket is behind all that are there.
        let before = door.tickets()?;
        let number = door.next_number()?;
        let file = open_at(door.dir.as_fd(), NEW, OFlags::CREATE)?;
        // With the door closed nobody else makes one: whoever left this is dead.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        rustix::fs::renameat(&door.dir, NEW, &door.dir, name_of(number))?;
        let width = door.width().unwrap_or(first);
        let dir = door.dir.try_clone()?;
        let mut ticket = Ticket { dir, number, file, ahead: Vec::new(), width };
        for number in before {
            match open_at(ticket.dir.as_fd(), &name_of(number), OFlags::empty()) {
                Ok(file) => ticket.ahead.push((number, file)),
                Err(Errno(libc::ENOENT)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Some(ticket))
    }

    /// Changes what is known to pay, unless another process is at the door just now.
    ///
    /// # Errors
    /// What the system said.
    pub(super) fn learn(&self, first: Width, change: impl FnOnce(&mut Width)) -> Result<(), Errno> {
        let Some(door) = self.close_door()? else { return Ok(()) };
        let mut width = door.width().unwrap_or(first);
        change(&mut width);
        door.set_width(&width)
    }

    pub(super) fn close_door(&self) -> Result<Option<Door>, Errno> {
        let dir = self.dir()?;
        let file = open_at(dir.as_fd(), DOOR, OFlags::CREATE)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Door { dir, file })),
            Err(Raw::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes what is missing of the directory, and opens it each time: somebody may have cleaned up.
    fn dir(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let base = rustix::fs::open(&self.base, flags, Mode::empty())?;
        let user = private_dir(&base, &self.user)?;
        private_dir(&user, &self.device)
    }
}

/// Opens a directory that nobody else can write to, or makes it.
fn private_dir(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Raw::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let dir = open_dir(parent.as_fd(), name)?;
    let stat = rustix::fs::fstat(&dir)?;
    let others = Mode::from_raw_mode(stat.st_mode) & (Mode::RWXG | Mode::RWXO);
    if stat.st_uid != rustix::process::geteuid().as_raw() || !others.is_empty() {
        return Err(Errno(libc::EACCES));
    }
    Ok(dir)
}

fn name_of(number: u64) -> String {
    format!("{number:020}")
}

/// The right to make a ticket, for as long as it takes.
pub(super) struct Door {
    dir: OwnedFd,
    file: File,
}

impl Door {
    /// Returns the numbers of all tickets, dead ones included, in their order.
    fn tickets(&self) -> Result<Vec<u64>, Errno> {
        let mut numbers = tickets_in(&self.dir)?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// A number is never given twice: whoever removes a dead ticket by its name removes no other.
    fn next_number(&self) -> Result<u64, Errno> {
        let mut last = [0; 8];
        // An empty file is a new one.
        let read = self.file.read_at(&mut last, 0)?;
        let next = if read == 8 { u64::from_le_bytes(last).wrapping_add(1) } else { 1 };
        self.file.write_all_at(&next.to_le_bytes(), 0)?;
        Ok(next)
    }

    fn width(&self) -> Option<Width> {
        let file = open_at(self.dir.as_fd(), WIDTH, OFlags::empty()).ok()?;
        serde_json::from_reader(file).ok()
    }

    fn set_width(&self, width: &Width) -> Result<(), Errno> {
        let text = serde_json::to_vec(width).map_err(|_| Errno(libc::EIO))?;
        let file = open_at(self.dir.as_fd(), WIDTH, OFlags::CREATE | OFlags::TRUNC)?;
        Ok(file.write_all_at(&text, 0)?)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

fn tickets_in(dir: &OwnedFd) -> Result<Vec<u64>, Errno> {
    Ok(names_in(dir.as_fd())?.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Closing the file would not do while a child of a fork has it open as well.
fn unlock(file: &File) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// A place in the line, held until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Ticket {
    dir: OwnedFd,
    number: u64,
    file: File,
    ahead: Vec<(u64, File)>,
    width: Width,
}

impl Ticket {
    /// Returns the numbers of those that came before and are still there, in their order, and forgets
    /// the others.
    pub(super) fn ahead(&mut self) -> impl Iterator<Item = u64> {
        let dir = &self.dir;
        self.ahead.retain(|(number, file)| {
            let lock = rustix::fs::flock(file, FlockOperation::NonBlockingLockShared);
            let is_held = lock == Err(Raw::WOULDBLOCK);
            if !is_held {
                // He left it, or he died. Others who wait may find the same at the same time.
                let _ = rustix::fs::unlinkat(dir, name_of(*number), AtFlags::empty());
                unlock(file);
            }
            is_held
        });
        self.ahead.iter().map(|(number, _)| *number)
    }

    /// Returns how many tickets there are, this one and perhaps dead ones included.
    pub(super) fn in_line(&self) -> usize {
        tickets_in(&self.dir).map_or(1, |tickets| tickets.len())
    }

    /// Returns what was known to pay when it was made.
    pub(super) fn width(&self) -> &Width {
        &self.width
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.dir, name_of(self.number), AtFlags::empty());
        unlock(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(dir: &tempfile::TempDir) -> Line {
        Line::in_dir(dir.path().to_owned(), rustix::fs::makedev(8, 1)).unwrap()
    }

    fn join(line: &Line) -> Ticket {
        line.join(Width::default()).unwrap().unwrap()
    }

    #[test]
    fn who_came_first_goes_first_whoever_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let mut tickets: Vec<_> = (0..4).map(|_| join(&line)).collect();
        let ahead = |tickets: &mut Vec<Ticket>| -> Vec<_> {
            tickets.iter_mut().map(|ticket| ticket.ahead().count()).collect()
        };
        assert_eq!(ahead(&mut tickets), [0, 1, 2, 3]);
        assert_eq!(tickets[0].in_line(), 4);
        tickets.remove(1);
        assert_eq!(ahead(&mut tickets), [0, 1, 2]);
        tickets.remove(0);
        tickets.push(join(&line));
        assert_eq!(ahead(&mut tickets), [0, 1, 2]);
        tickets.clear();
        let mut alone = join(&line);
        assert_eq!((alone.ahead().count(), alone.in_line()), (0, 1), "nothing is left behind");
    }

    #[test]
    fn what_a_dead_process_left_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let place = dir.path().join(&line.user).join("8-1");
        let last: [u8; 8] = std::fs::read(place.join(DOOR)).unwrap().try_into().unwrap();
        for left in [&*name_of(u64::from_le_bytes(last)), NEW, WIDTH] {
            std::fs::write(place.join(left), "").unwrap();
        }
        let mut ticket = join(&line);
        assert_eq!((ticket.in_line(), ticket.ahead().count(), ticket.in_line()), (2, 0, 1));
        drop(ticket);
        std::fs::remove_dir_all(dir.path().join(&line.user)).unwrap();
        assert_eq!(join(&line).ahead().count(), 0, "it is made again");
    }

    #[test]
    fn one_at_a_time_passes_the_door() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let door = line.close_door().unwrap().unwrap();
        assert!(line.join(Width::default()).unwrap().is_none());
        line.learn(Width::default(), |_| panic!("another has the door")).unwrap();
        drop(door);
        assert_eq!(join(&line).ahead().count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path().join(&line.user), all).unwrap();
        assert_eq!(line.join(Width::default()).unwrap_err(), Errno(libc::EACCES));
        std::fs::remove_dir_all(dir.path().join(&line.user)).unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join(&line.user)).unwrap();
        assert!(line.join(Width::default()).is_err());
    }

    #[test]
    fn what_pays_is_known_to_who_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let before = join(&line);
        line.learn(Width::at(1), |width| *width = Width::at(5)).unwrap();
        assert_eq!(before.width().processes(), Width::default().processes());
        assert_eq!(join(&line).width().processes(), 5);
    }
}
