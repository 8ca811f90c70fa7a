//! Moves bytes between frames and files: one trait, two engines, and what a directory can do.

pub mod engine;

pub use engine::{Completion, Done, EngineKind, IoEngine, Operation, Transfer};
