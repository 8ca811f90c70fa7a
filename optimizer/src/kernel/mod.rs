//! The arithmetic of one update over contiguous memory: one definition, several instruction sets.
//!
//! [`update`] advances a run of one parameter's elements by one step; [`update_split`] and
//! [`update_stochastic`] do so for masters that are kept otherwise ([`split`], [`stochastic`]). [`widen`]
//! starts a master plane, [`accumulate`] sums gradients, [`norm`] sums their squares. Results are bit-identical on every [`Isa`], for every way to cut a parameter into runs,
//! and in every floating-point environment of the caller, because one sequence of correctly rounded
//! operations defines them: it is written out, per element, in `reference.rs`. The same loop body is
//! compiled once per instruction set, so a new one cannot drift. Only the payload and the sign of a
//! NaN in the planes are unspecified; in 16-bit weights even those are fixed.

mod accumulate;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod body;
mod dispatch;
mod error;
#[allow(unsafe_code)]
pub(crate) mod fpenv;
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod hostile_env;
mod master;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod norm;
mod planes;
mod reference;
pub mod round;
mod scalars;
pub mod split;
pub mod stochastic;
mod sums;
mod update;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

pub use accumulate::{accumulate, store};
pub use dispatch::{ISA_VARIABLE, Isa};
pub use error::KernelError;
pub use planes::{Accumulator, HalfWeights, Input, Output, Planes, SplitPlanes, WeightPlanes};
pub use scalars::{Decay, Scalars, Subnormals};
pub use stochastic::Stochastic;
pub use update::{update, update_split, update_stochastic, widen};
