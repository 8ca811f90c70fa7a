//! Opening a path in a directory: its options checked, what the directory can do, its first speed, and
//! its turn among processes.

use std::sync::{Arc, OnceLock};

use super::admission::Limits;
use super::file::Scratch;
use super::lock::ScratchDir;
use super::pump::Pump;
use super::request::TRANSFER_BYTES;
use super::seed::{Rig, seed};
use super::segment::{Making, Segments};
use super::token::{Limit, Seat};
use super::{Capabilities, FilePathStore, Kind, MaxProcesses, Path};
use crate::arena::GRANULE;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::io::{EngineChoice, IoEngine, Threads, probe};
use crate::sync::Mutex;

/// A disk that says it rotates is believed if it is slower than this: virtual disks often say so.
const ROTATING_BPS: f64 = 300e6;

impl FilePathStore {
    /// Makes a directory of its own in the path's, finds out what it can do, and starts an engine.
    /// Unless both rates are capped, writes and reads a few MiB to see how fast it is (some 100 ms).
    ///
    /// # Errors
    /// [`Error::PathUnusable`] when the directory is missing, not writable or full, [`Error::Config`]
    /// when the engine asked for is not available, [`Error::System`] without threads or memory.
    /// Nothing is left behind then.
    pub fn open(options: &Path, engine: EngineChoice, clock: Clock) -> Result<Self> {
        Self::open_beside(options, engine, clock, [])
    }

    /// As [`FilePathStore::open`], for a store whose other paths are on the devices `others`: on one
    /// device each is taken to have an equal part of it, until its own speed is known.
    ///
    /// # Errors
    /// As [`FilePathStore::open`].
    pub(crate) fn open_beside(
        options: &Path,
        engine: EngineChoice,
        clock: Clock,
        others: impl IntoIterator<Item = u64>,
    ) -> Result<Self> {
        Self::open_with(options, engine, clock, others, |engine| engine)
    }

    /// As [`FilePathStore::open`], with the engine that `decorate` makes of the one chosen.
    ///
    /// # Errors
    /// As [`FilePathStore::open`].
    #[cfg(any(test, feature = "testing"))]
    pub fn open_decorated(
        options: &Path,
        engine: EngineChoice,
        clock: Clock,
        decorate: impl FnOnce(Arc<dyn IoEngine>) -> Arc<dyn IoEngine>,
    ) -> Result<Self> {
        Self::open_with(options, engine, clock, [], decorate)
    }

    fn open_with(
        options: &Path,
        choice: EngineChoice,
        clock: Clock,
        others: impl IntoIterator<Item = u64>,
        decorate: impl FnOnce(Arc<dyn IoEngine>) -> Arc<dyn IoEngine>,
    ) -> Result<Self> {
        validate(options)?;
        let scratch = ScratchDir::create(&options.dir)?;
        let (found, ring) = probe::negotiate_in(scratch.fd(), &options.dir, choice)?;
        let limits = Limits::new(options.kind, options.read_cap, options.write_cap);
        let workers = limits.in_flight_bytes.iter().sum::<u64>() / TRANSFER_BYTES;
        let engine: Arc<dyn IoEngine> = match ring {
            Some(ring) => Arc::new(ring),
            None => Arc::new(Threads::start(workers as usize)?),
        };
        let engine = decorate(engine);
        let quota = options.quota.map_or(u64::MAX, |quota| quota.0);
        let (direct, fallocate) = (found.direct, found.fallocate);
        let segments = Arc::new(Segments::new(Making { direct, fallocate, quota }));
        let dir = scratch.fd();
        let sharers = 1 + others.into_iter().filter(|other| *other == found.device).count();
        let profile = seed(&Rig { engine: &*engine, segments: &segments, dir }, options, sharers);
        // What others on the device have of it is part of its speed, and a cap says nothing of it.
        let capped = options.read_cap.or(options.write_cap).is_some();
        let seen_bps = profile.read_bps.max(profile.write_bps) * sharers as f64;
        let device_bps = if capped { f64::INFINITY } else { seen_bps };
        let turns = Turns::of(options, (found.device, device_bps), &clock);
        let deadline = options.deadline.unwrap_or(options.kind.deadline());
        let pump = Pump::start(
            engine,
            clock,
            Arc::clone(&segments),
            (limits, deadline),
            profile,
            turns.seat,
        )?;
        let dir = dir.try_clone_to_owned().map_err(|error| {
            probe::unusable(&options.dir, "keep the directory open", error.into())
        })?;
        let turns = (turns.most, turns.why);
        let capabilities = capabilities(options, &scratch, found, &limits, turns);
        let scratch = Mutex::new(Scratch::Open(scratch));
        let without_direct = OnceLock::new();
        Ok(FilePathStore { capabilities, without_direct, pump, segments, scratch, dir })
    }
}

