//! File systems and kernels that lack something: the store works without it, or refuses at open and
//! names what is missing, with either engine; it leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::collections::BTreeMap;

use common::refused::{Refused, refused, where_refused};
use common::{PATIENCE, contents, exercise, read};
use tensortier_storage::dtype::DType;
use tensortier_storage::error::Error;
use tensortier_storage::io::EngineChoice;
use tensortier_storage::path::{Capabilities, Path};
use tensortier_storage::source::{Access, TensorFile, TensorFileWriter, TensorSpec};
use tensortier_storage::store::Store;

const ENGINES: [EngineChoice; 2] = [EngineChoice::Auto, EngineChoice::Threads];

fn no_direct() -> Refused {
    let direct = libc::O_DIRECT as u64;
    refused(libc::SYS_openat, libc::EINVAL).when(2, direct, direct)
}

fn no_fallocate() -> Refused {
    refused(libc::SYS_fallocate, libc::EOPNOTSUPP)
}

fn no_locks() -> Refused {
    refused(libc::SYS_flock, libc::ENOLCK)
}

/// Opens a store where `calls` are refused.
fn open(dir: &std::path::Path, engine: EngineChoice) -> Result<Store, Error> {
    let builder = Store::builder().host_budget(8 << 20).chunk_bytes((3 << 20) - 7);
    builder.engine(engine).path(Path::new(dir)).open()
}

/// The store works without `calls`, and what it found is as `expected`.
#[track_caller]
fn works_without(calls: &[Refused], expected: fn(&Capabilities) -> bool) {
    for engine in ENGINES {
        where_refused(calls, move || {
            let dir = tempfile::tempdir_in("/var/tmp").unwrap();
            let store = open(dir.path(), engine).unwrap();
            let facts = store.explain().paths[0].capabilities.clone();
            assert!(expected(&facts), "{facts:?}");
            exercise(&store);
            store.close(PATIENCE).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        });
    }
}

/// Nothing can be kept without `calls`: the error names the directory and `what`.
#[track_caller]
fn is_refused_without(calls: &[Refused], what: &'static str) {
    for engine in ENGINES {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = dir.path().to_owned();
        let error = where_refused(calls, move || open(&place, engine).unwrap_err());
        let names = matches!(&error, Error::PathUnusable { path, .. } if path == dir.path());
        assert!(names && error.to_string().contains(what), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn without_direct_transfers() {
    works_without(&[no_direct()], |facts| !facts.direct && facts.direct_why.contains("O_DIRECT"));
}

#[test]
fn without_allocation_ahead() {
    works_without(&[no_fallocate()], |facts| !facts.fallocate);
    works_without(&[refused(libc::SYS_fallocate, libc::ENOSYS)], |facts| !facts.fallocate);
}

#[test]
fn without_locks() {
    for errno in [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS] {
        works_without(&[refused(libc::SYS_flock, errno)], |facts| !facts.locks);
    }
}

#[test]
fn without_word_of_alignments() {
    let asked = refused(libc::SYS_statx, libc::EINVAL).when(3, 0x2000, 0x2000);
    works_without(&[asked], |facts| !facts.direct || facts.direct_why.contains("not reported"));
}

#[test]
fn without_writes_that_sync_or_advice() {
    let calls = [
        no_direct(),
        refused(libc::SYS_pwritev2, libc::EOPNOTSUPP),
        refused(libc::SYS_fadvise64, libc::ENOSYS),
        refused(libc::SYS_madvise, libc::EINVAL),
    ];
    works_without(&calls, |facts| !facts.direct);
}

#[test]
fn without_all_that_network_file_systems_lack() {
    let mapped = refused(libc::SYS_mmap, libc::ENODEV).when(3, u64::MAX, libc::MAP_SHARED as u64);
    let calls = [no_direct(), no_fallocate(), no_locks(), mapped];
    works_without(&calls, |facts| !facts.direct && !facts.fallocate && !facts.locks);
}

#[test]
fn what_nothing_works_without_is_named_at_open() {
    let read_only = libc::EROFS;
    is_refused_without(&[refused(libc::SYS_mkdirat, read_only)], "make a directory");
    let renames = [libc::SYS_renameat, libc::SYS_renameat2].map(|call| refused(call, libc::ENOSYS));
    is_refused_without(&renames, "name the directory");
    is_refused_without(&[refused(libc::SYS_fdatasync, libc::EINVAL)], "fdatasync");
    let lengths = [no_fallocate(), refused(libc::SYS_ftruncate, libc::EOPNOTSUPP)];
    is_refused_without(&lengths, "ftruncate");
    let creating = refused(libc::SYS_openat, libc::EACCES);
    let create = libc::O_CREAT as u64;
    is_refused_without(&[creating.when(2, create, create)], "lock file");
    is_refused_without(&[refused(libc::SYS_pwrite64, libc::ENOSYS)], "write and read a file");
    is_refused_without(&[refused(libc::SYS_fstatfs, libc::ENOSYS)], "inspect the file system");
}

#[test]
fn a_tensor_file_that_cannot_be_mapped_is_read_or_refused_by_name() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("model.safetensors");
    let spec = TensorSpec { name: String::from("t"), dtype: DType::U8, shape: vec![100_000] };
    let mut writer = TensorFileWriter::create(&file, &[spec], &BTreeMap::new()).unwrap();
    writer.write(&contents(3, 100_000)).unwrap();
    writer.finish().unwrap();
    let mapped = refused(libc::SYS_mmap, libc::ENODEV).when(3, u64::MAX, libc::MAP_SHARED as u64);
    where_refused(&[mapped, no_direct()], move || {
        let refused = TensorFile::open(&file, Access::Map).unwrap_err().to_string();
        assert!(refused.contains("model.safetensors") && refused.contains("map"), "{refused}");
        let own = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = open(own.path(), EngineChoice::Auto).unwrap();
        store.adopt(TensorFile::open(&file, Access::Direct).unwrap(), "").unwrap();
        assert!(read(&store, "t").unwrap() == contents(3, 100_000));
        store.close(PATIENCE).unwrap();
    });
}
