//! Engines around engines, for tests: the same contract, with something going wrong.

pub mod fault;

pub use fault::{Fault, Faulty};
