//! The plan: what will live where, decided and predicted before anything is allocated.

use tensortier_storage::arena::granules_up;
use tensortier_storage::dtype::DType;
use tensortier_storage::id::{ChunkId, ObjectId};
use tensortier_storage::schedule::{Access, Fate, Schedule};
use tensortier_storage::units::Bytes;

use crate::error::{Error, Result};
use crate::hyper::Hyper;
use crate::order::{Eviction, Kept, Order, longest_suffix};
use crate::param::Param;
use crate::precision::{StatePrecision, chunk_bytes};
use crate::subgroup::{BLOCK_ELEMS, Subgroup, cut};

/// The settings of an optimizer.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Hyper-parameters of all parameters.
    pub hyper: Hyper,
    /// State precision; `None` takes the weights as the master if all are fp32, and fp32 otherwise.
    pub precision: Option<StatePrecision>,
    /// Elements of a subgroup, a multiple of 65,536; `None` chooses.
    pub subgroup_elems: Option<u64>,
    /// Directions of the steps.
    pub order: Order,
    /// What leaves memory.
    pub eviction: Eviction,
    /// Threads of the kernels; `None` takes what the machine has.
    pub threads: Option<usize>,
}

/// What an optimizer over these parameters will do with this much host memory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The settings, the state precision decided.
    pub options: Options,
    /// The parameters.
    pub params: Vec<Param>,
    /// The subgroups.
    pub subgroups: Vec<Subgroup>,
    /// The state precision.
    pub precision: StatePrecision,
    /// Elements a subgroup has at most.
    pub subgroup_elems: u64,
    /// Stored bytes of each subgroup.
    pub subgroup_bytes: Vec<u64>,
    /// The host memory for state, in bytes.
    pub host_bytes: u64,
    /// The part of it left to what is on its way in and out: two of the largest subgroups.
    pub reserve_bytes: u64,
}

/// Subgroups that must find room at once: one being read, one being updated, one being written.
const PIPELINE: u64 = 3;

/// How many subgroups an automatic size wants in the host memory: fewer make the pipeline coarse.
const AUTO_RESIDENT: u64 = 48;

/// The sizes an automatic choice is made from, in elements.
const AUTO_ELEMS: (u64, u64) = (256 << 10, 8 << 20);

impl Plan {
    /// Makes a plan for `host_bytes` of memory for state.
    ///
    /// # Errors
    /// [`Error::NoParameters`], [`Error::Config`], [`Error::Hyper`], or [`Error::BudgetTooSmall`],
    /// which says the smallest host memory that works.
    pub fn new(params: Vec<Param>, options: Options, host_bytes: u64) -> Result<Self> {
        options.hyper.validate()?;
        crate::team::check_threads(options.threads)?;
        let precision = precision(&params, &options)?;
        let planes = precision.planes(options.hyper.amsgrad).len();
        let subgroup_elems =
            options.subgroup_elems.unwrap_or_else(|| auto_elems(planes, host_bytes));
        let subgroups = cut(&params, subgroup_elems)?;
        let subgroup_bytes: Vec<u64> =
            subgroups.iter().map(|group| chunk_bytes(planes, group.elems)).collect();
        let largest = subgroup_bytes.iter().copied().max().unwrap_or(0);
        let plan = Plan {
            reserve_bytes: 2 * granules_up(largest),
            options,
            params,
            subgroups,
            precision,
            subgroup_elems,
            subgroup_bytes,
            host_bytes,
        };
        plan.check_budget(planes, granules_up(largest))?;
        Ok(plan)
    }

    fn check_budget(&self, planes: usize, largest: u64) -> Result<()> {
        let smallest = PIPELINE * largest;
        if self.host_bytes >= smallest {
            return Ok(());
        }
        let least = PIPELINE * granules_up(chunk_bytes(planes, BLOCK_ELEMS));
        let smaller = self.options.subgroup_elems.is_some() && least < smallest;
        Err(Error::BudgetTooSmall {
            budget: Bytes(self.host_bytes),
            subgroup_elems: self.subgroups.iter().map(|group| group.elems).max().unwrap_or(0),
            smallest: Bytes(smallest),
            hint: smaller.then(|| format!(", or {} with subgroups of 64Ki", Bytes(least))),
        })
    }

    /// Returns how many parameters there are, in elements.
    pub fn elements(&self) -> u64 {
        self.subgroups.iter().map(|group| group.elems).sum()
    }

    /// Returns the stored bytes of all state.
    pub fn state_bytes(&self) -> u64 {
        self.subgroup_bytes.iter().sum()
    }

    /// Returns what step `t` (counted from 1) leaves in memory when every subgroup is updated: K(t)
    /// of the closed form for alternating directions, and what the store's own plan keeps for a
    /// repeated one. With [`Eviction::Lru`] it is all or, for a repeated direction, nothing.
    pub fn kept_after(&self, t: u64) -> Kept {
        let n = self.subgroups.len();
        let memory: Vec<u64> = self.subgroup_bytes.iter().map(|b| granules_up(*b)).collect();
        let capacity = self.host_bytes.saturating_sub(self.reserve_bytes);
        match (self.options.eviction, self.options.order) {
            (Eviction::Lru, _) if memory.iter().sum::<u64>() <= self.host_bytes => {
                Kept { subgroups: n as u64, bytes: self.state_bytes() }
            }
            (Eviction::Lru, _) => Kept::default(),
            (Eviction::Schedule, Order::Alternate) => {
                let order = Order::Alternate.of_step(t, n);
                longest_suffix(&order, &self.subgroup_bytes, &memory, capacity)
            }
            (Eviction::Schedule, Order::Ascending) => self.fixed_set(t, &memory, capacity),
        }
    }

