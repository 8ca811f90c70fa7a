//! The object store of tensortier: named tensors whose chunks live in one host arena and on any
//! number of storage paths, leased to readers and writers, moved ahead of need.
//!
//! Modules stand on floors; each uses only what stands before it:
//! `error, id, units, dtype, sync, ticket, clock, metrics` < `arena, codec, schedule` < `io` <
//! `path` < `placement, source, residency, evict` < `catalog` < `mover` < `device` < `store`.

pub mod arena;
mod catalog;
pub mod clock;
pub mod codec;
mod device;
pub mod dtype;
pub mod error;
pub mod evict;
pub mod id;
pub mod io;
pub mod metrics;
#[cfg(all(test, model))]
mod model;
mod mover;
pub mod path;
mod placement;
mod residency;
pub mod schedule;
pub mod source;
pub mod store;
mod sync;
pub mod ticket;
pub mod units;
