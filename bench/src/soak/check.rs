//! What must hold when a round ends: everything readable, then nothing left.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tensortier_storage::error::{Error, ErrorKind};

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

/// Waits until the store rests, so that what comes next does not depend on timing.
pub(super) fn settle(common: &Common) {
    let look = || {
        let _ = common.store.barrier();
        let outstanding: u64 = common
            .places
            .active()
            .iter()
            .map(|(_, place)| place.store.outstanding())
            .map(|outstanding| outstanding.read_bytes + outstanding.write_bytes)
            .sum();
        (common.store.stats(), outstanding)
    };
    let (mut last, mut same) = (look(), 0);
    while same < 8 {
        std::thread::sleep(Duration::from_micros(100));
        let now = look();
        same = if now == last && now.1 == 0 { same + 1 } else { 0 };
        last = now;
    }
}

/// Reads every object whole; the paths must be healed before.
///
/// # Errors
/// What cannot be read, or differs.
pub(super) fn all_readable(
    common: &Common,
    models: &[BTreeMap<String, Vec<u8>>],
) -> Result<(), String> {
    soon("flushing on healed paths", || common.store.flush())?;
    let own = models.iter().flatten().map(|(key, bytes)| (key, &bytes[..]));
    let shared = common.shared.iter().map(|(key, bytes)| (key, &bytes[..]));
    for (key, expect) in own.chain(shared) {
        let mut into = vec![0x5A; expect.len()];
        soon(&format!("reading {key} at the end"), || {
            match common.store.get_into(key, &mut into) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    into.clear();
                    Ok(())
                }
                other => other,
            }
        })?;
        same(&into, expect).map_err(|differs| format!("{key} at the end: {differs}"))?;
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
        let host = store.stats().host;
        let used: Vec<u64> = store.stats().paths.iter().map(|path| path.used_bytes).collect();
        let left = host.in_use > 0 || used.iter().any(|bytes| *bytes > 0);
        left.then(|| format!("after deleting all: {host:?}, extents of {used:?} bytes"))
    })
}
