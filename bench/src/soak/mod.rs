//! The randomized soak: stores with tiny budgets over paths that fail, hammered by several threads,
//! with every byte compared against a model and every leak looked for. SOAK.md says how to use it.

mod alone;
mod batches;
mod check;
mod config;
mod content;
mod faults;
mod files;
mod gpu;
mod held;
mod leases;
mod legal;
mod numbers;
mod on_device;
mod on_paths;
mod operation;
mod places;
mod ranges;
mod resources;
mod round;
mod run;
mod verbs;
mod watch;
mod worker;

pub use run::{Options, Summary, run};
pub use worker::Violation;
