//! tensortier keeps tensors that do not fit where you want them on the next-slower places and moves
//! them ahead of need; on top runs an exact, offloaded Adam and AdamW.
//!
//! This crate only re-exports: [`storage`] is the object store, [`optimizer`] the optimizer,
//! [`gpu`] the devices.

pub use tensortier_gpu as gpu;
pub use tensortier_optimizer as optimizer;
pub use tensortier_storage as storage;
