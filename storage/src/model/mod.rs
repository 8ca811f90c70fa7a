//! Models: the code that uses locks, atomics and channels, run under schedules that a checker picks.
//!
//! `scripts/model` runs them. A model makes everything anew each time, and must end under every
//! schedule: what waits for ever is reported, with the schedule that leads there.

mod arena;
mod leases;
mod ticket;
