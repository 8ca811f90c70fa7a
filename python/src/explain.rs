//! A store's explanation and counters as dictionaries.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tensortier::storage::arena::ArenaUse;
use tensortier::storage::path::{Condition, PathCounters};
use tensortier::storage::store::{Explanation, PathExplanation, Stats};

/// Returns what was chosen for a store and its paths, and why.
pub(crate) fn explanation<'py>(
    py: Python<'py>,
    explained: &Explanation,
) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    known.set_item("host_memory", explained.host_budget)?;
    known.set_item("committed_bytes", explained.committed_bytes)?;
    known.set_item("locked_bytes", explained.locked_bytes)?;
    known.set_item("unlocked", explained.unlocked.as_ref().map(ToString::to_string))?;
    known.set_item("placement", explained.placement.to_string())?;
    known.set_item("checksums", explained.checksums)?;
    known.set_item("compression", explained.compression.to_string())?;
    known.set_item("packing_memory", explained.packing_bytes)?;
    let paths: PyResult<Vec<_>> = explained.paths.iter().map(|of| path(py, of)).collect();
    known.set_item("paths", PyList::new(py, paths?)?)?;
    known.set_item("notes", &explained.notes)?;
    Ok(known)
}

fn path<'py>(py: Python<'py>, explained: &PathExplanation) -> PyResult<Bound<'py, PyDict>> {
    let is = &explained.capabilities;
    let known = PyDict::new(py);
    known.set_item("dir", is.dir.as_os_str())?;
    known.set_item("scratch", is.scratch.as_os_str())?;
    known.set_item("kind", is.kind.to_string())?;
    known.set_item("file_system", &is.file_system)?;
    known.set_item("device", is.device)?;
    known.set_item("engine", is.engine.to_string())?;
    known.set_item("engine_why", &is.engine_why)?;
    known.set_item("direct", is.direct)?;
    known.set_item("direct_why", &is.direct_why)?;
    known.set_item("align", is.align)?;
    known.set_item("fallocate", is.fallocate)?;
    known.set_item("locks", is.locks)?;
    known.set_item("max_processes", is.max_processes)?;
    known.set_item("max_processes_why", &is.max_processes_why)?;
    known.set_item("read_bytes_per_second", explained.profile.read_bps)?;
    known.set_item("write_bytes_per_second", explained.profile.write_bps)?;
    known.set_item("sharing", explained.profile.sharing)?;
    known.set_item("share", explained.share)?;
    known.set_item("condition", condition(explained.condition))?;
    Ok(known)
}

fn condition(condition: Condition) -> &'static str {
    match condition {
        Condition::Good => "good",
        Condition::Hung { .. } => "hung",
        Condition::Probation => "probation",
        _ => "unknown",
    }
}

/// Returns what a store has done and holds.
pub(crate) fn stats<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    for (name, value) in stats.counters.named() {
        known.set_item(name, value)?;
    }
    known.set_item("quarantined_bytes", stats.quarantined_bytes)?;
    known.set_item("host", arena(py, &stats.host)?)?;
    if let Some(packing) = &stats.packing {
        known.set_item("packing", arena(py, packing)?)?;
    }
    let paths: PyResult<Vec<_>> =
        stats.paths.iter().map(|counters| path_stats(py, counters)).collect();
    known.set_item("paths", PyList::new(py, paths?)?)?;
    Ok(known)
}

fn arena<'py>(py: Python<'py>, arena: &ArenaUse) -> PyResult<Bound<'py, PyDict>> {
    numbers(
        py,
        &[
            ("budget", arena.budget),
            ("committed", arena.committed),
            ("locked", arena.locked),
            ("in_use", arena.in_use),
            ("largest_run", arena.largest_run),
            ("metadata", arena.metadata),
            ("charged", arena.charged),
        ],
    )
}

fn path_stats<'py>(py: Python<'py>, path: &PathCounters) -> PyResult<Bound<'py, PyDict>> {
    let known = numbers(
        py,
        &[
            ("read_bytes", path.read_bytes),
            ("written_bytes", path.written_bytes),
            ("reads", path.reads),
            ("writes", path.writes),
            ("space_bytes", path.space_bytes),
            ("used_bytes", path.used_bytes),
            ("hung_operations", path.hung_operations),
            ("hung_bytes", path.hung_bytes),
        ],
    )?;
    known.set_item("waited_for_processes", path.waited_for_processes.as_secs_f64())?;
    Ok(known)
}

fn numbers<'py>(py: Python<'py>, values: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    values.iter().try_for_each(|(name, value)| known.set_item(name, value))?;
    Ok(known)
}
