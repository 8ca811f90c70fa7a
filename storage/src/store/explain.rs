//! What was chosen for each path, and why.

use std::fmt;

use crate::arena::{Arena, Unlocked};
use crate::codec::Compression;
use crate::path::{Capabilities, Condition, Member, PathProfile};
use crate::placement::{Candidate, Placement, shares};
use crate::units::{Bytes, BytesPerSecond};

use super::{DeviceUse, Store};

/// The effective settings of an open store. Its `Display` is for people, one line per fact.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Explanation {
    /// The strict budget of host memory, in bytes.
    pub host_budget: u64,
    /// How much of it is committed so far, in bytes.
    pub committed_bytes: u64,
    /// Of that, what is locked in memory, in bytes.
    pub locked_bytes: u64,
    /// Why the rest is not, if any is not.
    pub unlocked: Option<Unlocked>,
    /// How chunks are spread over the paths.
    pub placement: Placement,
    /// Whether blocks have checksums.
    pub checksums: bool,
    /// What is compressed on its way to a path.
    pub compression: Compression,
    /// How much of the budget is set aside for the stored bytes of compressed chunks, in bytes.
    pub packing_bytes: u64,
    /// Each path, in the order in which they were given.
    pub paths: Vec<PathExplanation>,
    /// What a user should know about the paths taken together.
    pub notes: Vec<String>,
    /// Each device that is attached.
    pub devices: Vec<DeviceUse>,
}

/// What was chosen for one path.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PathExplanation {
    /// What it is and can do, with reasons.
    pub capabilities: Capabilities,
    /// How fast it is believed to be now.
    pub profile: PathProfile,
    /// Its share of new bytes, 0 to 1; 0 for one that is only read.
    pub share: f64,
    /// Whether it answers.
    pub condition: Condition,
}

impl Store {
    /// Returns what was chosen for the store and each of its paths, and why.
    pub fn explain(&self) -> Explanation {
        let shared = &self.0.handle.shared;
        let members = shared.paths.all();
        let candidate = |member: &Member| Candidate {
            path: member.id,
            sustained_bps: member.store.profile().share(),
            queued_bytes: 0,
            usable: member.takes_writes,
            on_probation: false,
            ready: true,
        };
        let candidates: Vec<_> = members.iter().map(candidate).collect();
        let paths =
            members.iter().zip(shares(&candidates)).map(|(member, share)| PathExplanation {
                capabilities: member.store.capabilities().clone(),
                profile: member.store.profile(),
                share,
                condition: member.store.condition(),
            });
        let packing_bytes = shared.packing.as_ref().map_or(0, |arena| arena.usage().budget);
        let arenas = || std::iter::once(&shared.arena).chain(&shared.packing);
        Explanation {
            host_budget: shared.arena.usage().budget + packing_bytes,
            committed_bytes: arenas().map(|arena| arena.usage().committed).sum(),
            locked_bytes: arenas().map(|arena| arena.usage().locked).sum(),
            unlocked: arenas().find_map(Arena::unlocked),
            packing_bytes,
            placement: shared.placement,
            checksums: shared.checksums,
            compression: shared.compression,
            paths: paths.collect(),
            notes: self.0.notes.clone(),
            devices: self.devices(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checksums = if self.checksums { "on" } else { "off" };
        let (budget, compression) = (Bytes(self.host_budget), self.compression);
        let placement = self.placement;
        write!(
            f,
            "host budget {budget}, {placement}, checksums {checksums}, compression {compression}"
        )?;
        if self.packing_bytes > 0 {
            write!(f, ", {} of the budget set aside for it", Bytes(self.packing_bytes))?;
        }
        writeln!(f)?;
        let (locked, committed) = (Bytes(self.locked_bytes), Bytes(self.committed_bytes));
        write!(f, "memory: {locked} locked of {committed} committed")?;
        match &self.unlocked {
            Some(unlocked) => writeln!(f, " ({unlocked})")?,
            None => writeln!(f)?,
        }
        for path in &self.paths {
            let Capabilities { dir, kind, file_system, .. } = &path.capabilities;
            writeln!(
                f,
                "{} ({kind}, {file_system}), share {:.0} %",
                dir.display(),
                path.share * 100.0
            )?;
            writeln!(
                f,
                "  engine: {} ({})",
                path.capabilities.engine, path.capabilities.engine_why
            )?;
            let direct = if path.capabilities.direct { "direct" } else { "buffered" };
            writeln!(f, "  transfers: {direct} ({})", path.capabilities.direct_why)?;
            let why = &path.capabilities.max_processes_why;
            match path.capabilities.max_processes {
                Some(most) => writeln!(f, "  processes: at most {most} at a time ({why})")?,
                None => writeln!(f, "  processes: any number at a time ({why})")?,
            }
            let PathProfile { read_bps, write_bps, sharing } = path.profile;
            let (read, write) = (BytesPerSecond(read_bps), BytesPerSecond(write_bps));
            writeln!(f, "  speed: read {read}, write {write}, sharing {sharing:.2}")?;
            match path.condition {
                Condition::Good => {}
                Condition::Hung { silent } => writeln!(f, "  has not answered for {silent:.0?}")?,
                Condition::Probation => writeln!(f, "  answers again, on probation")?,
            }
        }
        for device in &self.devices {
            let (used, budget) = (Bytes(device.in_use), Bytes(device.budget));
            writeln!(
                f,
                "device {} ({}): budget {budget}, {used} in use",
                device.device, device.name
            )?;
            write!(f, "  host memory: {} page-locked for it", Bytes(device.host_locked))?;
            match &device.host_unlocked {
                Some(why) => writeln!(f, " ({why})")?,
                None => writeln!(f)?,
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
