//! What must hold when a round ends: everything readable, then nothing left.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tensortier_storage::error::Error;
use tensortier_storage::store::Store;

use super::content::Content;
use super::held::same;
use super::worker::{Common, PATIENCE};

/// Waits until `holds` says nothing any more.
///
/// # Errors
/// What it still says after a while.
pub(super) fn eventually(mut holds: impl FnMut() -> Option<String>) -> Result<(), String> {
    let begin = Instant::now();
    while let Some(what) = holds() {
        if begin.elapsed() > PATIENCE {
            return Err(what);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Does it until what went wrong on the paths just before has passed.
fn soon(what: &str, mut call: impl FnMut() -> Result<(), Error>) -> Result<(), String> {
    eventually(|| {
        let error = call().err()?;
        // Wrong bytes and lost objects do not pass: they must be told apart from what does.
        Some(format!("{what}: {error}"))
    })
}

/// Reads every object whole; the paths must be healed before.
///
/// # Errors
/// What cannot be read, or differs.
pub(super) fn all_readable(
    common: &Common,
    models: &mut [BTreeMap<String, Content>],
) -> Result<(), String> {
    soon("flushing on healed paths", || common.store.flush())?;
    for (key, bytes) in &common.shared {
        let mut into = vec![0x5A; bytes.len()];
        soon(&format!("reading {key} at the end"), || common.store.get_into(key, &mut into))?;
        same(&into, bytes).map_err(|differs| format!("{key} at the end: {differs}"))?;
    }
    for (key, content) in models.iter_mut().flatten() {
        let (mut into, mut dropped) = (vec![0x5A; content.len()], false);
        soon(&format!("reading {key} at the end"), || {
            match common.store.get_into(key, &mut into) {
                Err(Error::Dropped { .. }) if content.is_reproducible() => {
                    dropped = true;
                    Ok(())
                }
                other => other,
            }
        })?;
        if !dropped {
            content.check(0, &into).map_err(|differs| format!("{key} at the end: {differs}"))?;
        }
    }
    Ok(())
}

/// Deletes everything and waits until neither memory nor space is taken.
///
/// # Errors
/// What stays.
pub(super) fn nothing_stays(common: &Common) -> Result<(), String> {
    let store = &common.store;
    for key in store.list("") {
        store.delete(&key.to_string()).map_err(|error| format!("deleting {key}: {error}"))?;
    }
    store.barrier().map_err(|error| format!("barrier: {error}"))?;
    eventually(|| {
        let stats = store.stats();
        let used: Vec<u64> = stats.paths.iter().map(|path| path.used_bytes).collect();
        let taken = in_use(store) + stats.quarantined_bytes;
        let left = taken > 0 || used.iter().any(|bytes| *bytes > 0);
        left.then(|| format!("after deleting all: {stats:?}, extents of {used:?} bytes"))
    })
}

/// Returns how much of the host budget is taken, in bytes.
pub(super) fn in_use(store: &Store) -> u64 {
    let stats = store.stats();
    stats.host.in_use + stats.packing.map_or(0, |packing| packing.in_use)
}
