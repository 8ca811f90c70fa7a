//! Kernels that move some bytes of each call, at random: every object comes back whole, with either
//! engine, direct and through the page cache.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::refused::{refused, where_refused};
use common::{PATIENCE, exercise, mix};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::clock::Clock;
use tensortier_storage::io::{EngineChoice, IoEngine, KernelHook, Threads, Uring};
use tensortier_storage::path::{FilePathStore, Path, PathStore};
use tensortier_storage::store::Store;

/// Moves 1 to n - 1 of n bytes; all of the last granule every other time, without which a direct
/// transfer would never end.
fn short(seed: u64, calls: &Arc<AtomicU64>) -> KernelHook {
    let calls = Arc::clone(calls);
    Arc::new(move |wanted| {
        let random = mix(seed ^ calls.fetch_add(1, Ordering::SeqCst));
        let whole = wanted == 1 || (wanted == GRANULE && random >> 63 == 0);
        Ok(if whole { wanted } else { 1 + random % (wanted - 1) })
    })
}

fn objects_come_back(direct: bool) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for seed in 0..common::rounds(2) {
        for uring in [false, true] {
            let calls = Arc::default();
            let hook = short(seed, &calls);
            let engine: Arc<dyn IoEngine> = if uring {
                match Uring::start_hooked(hook) {
                    Ok(ring) => Arc::new(ring),
                    Err(error) => {
                        eprintln!("skipped with io_uring: {error}");
                        continue;
                    }
                }
            } else {
                Arc::new(Threads::start_hooked(4, hook).unwrap())
            };
            let (options, clock) = (Path::new(dir.path()), Clock::system());
            let choice = EngineChoice::Threads;
            let path = FilePathStore::open_decorated(&options, choice, clock, |_| engine).unwrap();
            if path.capabilities().direct != direct {
                eprintln!("skipped: {}", path.capabilities().direct_why);
                continue;
            }
            let path: Arc<dyn PathStore> = Arc::new(path);
            let builder = Store::builder().host_budget(8 << 20).chunk_bytes((3 << 20) - 1);
            let store = builder.path_store(Arc::clone(&path)).open().unwrap();
            let before = calls.load(Ordering::SeqCst);
            exercise(&store);
            let counters = path.counters();
            let transfers = (counters.read_bytes + counters.written_bytes) >> 20;
            assert!(calls.load(Ordering::SeqCst) - before > 3 * transfers, "calls were short");
            let counted = store.stats().counters;
            assert_eq!((counted.retried, counted.replaced), (0, 0), "nobody noticed");
            store.close(PATIENCE).unwrap();
        }
    }
}

#[test]
fn direct() {
    objects_come_back(true);
}

#[test]
fn through_the_page_cache() {
    let direct = libc::O_DIRECT as u64;
    let calls = [refused(libc::SYS_openat, libc::EINVAL).when(2, direct, direct)];
    where_refused(&calls, || objects_come_back(false));
}
