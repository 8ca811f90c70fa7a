//! The settings of an optimizer, fixed when it is made but for the hyper-parameters.

use tensortier_storage::dtype::DType;

use crate::hyper::Hyper;
use crate::order::{Eviction, Order};
use crate::precision::StatePrecision;

/// The settings of an optimizer. The default is AdamW as torch has it, one group, and everything else
/// left to the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// What its objects in the store and its checkpoints are called; two optimizers on one store
    /// need two names.
    pub name: String,
    /// Hyper-parameters of each group; [`crate::Param::group`] is an index into it.
    pub groups: Vec<Hyper>,
    /// State precision; `None` takes fp32 weights as their own master, and keeps an fp32 master
    /// beside 16-bit weights unless they are rounded stochastically.
    pub precision: Option<StatePrecision>,
    /// How updated weights become 16-bit ones.
    pub rounding: Rounding,
    /// Elements of a subgroup, a multiple of 65,536; `None` takes the largest power of two, from
    /// 256 Ki to 8 Mi, of which 48 fit in the host memory.
    pub subgroup_elems: Option<u64>,
    /// Directions of the steps.
    pub order: Order,
    /// What leaves memory.
    pub eviction: Eviction,
    /// The part of the subgroups, from the first on, that never leaves memory, in [0, 1].
    pub resident: f64,
    /// How many subgroups are read ahead of the one that is updated; `None` takes what memory and
    /// paths allow.
    pub read_ahead: Option<u32>,
    /// How gradients are kept that are handed over before the step.
    pub gradients: Accumulation,
    /// Threads of the kernels; `None` takes what the machine has.
    pub threads: Option<usize>,
}

/// How gradients are kept that are handed over before the step ([`crate::Optimizer::accumulate`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Accumulation {
    /// The type they are summed in over micro-batches: `BF16`, `F16` or `F32`. In the gradients' own
    /// 16-bit type sums are those of torch, and lose precision beyond a few micro-batches.
    pub dtype: DType,
    /// Where they are kept.
    pub place: GradientPlace,
}

/// Where gradients are kept until their step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum GradientPlace {
    /// In memory of their own, taken when the first come: it is no part of the store's budget.
    #[default]
    Memory,
    /// As objects of the store, in what of its budget the plan leaves, and on the paths beyond that.
    Store,
}

impl Default for Accumulation {
    fn default() -> Self {
        Accumulation { dtype: DType::BF16, place: GradientPlace::Memory }
    }
}

/// How updated weights become 16-bit ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// Up or down by chance, so that the mean is exact: 16-bit weights then need no master. The same
    /// seed gives the same bits, however the model is cut.
    Stochastic {
        /// What the chance follows from.
        seed: u64,
    },
}

impl Default for Options {
    fn default() -> Self {
        Options {
            name: String::from("optimizer"),
            groups: vec![Hyper::default()],
            precision: None,
            rounding: Rounding::Nearest,
            subgroup_elems: None,
            order: Order::default(),
            eviction: Eviction::default(),
            resident: 0.0,
            read_ahead: None,
            gradients: Accumulation::default(),
            threads: None,
        }
    }
}

impl From<Hyper> for Options {
    /// Returns the default settings with one group of these hyper-parameters.
    fn from(hyper: Hyper) -> Self {
        Options { groups: vec![hyper], ..Options::default() }
    }
}
