//! A system that forbids io_uring, or lets a ring be set up only half way: the path works all the
//! same with other means, and says why; nothing waits for ever.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use common::refused::{Refused, refused, where_refused};
use common::{PATIENCE, exercise, within_patience};
use tensortier_storage::clock::Clock;
use tensortier_storage::error::Result;
use tensortier_storage::io::{EngineChoice, EngineKind};
use tensortier_storage::path::{FilePathStore, Path, PathStore};
use tensortier_storage::store::Store;

fn open(dir: &std::path::Path, engine: EngineChoice) -> Result<FilePathStore> {
    FilePathStore::open(&Path::new(dir), engine, Clock::system())
}

/// Where `calls` are refused: threads are used with a reason that starts and goes on so, the store
/// works, and who insists on io_uring is told the same.
#[track_caller]
fn falls_back(calls: &[Refused], attempted: &'static str, reason: &'static str) {
    where_refused(calls, move || {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = dir.path().to_owned();
        let path = within_patience(move || open(&place, EngineChoice::Auto)).unwrap();
        let facts = path.capabilities();
        assert_eq!(facts.engine, EngineKind::Threads);
        assert!(facts.engine_why.starts_with(attempted), "{}", facts.engine_why);
        assert!(facts.engine_why.contains(reason), "{}", facts.engine_why);
        drop(path);
        let builder = Store::builder().host_budget(8 << 20).chunk_bytes(3 << 20);
        let store = builder.path(Path::new(dir.path())).open().unwrap();
        exercise(&store);
        assert!(store.explain().to_string().contains(reason));
        store.close(PATIENCE).unwrap();
        let refused = open(dir.path(), EngineChoice::Uring).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
        assert!(refused.contains("choose the engine auto or threads"), "{refused}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    });
}

#[test]
fn a_ring_that_is_forbidden_is_done_without() {
    for (errno, reason) in [
        (libc::EPERM, "seccomp filter or io_uring_disabled"),
        (libc::ENOSYS, "no io_uring"),
        (libc::ENOMEM, "locked-memory limit (ulimit -l) or memory is too small"),
        (libc::EMFILE, "ulimit -n"),
    ] {
        falls_back(&[refused(libc::SYS_io_uring_setup, errno)], "io_uring_setup: ", reason);
    }
}

#[test]
fn a_ring_whose_memory_cannot_be_mapped_is_done_without() {
    let shared = (libc::MAP_SHARED | libc::MAP_POPULATE) as u64;
    let mapped = refused(libc::SYS_mmap, libc::ENOMEM).when(3, u64::from(u32::MAX), shared);
    falls_back(&[mapped], "io_uring_setup: ", "memory is too small");
}

#[test]
fn a_ring_that_may_not_be_entered_is_done_without() {
    for (errno, reason) in
        [(libc::EPERM, "seccomp filter"), (libc::ENOSYS, "no io_uring"), (libc::ENOMEM, "memory")]
    {
        falls_back(&[refused(libc::SYS_io_uring_enter, errno)], "io_uring_enter: ", reason);
    }
}

#[test]
fn a_ring_that_cannot_be_woken_is_done_without() {
    falls_back(&[refused(libc::SYS_eventfd2, libc::EMFILE)], "eventfd: ", "ulimit -n");
}
