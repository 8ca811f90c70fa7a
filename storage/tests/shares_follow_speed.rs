//! Paths that become slower and faster while objects are written and read: new bytes follow their
//! speeds, and everything stays readable. A path that is missing at open is named.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{PATIENCE, builder, contents, mix, read};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::Error;
use tensortier_storage::path::memory::MemoryPath;
use tensortier_storage::path::{Path, PathStore as _};
use tensortier_storage::store::{Placement, Store};

const CHUNK: u64 = 2 << 20;

/// A round of writes may be on a machine that is busy with something else: shares have to follow in one
/// of so many.
const TRIES: usize = 4;

/// Writes 16 objects of a chunk each and returns what each path got of them.
fn written(store: &Store, paths: &[Arc<MemoryPath>], round: u64) -> Vec<f64> {
    let count = || paths.iter().map(|path| path.counters().written_bytes).collect::<Vec<_>>();
    let before = count();
    for i in 0..16 {
        let data = contents(round * 16 + i, CHUNK);
        store.put(&format!("t{}", round * 16 + i), DType::U8, &[CHUNK], &data).unwrap();
    }
    store.flush().unwrap();
    count().iter().zip(before).map(|(now, before)| (now - before) as f64).collect()
}

/// Ends the reader beside the test, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn new_bytes_follow_the_speeds_and_all_stays_readable_meanwhile() {
    for placement in [Placement::Whole, Placement::Stripe] {
        let path = |i: usize| Arc::new(MemoryPath::new(&format!("path {i}"), 1e9));
        let paths: Vec<_> = (0..3).map(path).collect();
        let store = builder(32 * CHUNK / GRANULE, &paths).chunk_bytes(CHUNK).placement(placement);
        let store = store.open().unwrap();
        let mut round = 0;
        written(&store, &paths, round);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&ends);
            scope.spawn(|| {
                let mut random = 1;
                while !ends.load(Ordering::SeqCst) {
                    random = mix(random);
                    let (key, seed) = (format!("t{}", random % 16), random % 16);
                    assert!(read(&store, &key).unwrap() == contents(seed, CHUNK), "{key}");
                    store.evict(&key).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let speeds = [[1.0, 1.7, 5.0], [10.0, 1.7, 5.0], [1.0, 1.0, 1.0], [0.1, 1.0, 1.0]];
            for speeds in speeds {
                paths.iter().zip(speeds).for_each(|(path, speed)| path.set_speed(speed * 1e8));
                let mut got = Vec::new();
                let follows = (0..TRIES).any(|_| {
                    round += 1;
                    got = written(&store, &paths, round);
                    let (total, sum): (f64, f64) = (got.iter().sum(), speeds.iter().sum());
                    // A chunk for this round and one for what an earlier one left over.
                    let near = |got, due| f64::abs(got - due) <= 2.0 * CHUNK as f64;
                    got.iter().zip(speeds).all(|(got, speed)| near(*got, speed / sum * total))
                });
                assert!(follows, "{placement}: {got:?} at {speeds:?}");
            }
        });
        for i in 0..(round + 1) * 16 {
            assert!(read(&store, &format!("t{i}")).unwrap() == contents(i, CHUNK), "t{i}");
        }
        store.close(PATIENCE).unwrap();
    }
}

#[test]
fn a_path_that_is_missing_at_open_is_named_and_the_others_are_left_as_they_were() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir_in("/var/tmp").unwrap()).collect();
    for missing in 0..3 {
        for placement in [Placement::Whole, Placement::Stripe] {
            let mut builder = Store::builder().placement(placement);
            let gone = dirs[missing].path().join("not mounted");
            for (i, dir) in dirs.iter().enumerate() {
                builder = builder.path(Path::new(if i == missing { &gone } else { dir.path() }));
            }
            let error = builder.open().unwrap_err();
            let named = matches!(&error, Error::PathUnusable { path, source, .. }
                if *path == gone && source.0 == libc::ENOENT);
            assert!(named && error.to_string().contains("not mounted"), "{error}");
            assert!(dirs.iter().all(|dir| std::fs::read_dir(dir.path()).unwrap().count() == 0));
        }
    }
}
