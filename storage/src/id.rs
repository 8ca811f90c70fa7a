//! Small copyable names: paths, objects, chunks, versions, and the class of a demand.

use std::fmt;

use tensortier_gpu::DeviceId;

/// A level of the memory hierarchy that has a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// The arena.
    Host,
    /// The memory of a device that was attached.
    Device(DeviceId),
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tier::Host => f.write_str("host"),
            Tier::Device(device) => write!(f, "device {device}"),
        }
    }
}

/// One storage path of a store, in the order in which paths were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u16);

impl PathId {
    /// Returns the path's position among the store's paths.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// An object for as long as the store lives; a replaced object gets a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// A chunk: an object and an index in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// The object.
    pub object: ObjectId,
    /// The chunk's index in the object.
    pub index: u32,
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.object.0, self.index)
    }
}

/// A declared schedule of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleId(pub u64);

/// The contents of a chunk after a write; 0 means never written, which reads as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

/// How urgent a transfer is, most urgent first. None starves: see `path::admission`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Somebody waits for it.
    Demand,
    /// It will be wanted.
    Prefetch,
    /// It makes room.
    WriteBack,
}
