//! The randomized soak: stores with tiny budgets over paths that fail, hammered by several threads,
//! with every byte compared against a model and every leak looked for. SOAK.md says how to use it.

mod check;
mod config;
mod faults;
mod held;
mod numbers;
mod operation;
mod places;
mod resources;
mod round;
mod run;
mod verbs;
mod watch;
mod worker;

pub use run::{Options, Summary, run};
pub use worker::Violation;
