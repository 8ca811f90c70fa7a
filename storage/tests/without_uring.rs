//! A system that forbids io_uring: the path works all the same, and says why it is not used.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::thread;

use seccompiler::{SeccompAction, SeccompFilter, apply_filter};
use tensortier_storage::clock::Clock;
use tensortier_storage::io::{EngineChoice, EngineKind};
use tensortier_storage::path::{FilePathStore, Path, PathStore};

/// Runs `test` on a thread for which, and for whose threads, io_uring fails with `errno`.
fn forbidden(errno: i32, test: impl FnOnce() + Send + 'static) {
    let tested = thread::spawn(move || {
        let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let refuse = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
        let program: seccompiler::BpfProgram = filter.try_into().unwrap();
        apply_filter(&program).unwrap();
        test();
    });
    tested.join().unwrap();
}

fn open(
    dir: &std::path::Path,
    engine: EngineChoice,
) -> tensortier_storage::error::Result<FilePathStore> {
    FilePathStore::open(&Path::new(dir), engine, Clock::system())
}

#[test]
fn auto_falls_back_with_the_reason_and_asking_for_it_is_an_error() {
    for (errno, reason) in
        [(libc::EPERM, "seccomp filter or io_uring_disabled"), (libc::ENOSYS, "no io_uring")]
    {
        forbidden(errno, move || {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path(), EngineChoice::Auto).unwrap();
            let facts = store.capabilities();
            assert_eq!(facts.engine, EngineKind::Threads);
            assert!(facts.engine_why.starts_with("io_uring_setup: "), "{}", facts.engine_why);
            assert!(facts.engine_why.contains(reason), "{}", facts.engine_why);
            drop(store);
            let refused = open(dir.path(), EngineChoice::Uring).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
            assert!(refused.contains("choose the engine auto or threads"), "{refused}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        });
    }
}
