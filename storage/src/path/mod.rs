//! Storage paths: places of unequal speed that keep extents and move them to and from frames.

#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod options;
pub mod profile;
pub mod store;

pub use options::{Kind, Path};
pub use profile::PathProfile;
pub use store::{
    Capabilities, CloseError, Extent, Outstanding, PathCounters, PathStore, ReadDone,
    TransferError, WriteDone,
};
