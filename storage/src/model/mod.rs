//! Models: the code that uses locks, atomics and channels, run under schedules that a checker picks.
//!
//! `scripts/model` runs them. A model makes everything anew each time, and must end under every
//! schedule: what waits for ever is reported, with the schedule that leads there.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod arena;
mod leases;
mod ticket;
