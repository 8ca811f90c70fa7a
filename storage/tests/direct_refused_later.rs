//! Direct transfers that a path accepts at open and refuses later: this path, and only it, goes on
//! through the page cache, says why, and no byte is lost. And what direct transfers need is kept.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::Duration;

use common::apart::{Place, apart};
use common::{PATIENCE, exercise};
use rustix::fs::{OFlags, fcntl_getfl};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::clock::Clock;
use tensortier_storage::error::Errno;
use tensortier_storage::io::decorate::{Fault, Faulty};
use tensortier_storage::io::{EngineChoice, IoEngine, Operation, Transfer};
use tensortier_storage::path::{FilePathStore, Path, PathStore};
use tensortier_storage::store::Store;
use tensortier_storage::units::BytesPerSecond;

const MIB: u64 = 1 << 20;

/// A path in `dir` whose engine does to its operations what `decide` says. Capped, so that no trial
/// runs and the first operation is the test's own.
fn path(
    dir: &FsPath,
    engine: EngineChoice,
    decide: impl Fn(u64, &Operation) -> Fault + Send + Sync + 'static,
) -> Arc<FilePathStore> {
    let cap = BytesPerSecond(100e9);
    let options = Path::new(dir).read_cap(cap).write_cap(cap);
    let wrap = |inner| Arc::new(Faulty::new(inner, decide)) as Arc<dyn IoEngine>;
    Arc::new(FilePathStore::open_decorated(&options, engine, Clock::system(), wrap).unwrap())
}

fn is_direct(operation: &Operation) -> bool {
    fcntl_getfl(&*operation.file).unwrap().contains(OFlags::DIRECT)
}

fn directory() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let direct = path(dir.path(), EngineChoice::Threads, |_, _| Fault::Pass).capabilities().direct;
    if !direct {
        eprintln!("skipped, /var/tmp takes no direct transfers");
    }
    direct.then_some(dir)
}

#[test]
fn only_the_path_that_refuses_goes_through_the_cache_and_says_why() {
    let Some(dir) = directory() else { return };
    let refusals = [
        (libc::EINVAL, EngineChoice::Auto, true, true),
        (libc::EINVAL, EngineChoice::Threads, true, false),
        (libc::EINVAL, EngineChoice::Auto, false, true),
        (libc::EOPNOTSUPP, EngineChoice::Threads, true, true),
    ];
    for (errno, engine, writes, reads) in refusals {
        let refusing = path(dir.path(), engine, move |_, operation| {
            let concerned = if operation.transfer.is_write() { writes } else { reads };
            let fails = concerned && is_direct(operation);
            if fails { Fault::Fail(Errno(errno)) } else { Fault::Pass }
        });
        let other = path(dir.path(), engine, |_, _| Fault::Pass);
        let before = refusing.capabilities().clone();
        assert!(before.direct);
        let builder = Store::builder().host_budget(8 * MIB).chunk_bytes(3 * MIB);
        let builder = builder.path_store(Arc::clone(&refusing) as Arc<dyn PathStore>);
        let store = builder.path_store(other).open().unwrap();
        exercise(&store);
        let explained = store.explain();
        let facts = &explained.paths[0].capabilities;
        assert!(!facts.direct && facts.direct_why.contains("refused later"), "{facts:?}");
        assert!(facts.direct_why.contains(&Errno(errno).to_string()), "{}", facts.direct_why);
        assert!(explained.to_string().contains("transfers: buffered (O_DIRECT opens, but"));
        assert!(explained.paths[1].capabilities.direct, "the other path is left as it is");
        assert_eq!(store.stats().counters.replaced, 0, "nobody noticed");
        assert_eq!(store.stats().counters.retried, 0);
        store.close(PATIENCE).unwrap();
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn at_any_moment() {
    let Some(dir) = directory() else { return };
    for first in (0..24).step_by(5) {
        let refusing = path(dir.path(), EngineChoice::Auto, move |index, operation| {
            let fails = index >= first && is_direct(operation);
            if fails { Fault::Fail(Errno(libc::EINVAL)) } else { Fault::Pass }
        });
        let builder = Store::builder().host_budget(8 * MIB).chunk_bytes(3 * MIB);
        let builder = builder.path_store(Arc::clone(&refusing) as Arc<dyn PathStore>);
        let store = builder.open().unwrap();
        exercise(&store);
        assert!(!refusing.capabilities().direct);
        assert_eq!((refusing.counters().used_bytes, store.stats().host.in_use), (0, 0));
        store.close(PATIENCE).unwrap();
    }
}

/// Fails what a device of these alignments would refuse.
fn strict(operation: &Operation, read_align: u64, write_align: u64) -> Fault {
    let (address, bytes, align) = match &operation.transfer {
        Transfer::Read(into) => (into.as_ptr(), into.len(), read_align),
        Transfer::Write(from) => (from.as_ptr(), from.len(), write_align),
    };
    let aligned = |n: u64| n.is_multiple_of(align);
    let fits = aligned(address.addr() as u64) && aligned(bytes as u64) && aligned(operation.offset);
    if fits { Fault::Pass } else { Fault::Fail(Errno(libc::EINVAL)) }
}

#[test]
fn alignments_that_differ_between_reads_and_writes_are_both_kept() {
    let Some(dir) = directory() else { return };
    for (read_align, write_align) in [(512, GRANULE), (GRANULE, 512), (GRANULE, GRANULE)] {
        let path = path(dir.path(), EngineChoice::Auto, move |_, operation| {
            strict(operation, read_align, write_align)
        });
        let builder = Store::builder().host_budget(8 * MIB).chunk_bytes(3 * MIB - 5);
        let store = builder.path_store(Arc::clone(&path) as Arc<dyn PathStore>).open().unwrap();
        exercise(&store);
        assert!(path.capabilities().direct, "no transfer was ever refused");
        store.close(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn a_drive_with_sectors_of_4096_bytes_is_used_directly() {
    let name = "a_drive_with_sectors_of_4096_bytes_is_used_directly";
    apart(name, Place::Loop { mib: 256, sector: 4096 }, |dir| {
        for engine in [EngineChoice::Auto, EngineChoice::Threads] {
            let builder = Store::builder().host_budget(8 * MIB).chunk_bytes(3 * MIB - 5);
            let store = builder.engine(engine).path(Path::new(dir)).open().unwrap();
            let facts = store.explain().paths[0].capabilities.clone();
            assert!(facts.direct && facts.align == 4096, "{facts:?}");
            exercise(&store);
            assert!(store.explain().paths[0].capabilities.direct);
            store.close(PATIENCE).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    });
}
