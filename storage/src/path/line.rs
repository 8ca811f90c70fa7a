//! The line of processes before a device: tickets that the kernel holds, so that it moves on when
//! one dies.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno as Raw;

use super::lock::{names_in, open_dir};
use super::width::Width;
use crate::error::Errno;
use crate::io::probe::open_at;

/// Whoever has this file locked makes tickets; its first eight bytes are the last number given.
const DOOR: &str = "door";

/// What has no name of its own yet: a ticket, or a width.
const NEW: &str = "new";

/// How many processes at a time have been found to pay.
const WIDTH: &str = "width";

/// What was found out is forgotten when no process has met another for so long: others come, for
/// other work.
const FORGET: Duration = Duration::from_secs(60);

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
        Self::in_dir(PathBuf::from("/dev/shm"), device)
    }

    pub(super) fn in_dir(base: PathBuf, device: u64) -> Result<Self, Errno> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let user = format!("tensortier-{}", rustix::process::geteuid().as_raw());
        let line = Line { base, user, device: format!("{major}-{minor}") };
        // Whether it works is known before anybody relies on it; who only looks asks for nothing.
        line.join(|_| u32::MAX).map(drop)?;
        Ok(line)
    }

    /// Goes to the end of the line; `None` while another process is just doing so. `limit` says how
    /// many processes are to use the device at one time, told how many have been found to pay.
    ///
    /// # Errors
    /// What the system said.
    pub(super) fn join(&self, limit: impl FnOnce(u32) -> u32) -> Result<Option<Ticket>, Errno> {
        let Some(door) = self.close_door()? else { return Ok(None) };
        // A new ticket is behind all that are there.
        let before = tickets_in(&door.dir)?;
        let name =
            Name { number: door.next_number(&before)?, limit: limit(door.width().processes()) };
        let file = door.new_file()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let dir = door.dir.try_clone()?;
        rustix::fs::renameat(&dir, NEW, &dir, name.to_string())?;
        let mut ticket = Ticket { dir, name, file, ahead: Vec::new() };
        for name in before {
            match open_at(ticket.dir.as_fd(), &name.to_string(), OFlags::empty()) {
                Ok(file) => ticket.ahead.push((name, file)),
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
    pub(super) fn learn(&self, change: impl FnOnce(&mut Width)) -> Result<(), Errno> {
        let Some(door) = self.close_door()? else { return Ok(()) };
        let mut width = door.width();
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

/// What a ticket's file is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) number: u64,
    /// How many processes its owner wants to use the device at one time.
    pub(super) limit: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.limit)
    }
}

impl Name {
    fn read(text: &str) -> Option<Self> {
        let (number, limit) = text.split_once('-')?;
        Some(Name { number: number.parse().ok()?, limit: limit.parse().ok()? })
    }
}

/// Returns the names of all tickets, dead ones included, in their order.
fn tickets_in(dir: &OwnedFd) -> Result<Vec<Name>, Errno> {
    let mut names: Vec<_> =
        names_in(dir.as_fd())?.iter().filter_map(|name| Name::read(name)).collect();
    names.sort_unstable();
    Ok(names)
}

/// The right to make a ticket, for as long as it takes.
pub(super) struct Door {
    dir: OwnedFd,
    file: File,
}

impl Door {
    /// A number is never given twice: whoever removes a dead ticket by its name removes no other.
    fn next_number(&self, before: &[Name]) -> Result<u64, Errno> {
        let mut last = [0; 8];
        // An empty file is a new one.
        let read = self.file.read_at(&mut last, 0)?;
        let last = if read == 8 { u64::from_le_bytes(last) } else { 0 };
        let next = before.last().map_or(last, |name| last.max(name.number)).wrapping_add(1);
        self.file.write_all_at(&next.to_le_bytes(), 0)?;
        Ok(next)
    }

    /// Returns a file that has no name of its own yet. With the door closed nobody else makes one:
    /// whoever left it is dead.
    fn new_file(&self) -> Result<File, Errno> {
        let _ = rustix::fs::unlinkat(&self.dir, NEW, AtFlags::empty());
        open_at(self.dir.as_fd(), NEW, OFlags::CREATE | OFlags::EXCL)
    }

    /// Returns what has been found to pay lately.
    fn width(&self) -> Width {
        let read = || {
            let file = open_at(self.dir.as_fd(), WIDTH, OFlags::empty()).ok()?;
            let age = file.metadata().ok()?.modified().ok()?.elapsed().unwrap_or_default();
            let width: Width = serde_json::from_reader(file).ok()?;
            (age < FORGET && width.processes() > 0).then_some(width)
        };
        read().unwrap_or_default()
    }

    fn set_width(&self, width: &Width) -> Result<(), Errno> {
        let text = serde_json::to_vec(width).map_err(|_| Errno(libc::EIO))?;
        self.new_file()?.write_all_at(&text, 0)?;
        Ok(rustix::fs::renameat(&self.dir, NEW, &self.dir, WIDTH)?)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

/// Closing the file would not do while a child of a fork has it open as well.
fn unlock(file: &File) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// A place in the line, held until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Ticket {
    dir: OwnedFd,
    name: Name,
    file: File,
    ahead: Vec<(Name, File)>,
}

impl Ticket {
    /// Returns who came before and is still there, without those to be passed: no more than decide
    /// whether its owner may go.
    pub(super) fn ahead(&mut self, passed: &HashSet<u64>) -> Vec<Name> {
        let (dir, most, mut alive) = (&self.dir, self.name.limit as usize, Vec::new());
        self.ahead.retain(|(name, file)| {
            if alive.len() == most || passed.contains(&name.number) {
                return true;
            }
            let lock = rustix::fs::flock(file, FlockOperation::NonBlockingLockShared);
            let is_held = lock == Err(Raw::WOULDBLOCK);
            if is_held {
                alive.push(*name);
            } else {
                // He left it, or he died. Others who wait may find the same at the same time.
                let _ = rustix::fs::unlinkat(dir, name.to_string(), AtFlags::empty());
                unlock(file);
            }
            is_held
        });
        alive
    }

    /// Returns how many processes its owner wants to use the device at one time.
    pub(super) fn limit(&self) -> u32 {
        self.name.limit
    }

    /// Returns how many tickets there are, this one and perhaps dead ones included, and the least
    /// number of processes that one of their owners wants to use the device at one time.
    pub(super) fn line(&self) -> (u32, u32) {
        let tickets = tickets_in(&self.dir).unwrap_or_default();
        let limits = tickets.iter().map(|name| name.limit);
        (tickets.len() as u32, limits.fold(self.name.limit, u32::min))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.dir, self.name.to_string(), AtFlags::empty());
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
        line.join(|_| 9).unwrap().unwrap()
    }

    fn ahead(ticket: &mut Ticket) -> usize {
        ticket.ahead(&HashSet::new()).len()
    }

    #[test]
    fn who_came_first_goes_first_whoever_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let mut tickets: Vec<_> = (0..4).map(|_| join(&line)).collect();
        let all = |tickets: &mut Vec<Ticket>| -> Vec<_> { tickets.iter_mut().map(ahead).collect() };
        assert_eq!(all(&mut tickets), [0, 1, 2, 3]);
        let careful = line.join(|_| 2).unwrap();
        assert_eq!(tickets[0].line(), (5, 2));
        assert_eq!(careful.map(|mut ticket| ahead(&mut ticket)), Some(2), "enough to know");
        let names = tickets[3].ahead(&HashSet::new());
        let passed = HashSet::from([names[1].number]);
        assert_eq!(tickets[3].ahead(&passed), [names[0], names[2]]);
        tickets.remove(1);
        assert_eq!(all(&mut tickets), [0, 1, 2]);
        tickets.remove(0);
        tickets.push(join(&line));
        assert_eq!(all(&mut tickets), [0, 1, 2]);
        tickets.clear();
        let mut alone = join(&line);
        assert_eq!((ahead(&mut alone), alone.line().0), (0, 1), "nothing is left behind");
    }

    #[test]
    fn what_a_dead_process_left_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let place = dir.path().join(&line.user).join("8-1");
        let last: [u8; 8] = std::fs::read(place.join(DOOR)).unwrap().try_into().unwrap();
        let last = Name { number: u64::from_le_bytes(last), limit: 9 }.to_string();
        for left in [&*last, NEW, WIDTH] {
            std::fs::write(place.join(left), "").unwrap();
        }
        let mut ticket = join(&line);
        assert_eq!((ticket.line().0, ahead(&mut ticket), ticket.line().0), (2, 0, 1));
        drop(ticket);
        std::fs::remove_dir_all(dir.path().join(&line.user)).unwrap();
        assert_eq!(ahead(&mut join(&line)), 0, "it is made again");
    }

    #[test]
    fn one_at_a_time_passes_the_door() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let door = line.close_door().unwrap().unwrap();
        assert!(line.join(|_| 1).unwrap().is_none());
        line.learn(|_| panic!("another has the door")).unwrap();
        drop(door);
        assert_eq!(ahead(&mut join(&line)), 0);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path().join(&line.user), all).unwrap();
        assert_eq!(line.join(|_| 1).unwrap_err(), Errno(libc::EACCES));
        std::fs::remove_dir_all(dir.path().join(&line.user)).unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join(&line.user)).unwrap();
        assert!(line.join(|_| 1).is_err());
    }

    #[test]
    fn what_pays_is_known_to_who_comes_soon_and_no_wrong_word_of_it_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let paying = || line.join(|paying| paying).unwrap().unwrap().limit();
        assert_eq!(paying(), 1);
        line.learn(|width| *width = Width::at(5)).unwrap();
        assert_eq!(paying(), 5);
        let place = dir.path().join(&line.user).join("8-1").join(WIDTH);
        let text = std::fs::read_to_string(&place).unwrap();
        std::fs::write(&place, text.replace('5', "0")).unwrap();
        assert_eq!(paying(), 1);
        std::fs::write(&place, text).unwrap();
        let file = File::options().write(true).open(&place).unwrap();
        file.set_modified(std::time::SystemTime::now() - FORGET).unwrap();
        assert_eq!(paying(), 1, "it is long ago");
    }

    #[test]
    fn a_number_is_not_given_twice_also_when_the_door_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let line = line(&dir);
        let first = join(&line);
        std::fs::remove_file(dir.path().join(&line.user).join("8-1").join(DOOR)).unwrap();
        assert!(join(&line).name.number > first.name.number);
    }
}