    /// Returns what `t` passes in one direction leave, by the plan that the store makes of each.
    fn fixed_set(&self, t: u64, memory: &[u64], capacity: u64) -> Kept {
        let id = |index: usize| ChunkId { object: ObjectId(index as u64), index: 0 };
        let access = |(index, bytes): (usize, &u64)| Access { chunk: id(index), bytes: *bytes };
        let pass: Vec<Access> = memory.iter().enumerate().map(access).collect();
        let mut kept = vec![false; memory.len()];
        for _ in 0..t {
            let here = |chunk: ChunkId| kept[chunk.object.0 as usize];
            let mut schedule = Schedule::new(pass.clone(), pass.clone(), capacity, here);
            let next: Vec<bool> =
                (0..memory.len()).map(|index| schedule.used(id(index)) == Fate::Keep).collect();
            // It settles after a pass or two.
            if next == kept {
                break;
            }
            kept = next;
        }
        let bytes = self.subgroup_bytes.iter().zip(&kept).filter(|(_, kept)| **kept);
        Kept {
            subgroups: kept.iter().filter(|kept| **kept).count() as u64,
            bytes: bytes.map(|(bytes, _)| bytes).sum(),
        }
    }
}

fn precision(params: &[Param], options: &Options) -> Result<StatePrecision> {
    for param in params {
        if !matches!(param.weight_dtype, DType::F32 | DType::BF16 | DType::F16) {
            return Err(Error::Config {
                what: format!("parameter {}", param.name),
                why: format!("weights of type {} cannot be trained", param.weight_dtype),
            });
        }
    }
    let narrow = params.iter().find(|param| param.weight_dtype != DType::F32);
    match (options.precision, narrow) {
        (None, None) => Ok(StatePrecision::Weights),
        (None, Some(_)) => Ok(StatePrecision::Fp32),
        (Some(StatePrecision::Weights), Some(param)) => Err(Error::Config {
            what: String::from("state precision weights"),
            why: format!(
                "needs fp32 weights as the master, but {} is {}; use fp32",
                param.name, param.weight_dtype
            ),
        }),
        (Some(chosen), _) => Ok(chosen),
    }
}

/// Returns the largest power of two of which 48 fit into the host memory, within 256 Ki to 8 Mi; if
/// not even a pipeline of the smallest fits, the smallest legal size.
fn auto_elems(planes: usize, host_bytes: u64) -> u64 {
    let (least, most) = AUTO_ELEMS;
    let memory = |elems: u64| granules_up(chunk_bytes(planes, elems));
    let mut elems = most;
    while elems > least && memory(elems) * AUTO_RESIDENT > host_bytes {
        elems /= 2;
    }
    if memory(elems) * PIPELINE > host_bytes { BLOCK_ELEMS } else { elems }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(elems: u64, dtype: DType, host: u64, options: Options) -> Result<Plan> {
        Plan::new(vec![Param::new("w", [elems], dtype)], options, host)
    }

    #[test]
    fn auto_takes_the_largest_size_of_which_48_fit() {
        let of = |host| plan(500_000_000, DType::BF16, host, Options::default()).unwrap();
        assert_eq!(of(1 << 30).subgroup_elems, 1 << 20);
        assert_eq!(of(64 << 30).subgroup_elems, 8 << 20);
        assert_eq!(of(64 << 20).subgroup_elems, 256 << 10);
        assert_eq!(of(4 << 20).subgroup_elems, 64 << 10);
        let plan = of(1 << 30);
        assert_eq!(plan.precision, StatePrecision::Fp32);
        assert_eq!(plan.state_bytes(), 6_000_000_000);
        assert_eq!(plan.reserve_bytes, 24 << 20);
        assert_eq!(plan.kept_after(1).subgroups, 83);
        assert_eq!(plan.kept_after(2).bytes, (83 * 12) << 20);
    }

    #[test]
    fn too_little_memory_names_the_smallest_that_works() {
        let error = plan(10_000_000, DType::BF16, 1 << 20, Options::default()).unwrap_err();
        let Error::BudgetTooSmall { smallest, .. } = error else { panic!("{error}") };
        assert!(plan(10_000_000, DType::BF16, smallest.0, Options::default()).is_ok());
        assert!(plan(10_000_000, DType::BF16, smallest.0 - 1, Options::default()).is_err());
        let options = Options { subgroup_elems: Some(8 << 20), ..Options::default() };
        let text = plan(10_000_000, DType::BF16, 100 << 20, options).unwrap_err().to_string();
        assert!(text.contains("288 MiB") && text.contains("64Ki"), "{text}");
    }

    #[test]
    fn weights_are_the_master_only_in_fp32() {
        let auto = plan(1000, DType::F32, 1 << 30, Options::default()).unwrap();
        assert_eq!(auto.precision, StatePrecision::Weights);
        let weights = Options { precision: Some(StatePrecision::Weights), ..Options::default() };
        let text = plan(1000, DType::F16, 1 << 30, weights).unwrap_err().to_string();
        assert!(text.contains("F16") && text.contains("use fp32"), "{text}");
        assert!(plan(1000, DType::I32, 1 << 30, Options::default()).is_err());
    }
}
