//! Moves bytes between frames and files: one trait, two engines, and what a directory can do.

pub mod blocking;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod decorate;
pub mod engine;
pub mod probe;
mod progress;
mod task;
pub mod uring;

pub use blocking::Threads;
pub use engine::{Completion, Done, EngineKind, IoEngine, Operation, Transfer};
pub use probe::{EngineChoice, Negotiated, negotiate};
pub use progress::KernelHook;
pub use uring::Uring;
