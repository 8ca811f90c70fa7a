//! Storage paths: places of unequal speed that keep extents and move them to and from frames.

pub mod admission;
mod bell;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod depth;
pub mod file;
mod hang;
#[cfg(any(test, feature = "testing"))]
pub mod hanging;
pub mod leftover;
mod line;
pub mod lock;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
#[cfg(all(test, model))]
mod model;
mod open;
pub mod options;
pub mod profile;
mod pump;
mod request;
mod seed;
mod segment;
mod set;
pub mod store;
mod timer;
mod token;
mod turn;
mod width;

pub use file::FilePathStore;
pub use leftover::{Leftover, leftovers, remove_leftover};
pub use lock::Owner;
pub use options::{Kind, MaxProcesses, Path};
pub use profile::PathProfile;
pub(crate) use set::{Member, PathSet};
pub use store::{
    Capabilities, CloseError, Condition, Extent, Outstanding, PathCounters, PathEvent, PathStore,
    ReadDone, Tell, TransferError, WriteDone,
};