/// Whether processes take turns at a path's device.
struct Turns {
    seat: Option<Seat>,
    /// How many have their turn at one time, to start with; any number if `None`.
    most: Option<u32>,
    why: String,
}

impl Turns {
    fn of(options: &Path, (device, device_bps): (u64, f64), clock: &Clock) -> Self {
        let any = |why: &str| Turns { seat: None, most: None, why: why.to_owned() };
        let rotates = || device_bps < ROTATING_BPS && says_it_rotates(device);
        let (limit, why) = match options.max_processes {
            MaxProcesses::Any => return any("as asked for"),
            // Other processes have no part in a time that a test sets.
            _ if !clock.is_system() => return any("on a test's own clock"),
            MaxProcesses::AtMost(processes) => (Limit::AtMost(processes.get()), "as asked for"),
            MaxProcesses::Auto if options.kind == Kind::Remote => {
                (Limit::Adapt, "remote: one to start with, then as many as pay")
            }
            MaxProcesses::Auto if rotates() => {
                (Limit::Adapt, "the disk rotates: one to start with, then as many as pay")
            }
            MaxProcesses::Auto => return any("a fast local drive"),
        };
        match Seat::on_device(device, limit) {
            Ok(seat) => {
                let most = Some(match limit {
                    Limit::AtMost(processes) => processes,
                    Limit::Adapt => 1,
                });
                Turns { seat: Some(seat), most, why: why.to_owned() }
            }
            Err(errno) => any(&format!("processes cannot take turns here: {errno}")),
        }
    }
}

/// Returns whether the kernel believes that a block device, or the one that it is a part of, rotates.
fn says_it_rotates(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let says = |place: &str| {
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{place}/rotational")).ok()
    };
    says("queue").or_else(|| says("../queue")).is_some_and(|text| text.trim() == "1")
}

fn validate(options: &Path) -> Result<()> {
    for (what, cap) in [("read cap", options.read_cap), ("write cap", options.write_cap)] {
        if cap.is_some_and(|cap| !cap.0.is_finite() || cap.0 < GRANULE as f64) {
            return Err(Error::Config {
                what: format!("{what} of path {}", options.dir.display()),
                why: String::from("at least 4096 B/s are needed; leave it out for no cap"),
            });
        }
    }
    if options.quota.is_some_and(|quota| quota.0 < GRANULE) {
        return Err(Error::Config {
            what: format!("quota of path {}", options.dir.display()),
            why: String::from("at least 4 KiB are needed; leave it out for no quota"),
        });
    }
    if options.deadline.is_some_and(|deadline| deadline.is_zero()) {
        return Err(Error::Config {
            what: format!("deadline of path {}", options.dir.display()),
            why: String::from("every path needs some time; leave it out for that of its kind"),
        });
    }
    Ok(())
}

fn capabilities(
    options: &Path,
    scratch: &ScratchDir,
    found: probe::Negotiated,
    limits: &Limits,
    (max_processes, max_processes_why): (Option<u32>, String),
) -> Capabilities {
    let [read_in_flight_bytes, write_in_flight_bytes] = limits.in_flight_bytes;
    Capabilities {
        dir: options.dir.clone(),
        scratch: scratch.path().to_owned(),
        kind: options.kind,
        file_system: found.file_system.to_string(),
        device: found.device,
        direct: found.direct,
        direct_why: found.direct_why,
        align: found.align,
        fallocate: found.fallocate,
        locks: found.locks,
        engine: found.engine,
        engine_why: found.engine_why,
        read_in_flight_bytes,
        write_in_flight_bytes,
        max_processes,
        max_processes_why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, BytesPerSecond};

    fn is_empty(dir: &std::path::Path) -> bool {
        std::fs::read_dir(dir).unwrap().count() == 0
    }

    #[test]
    fn what_cannot_be_opened_says_what_to_do_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let open = |options: Path| {
            let opened = FilePathStore::open(&options, EngineChoice::Auto, Clock::system());
            opened.unwrap_err().to_string()
        };
        let missing = open(Path::new(dir.path().join("missing")));
        assert!(missing.contains("create the directory first"), "{missing}");
        let not_a_dir = open(Path::new(&file));
        assert!(not_a_dir.contains("name a directory, not a file"), "{not_a_dir}");
        let quota = open(Path::new(dir.path()).quota(Bytes(100)));
        assert!(quota.contains("quota") && quota.contains("4 KiB"), "{quota}");
        let cap = open(Path::new(dir.path()).read_cap(BytesPerSecond(f64::NAN)));
        assert!(cap.contains("read cap"), "{cap}");
        std::fs::remove_file(file).unwrap();
        assert!(is_empty(dir.path()));
    }
}
