//! The object store of tensortier: named tensors whose chunks live in one host arena and on any
//! number of storage paths, leased to readers and writers, moved ahead of need.
//!
//! Modules stand on floors; each uses only what stands before it:
//! `error, id, units, dtype, sync, clock, metrics` < `arena, codec, schedule` < `io` < `path` <
//! `placement` < `catalog` < `residency, evict` < `mover` < `store`.

pub mod arena;
pub mod clock;
pub mod dtype;
pub mod error;
pub mod id;
pub mod source;
pub mod sync;
pub mod units;
