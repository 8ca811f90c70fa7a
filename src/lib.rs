//! The facade: re-exports only.
//!
//! [`storage`] is the object store, [`optimizer`] the optimizer, [`gpu`] the devices.
#![doc = include_str!("../README.md")]

pub use tensortier_gpu as gpu;
pub use tensortier_optimizer as optimizer;
pub use tensortier_storage as storage;
