//! Exact, offloaded Adam and AdamW: state planes live as chunks of the tensortier store, a step
//! streams them through memory, and the bits are those of the whole run in memory.
//!
//! Modules stand on floors; each uses only what stands before it: `kernel` < `hyper` <
//! `{error, shard, strides, ties, order, precision}` < `{param, options}` < `subgroup` < `team` < `plan` <
//! `{step_io, step_options, accumulators}` < `{gathered, job, report}` < `optimizer` <
//! `{state, accumulate, hand_over, predict, grow}` < `{norm, update}` < `{step, ready, checkpoint}`.

mod accumulate;
mod accumulators;
mod checkpoint;
pub mod error;
mod gathered;
mod grow;
mod hand_over;
pub mod hyper;
mod job;
pub mod kernel;
mod norm;
mod optimizer;
mod options;
pub mod order;
pub mod param;
pub mod plan;
pub mod precision;
mod predict;
mod ready;
mod report;
pub mod shard;
mod state;
mod step;
pub mod step_io;
mod step_options;
mod strides;
pub mod subgroup;
mod team;
mod ties;
mod update;

pub use checkpoint::StateSource;
pub use error::{Error, Result};
pub use hyper::Hyper;
pub use optimizer::Optimizer;
pub use options::{Accumulation, GradientPlace, Options, Rounding};
pub use order::{Eviction, Order};
pub use param::Param;
pub use plan::Plan;
pub use precision::{Form, Plane, StatePrecision};
pub use predict::{Machine, PathPrediction, Prediction};
pub use report::{Moved, Outcome, StepReport};
pub use shard::{Shard, Stretch};
pub use step_io::{Gradient, Segment, Slices, StepIo, Weight, WeightMut};
pub use step_options::{NonFinite, Norm, StepOptions};
pub use strides::Strides;
