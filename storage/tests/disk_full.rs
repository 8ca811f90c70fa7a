//! File systems that run full in the middle of a run, at the allocation or only at the write: the error
//! names the path and what was needed, nothing else is touched, and what is deleted makes room.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::path::Path as FsPath;

use common::apart::{Place, apart};
use common::refused::{refused, where_refused};
use common::{PATIENCE, contents, read};
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::io::EngineChoice;
use tensortier_storage::path::Path;
use tensortier_storage::store::Store;
use tensortier_storage::units::Bytes;

const MIB: u64 = 1 << 20;

fn holds(store: &Store, key: u64, bytes: u64) {
    assert!(read(store, &format!("t{key}")).unwrap() == contents(key, bytes), "t{key}");
}

/// Puts objects of `bytes` until the file system is full; `most` of them are more than it holds.
fn runs_full(dir: &FsPath, engine: EngineChoice, bytes: u64, most: u64) {
    let budget = (most + 1) * (bytes + MIB);
    let builder = Store::builder().host_budget(budget).chunk_bytes(4 * MIB).engine(engine);
    let store = builder.path(Path::new(dir)).open().unwrap();
    let mut kept = 0;
    let error = loop {
        let data = contents(kept, bytes);
        store.put(&format!("t{kept}"), DType::U8, &[bytes], &data).unwrap();
        kept += 1;
        match store.evict(&format!("t{}", kept - 1)) {
            Ok(()) => assert!(kept < most, "it never ran full"),
            Err(error) => break error,
        }
    };
    assert!(kept > 2, "only {kept} objects fit");
    let text = error.to_string();
    let full = matches!(&error, Error::NoSpace { bytes: needed, tried, .. }
        if needed.0 == bytes && tried.len() == 1);
    assert!(full && text.contains(dir.to_str().unwrap()), "{text}");
    assert!(text.contains("No space left") && text.contains(&Bytes(bytes).to_string()), "{text}");
    (0..kept).for_each(|i| holds(&store, i, bytes));

    // What is full stays full, for everybody, and is said at once each time.
    for _ in 0..2 {
        assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    }
    for round in 0..3 {
        store.delete(&format!("t{round}")).unwrap();
        store.evict(&format!("t{}", kept - 1)).unwrap();
        holds(&store, kept - 1, bytes);
        let data = contents(kept, bytes);
        store.put(&format!("t{kept}"), DType::U8, &[bytes], &data).unwrap();
        kept += 1;
        assert_eq!(store.evict(&format!("t{}", kept - 1)).unwrap_err().kind(), ErrorKind::NoSpace);
        (round + 1..kept).for_each(|i| holds(&store, i, bytes));
    }
    store.close(PATIENCE).unwrap();
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

/// On a file system where space is allocated ahead, and where it is not.
fn runs_full_both_ways(dir: &FsPath, bytes: u64, most: u64) {
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        runs_full(dir, engine, bytes, most);
        let sparse = refused(libc::SYS_fallocate, libc::EOPNOTSUPP);
        let place = dir.to_owned();
        where_refused(&[sparse], move || runs_full(&place, engine, bytes, most));
    }
}

#[test]
fn a_file_system_of_4_mib_in_memory() {
    let place = Place::Mount("mount -t tmpfs -o size=4m tmpfs $D");
    apart("a_file_system_of_4_mib_in_memory", place, |dir| {
        runs_full_both_ways(dir, 700_000, 8);
    });
}

#[test]
fn a_drive_of_64_mib_under_direct_transfers() {
    let name = "a_drive_of_64_mib_under_direct_transfers";
    apart(name, Place::Loop { mib: 64, sector: 512 }, |dir| {
        let store = Store::builder().path(Path::new(dir)).open().unwrap();
        assert!(store.explain().paths[0].capabilities.direct);
        store.close(PATIENCE).unwrap();
        runs_full_both_ways(dir, 3 * MIB, 24);
    });
}

#[test]
fn where_files_may_not_be_long_there_are_more_of_them() {
    // 8 MiB in blocks of 512 bytes; a signal would otherwise end the process.
    let place = Place::Shell("trap '' XFSZ && ulimit -f 16384");
    apart("where_files_may_not_be_long_there_are_more_of_them", place, |dir| {
        let sparse = refused(libc::SYS_fallocate, libc::EOPNOTSUPP);
        for calls in [&[][..], &[sparse]] {
            let dir = dir.to_owned();
            where_refused(calls, move || {
                let builder = Store::builder().host_budget(40 * MIB).chunk_bytes(16 * MIB);
                let store = builder.path(Path::new(&dir)).open().unwrap();
                for i in 0..8 {
                    let data = contents(i, 3 * MIB);
                    store.put(&format!("t{i}"), DType::U8, &[3 * MIB], &data).unwrap();
                    store.evict(&format!("t{i}")).unwrap();
                }
                (0..8).for_each(|i| holds(&store, i, 3 * MIB));
                store.put("long", DType::U8, &[9 * MIB], &contents(9, 9 * MIB)).unwrap();
                let error = store.evict("long").unwrap_err();
                assert!(error.to_string().contains("File too large"), "{error}");
                assert!(read(&store, "long").unwrap() == contents(9, 9 * MIB));
                (0..8).for_each(|i| holds(&store, i, 3 * MIB));
                store.close(PATIENCE).unwrap();
            });
        }
    });
}
