//! The store of a run: its paths as the command line names them, and what earlier runs left there.

use std::path::PathBuf;

use tensortier::optimizer::Plan;
use tensortier::storage::io::EngineChoice;
use tensortier::storage::path::{Kind, Path, leftovers};
use tensortier::storage::store::{Placement, Store};
use tensortier::storage::units::Bytes;

use crate::Failure;
use crate::args::{AdamArgs, DEFAULT_DIR, EngineArg, PathArg, PathKind, PlacementArg};

/// Returns the paths of a run; without any, one under the default directory.
pub(super) fn paths(args: &AdamArgs) -> Vec<Path> {
    if args.paths.is_empty() {
        return vec![Path::new(DEFAULT_DIR)];
    }
    let one = |arg: &PathArg| Path {
        kind: match arg.kind {
            PathKind::Nvme => Kind::Nvme,
            PathKind::Remote => Kind::Remote,
        },
        read_cap: arg.read,
        write_cap: arg.write,
        quota: arg.quota,
        deadline: arg.deadline,
        max_processes: arg.processes,
        ..Path::new(&arg.dir)
    };
    args.paths.iter().map(one).collect()
}

/// Refuses quotas that cannot hold what memory does not, before the run rather than in its middle.
pub(super) fn check_quotas(paths: &[Path], plan: &Plan) -> Result<(), Failure> {
    let Some(quota) = paths.iter().map(|path| path.quota.map(|q| q.0)).sum::<Option<u64>>() else {
        return Ok(());
    };
    let outside = plan.state_bytes().saturating_sub(plan.host_bytes);
    if quota >= outside {
        return Ok(());
    }
    let all = if paths.len() == 1 { "quota of the path is" } else { "quotas of all paths are" };
    // What memory holds is written to new places before its old ones are free.
    let moving = plan.host_bytes.min(plan.state_bytes()) + plan.reserve_bytes;
    let enough_mib = (plan.state_bytes() + moving).div_ceil(1 << 20);
    Err(format!(
        "--path: the {all} {}, but at least {} of state do not fit into the host memory; {enough_mib} MiB \
         in all are enough (quota=), or add a path, or raise --host-memory",
        Bytes(quota),
        Bytes(outside)
    )
    .into())
}

/// Opens the store.
pub(super) fn open(args: &AdamArgs, paths: &[Path]) -> Result<Store, Failure> {
    let engine = match args.engine {
        EngineArg::Auto => EngineChoice::Auto,
        EngineArg::Uring => EngineChoice::Uring,
        EngineArg::Threads => EngineChoice::Threads,
    };
    let placement = match args.placement {
        PlacementArg::Whole => Placement::Whole,
        PlacementArg::Stripe => Placement::Stripe,
    };
    let builder = Store::builder().host_budget(args.host_memory.0).engine(engine);
    let builder = builder.placement(placement);
    Ok(paths.iter().fold(builder, |builder, path| builder.path(path.clone())).open()?)
}

/// Returns a warning for each directory in which runs that ended badly left their state.
pub(super) fn left_behind(paths: &[Path]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut dirs: Vec<&PathBuf> = paths.iter().map(|path| &path.dir).collect();
    dirs.dedup();
    for dir in dirs {
        // A directory that cannot be listed fails when it is opened, with a better message.
        let left: Vec<_> =
            leftovers(dir).unwrap_or_default().into_iter().filter(|l| !l.alive).collect();
        if left.is_empty() {
            continue;
        }
        let bytes: u64 = left.iter().map(|leftover| leftover.bytes).sum();
        let runs = if left.len() == 1 { "an earlier run" } else { "earlier runs" };
        let dir = dir.display();
        warnings.push(format!(
            "{runs} left {} in {dir}; look with `tensortier ls {dir}`, remove with `tensortier gc {dir}`",
            Bytes(bytes)
        ));
    }
    warnings
}
