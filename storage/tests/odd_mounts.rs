//! Paths on file systems that refuse, lie or run full, each mounted in a namespace of its own.
//!
//! Every test runs itself again as an ordinary user's root in new user and mount namespaces. Where
//! the system does not allow that, it is skipped with the reason.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path as FsPath;
use std::sync::mpsc;
use std::time::Duration;

use common::apart::{Place, apart};
use tensortier_storage::arena::{Arena, FrameMut};
use tensortier_storage::clock::Clock;
use tensortier_storage::error::{Errno, Error};
use tensortier_storage::id::Class;
use tensortier_storage::io::EngineChoice;
use tensortier_storage::path::{Extent, FilePathStore, Path, PathStore};

const MIB: u64 = 1 << 20;

/// Runs `test` where `mount` mounted something, in a process of its own.
fn mounted(name: &str, mount: &str, test: impl FnOnce(&FsPath)) {
    apart(name, Place::Mount(mount), test);
}

fn open(dir: &FsPath) -> Result<FilePathStore, Error> {
    FilePathStore::open(&Path::new(dir), EngineChoice::Auto, Clock::system())
}

fn frame(arena: &Arena, bytes: u64, value: u8) -> FrameMut {
    let mut frame = arena.try_alloc(bytes).unwrap().unwrap();
    frame.fill(value);
    frame
}

fn write(store: &FilePathStore, extent: &Extent, from: FrameMut) -> Result<(), Errno> {
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).unwrap());
    store.write(extent, from.share().whole(), Class::WriteBack, done);
    told.recv().unwrap()
}

fn read(store: &FilePathStore, arena: &Arena, extent: &Extent, bytes: u64) -> FrameMut {
    let (guard, into) = arena.try_alloc(bytes).unwrap().unwrap().fill_from_outside();
    let (tell, told) = mpsc::channel();
    store.read(extent, 0, into, Class::Demand, Box::new(move |result| tell.send(result).unwrap()));
    told.recv().unwrap().unwrap();
    guard.try_finish().unwrap()
}

#[test]
fn a_small_file_system_is_used_to_its_end_and_says_that_it_is_full() {
    let name = "a_small_file_system_is_used_to_its_end_and_says_that_it_is_full";
    mounted(name, "mount -t tmpfs -o size=5m tmpfs $D", |dir| {
        let store = open(dir).unwrap();
        let arena = Arena::new(8 * MIB).unwrap();
        let first = store.reserve(2 * MIB).unwrap();
        assert_eq!(write(&store, &first, frame(&arena, 2 * MIB, 1)), Ok(()));
        let mut more = Vec::new();
        let full = loop {
            match store.reserve(MIB) {
                Ok(extent) => more.push(extent),
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno(libc::ENOSPC));
        assert!(more.len() >= 2, "{}", more.len());
        assert!(read(&store, &arena, &first, 2 * MIB).iter().all(|byte| *byte == 1));
        store.free(more.pop().unwrap());
        let again = store.reserve(MIB).unwrap();
        assert_eq!(write(&store, &again, frame(&arena, MIB, 2)), Ok(()));
        store.close(Duration::from_secs(10)).unwrap();
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    });
}

#[test]
fn a_full_file_system_is_refused_at_open_and_left_as_it_was() {
    let name = "a_full_file_system_is_refused_at_open_and_left_as_it_was";
    let mount = "mount -t tmpfs -o size=64k tmpfs $D && head -c 65536 /dev/zero > $D/full";
    mounted(name, mount, |dir| {
        let refused = open(dir).unwrap_err().to_string();
        assert!(refused.contains("full") && refused.contains("free space"), "{refused}");
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1);
    });
}

#[test]
fn a_file_system_without_direct_transfers_or_allocation_is_used_buffered() {
    let name = "a_file_system_without_direct_transfers_or_allocation_is_used_buffered";
    mounted(name, "mount -t ramfs ramfs $D", |dir| {
        let store = open(dir).unwrap();
        let facts = store.capabilities();
        assert!(!facts.direct && !facts.fallocate, "{facts:?}");
        assert!(facts.direct_why.contains("O_DIRECT"), "{}", facts.direct_why);
        assert_eq!(facts.file_system, "ramfs");
        let arena = Arena::new(8 * MIB).unwrap();
        let extent = store.reserve(3 * MIB + 1).unwrap();
        assert_eq!(write(&store, &extent, frame(&arena, 3 * MIB + 1, 7)), Ok(()));
        assert!(read(&store, &arena, &extent, 3 * MIB + 1).iter().all(|byte| *byte == 7));
        store.sync().unwrap();
        store.close(Duration::from_secs(10)).unwrap();
    });
}

#[test]
fn a_read_only_file_system_is_refused_with_a_remedy() {
    let name = "a_read_only_file_system_is_refused_with_a_remedy";
    mounted(name, "mount -t tmpfs -o ro tmpfs $D", |dir| {
        let refused = open(dir).unwrap_err().to_string();
        assert!(refused.contains("read-only"), "{refused}");
    });
}
