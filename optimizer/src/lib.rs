//! Exact, offloaded Adam and AdamW: state planes live as chunks of the tensortier store, a step
//! streams them through memory, and the bits are those of the whole run in memory.
//!
//! Modules stand on floors; each uses only what stands before it: `kernel` < `hyper` <
//! `{error, param, precision}` < `{subgroup, order}` < `plan` < `step_io` < `{team, report}` <
//! `optimizer` < `{update, step, state}`.

pub mod error;
pub mod hyper;
pub mod kernel;
mod optimizer;
pub mod order;
pub mod param;
pub mod plan;
pub mod precision;
mod report;
mod state;
mod step;
pub mod step_io;
pub mod subgroup;
mod team;
mod update;

pub use error::{Error, Result};
pub use hyper::Hyper;
pub use optimizer::Optimizer;
pub use order::{Eviction, Order};
pub use param::Param;
pub use plan::{Options, Plan};
pub use precision::{Plane, StatePrecision};
pub use report::{Moved, StepReport};
pub use step_io::{Segment, Slices, StepIo, WeightMut};
