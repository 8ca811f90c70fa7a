//! The plan: what will live where, decided and predicted before anything is allocated.

use std::collections::HashSet;

use tensortier_storage::arena::granules_up;
use tensortier_storage::dtype::DType;
use tensortier_storage::id::{ChunkId, ObjectId};
use tensortier_storage::schedule::{Access, Fate, Schedule};
use tensortier_storage::units::Bytes;

use crate::error::{Error, Result};
use crate::hyper::Hyper;
use crate::options::{Options, Rounding};
use crate::order::{Eviction, Kept, Order, longest_suffix};
use crate::param::Param;
use crate::precision::{Form, StatePrecision};
use crate::subgroup::{BLOCK_ELEMS, Subgroup, cut};

/// What an optimizer over these parameters will do with this much host memory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The settings.
    pub options: Options,
    /// The parameters.
    pub params: Vec<Param>,
    /// What is stored for each parameter.
    pub forms: Vec<Form>,
    /// The subgroups.
    pub subgroups: Vec<Subgroup>,
    /// For each parameter, the subgroups its runs lie in and their numbers there, in order.
    pub(crate) places: Vec<Vec<(usize, usize)>>,
    /// Elements a subgroup has at most.
    pub subgroup_elems: u64,
    /// How many subgroups, from the first on, never leave memory.
    pub resident: usize,
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
        crate::team::check_threads(options.threads)?;
        let forms = forms(&params, &options)?;
        let widest =
            forms.iter().map(|(_, form)| *form).max_by_key(|form| form.bytes_per_element());
        let widest = widest.ok_or(Error::NoParameters)?;
        let subgroup_elems =
            options.subgroup_elems.unwrap_or_else(|| auto_elems(widest, host_bytes));
        let subgroups = cut(&forms, subgroup_elems)?;
        let plan = Plan {
            places: Vec::new(),
            resident: resident(options.resident, subgroups.len())?,
            reserve_bytes: 0,
            options,
            params,
            forms: forms.into_iter().map(|(_, form)| form).collect(),
            subgroups,
            subgroup_elems,
            host_bytes,
        };
        plan.complete()
    }

    /// Returns the plan with where each parameter lies and with room for its largest subgroups, if the
    /// memory has it.
    pub(crate) fn complete(mut self) -> Result<Self> {
        self.places = vec![Vec::new(); self.params.len()];
        for (index, group) in self.subgroups.iter().enumerate() {
            for (number, run) in group.runs.iter().enumerate() {
                self.places[run.param].push((index, number));
            }
        }
        let memory = self.subgroups.iter().map(|group| granules_up(group.bytes));
        let largest = memory.max().unwrap_or(0);
        self.reserve_bytes = 2 * largest;
        let widest = self.forms.iter().copied().max_by_key(|form| form.bytes_per_element());
        self.check_budget(widest.ok_or(Error::NoParameters)?, largest)?;
        Ok(self)
    }

    fn check_budget(&self, widest: Form, largest: u64) -> Result<()> {
        let pipeline = |one: u64| PIPELINE * one + self.resident_memory();
        let smallest = pipeline(largest);
        if self.host_bytes >= smallest {
            return Ok(());
        }
        let least = pipeline(granules_up(widest.bytes(BLOCK_ELEMS)));
        let smaller = self.options.subgroup_elems.is_some() && least < smallest;
        Err(Error::BudgetTooSmall {
            budget: Bytes(self.host_bytes),
            subgroup_elems: self.subgroups.iter().map(|group| group.elems).max().unwrap_or(0),
            smallest: Bytes(smallest),
            hint: smaller.then(|| format!(", or {} with subgroups of 64Ki", Bytes(least))),
        })
    }

    /// Returns the memory of the subgroups that never leave it, in bytes.
    pub fn resident_memory(&self) -> u64 {
        self.subgroups[..self.resident].iter().map(|group| granules_up(group.bytes)).sum()
    }

    /// Returns the memory for what stays from step to step beside the residents, in bytes.
    pub fn capacity(&self) -> u64 {
        self.host_bytes.saturating_sub(self.resident_memory() + self.reserve_bytes)
    }

    /// Returns how many parameters there are, in elements.
    pub fn elements(&self) -> u64 {
        self.subgroups.iter().map(|group| group.elems).sum()
    }

    /// Returns the stored bytes of all state.
    pub fn state_bytes(&self) -> u64 {
        self.subgroups.iter().map(|group| group.bytes).sum()
    }

    /// Returns what step `t` (counted from 1) leaves in memory when every subgroup is updated,
    /// residents included: K(t) of the closed form for alternating directions, and what the store's
    /// own plan keeps for a repeated one. With [`Eviction::Lru`] it is all or, for a repeated
    /// direction, nothing.
    pub fn kept_after(&self, t: u64) -> Kept {
        let memory: Vec<u64> = self.subgroups.iter().map(|g| granules_up(g.bytes)).collect();
        let bytes: Vec<u64> = self.subgroups.iter().map(|group| group.bytes).collect();
        let resident =
            Kept { subgroups: self.resident as u64, bytes: bytes[..self.resident].iter().sum() };
        let room = self.host_bytes.saturating_sub(self.resident_memory());
        let capacity = self.capacity();
        let moving = match (self.options.eviction, self.options.order) {
            (Eviction::Lru, _) if memory[self.resident..].iter().sum::<u64>() <= room => Kept {
                subgroups: (bytes.len() - self.resident) as u64,
                bytes: bytes[self.resident..].iter().sum(),
            },
            (Eviction::Lru, _) => Kept::default(),
            (Eviction::Schedule, Order::Alternate) => {
                let mut order = Order::Alternate.of_step(t, bytes.len());
                order.retain(|index| *index >= self.resident);
                longest_suffix(&order, &bytes, &memory, capacity)
            }
            (Eviction::Schedule, Order::Ascending | Order::Descending) => {
                self.fixed_set(t, &memory, capacity)
            }
        };
        Kept {
            subgroups: resident.subgroups + moving.subgroups,
            bytes: resident.bytes + moving.bytes,
        }
    }

    /// Returns what `t` passes in one direction leave, by the plan that the store makes of each.
    fn fixed_set(&self, t: u64, memory: &[u64], capacity: u64) -> Kept {
        let id = |index: usize| ChunkId { object: ObjectId(index as u64), index: 0 };
        let access = |(index, bytes): (usize, &u64)| Access { chunk: id(index), bytes: *bytes };
        let mut pass: Vec<Access> =
            memory.iter().enumerate().skip(self.resident).map(access).collect();
        if self.options.order == Order::Descending {
            pass.reverse();
        }
        let mut kept = vec![false; memory.len()];
        for _ in 0..t {
            let here = |chunk: ChunkId| kept[chunk.object.0 as usize];
            let mut schedule = Schedule::new(pass.clone(), pass.clone(), capacity, here);
            let mut next = vec![false; memory.len()];
            for access in &pass {
                next[access.chunk.object.0 as usize] = schedule.used(access.chunk) == Fate::Keep;
            }
            // It settles after a pass or two.
            if next == kept {
                break;
            }
            kept = next;
        }
        let bytes = self.subgroups.iter().zip(&kept).filter(|(_, kept)| **kept);
        Kept {
            subgroups: kept.iter().filter(|kept| **kept).count() as u64,
            bytes: bytes.map(|(group, _)| group.bytes).sum(),
        }
    }
}

/// Returns how many elements each parameter has here and what is stored for it, and refuses parameters
/// and hyper-parameters that cannot be.
pub(crate) fn forms(params: &[Param], options: &Options) -> Result<Vec<(u64, Form)>> {
    options.groups.iter().try_for_each(Hyper::validate)?;
    let sizes = sizes(params, options)?;
    params.iter().zip(sizes).map(|(param, elems)| Ok((elems, form(param, options)?))).collect()
}

/// Returns how many elements each parameter has here, and refuses parameters that cannot be.
fn sizes(params: &[Param], options: &Options) -> Result<Vec<u64>> {
    let mut names = HashSet::new();
    let mut sizes = Vec::with_capacity(params.len());
    for param in params {
        let refuse =
            |why: String| Err(Error::Config { what: format!("parameter {}", param.name), why });
        let groups = options.groups.len();
        if !names.insert(&param.name) {
            return refuse(String::from("has the name of another; names must differ"));
        }
        if param.group >= groups {
            return refuse(format!("is of group {}, and there are {groups}", param.group));
        }
        if let Err(why) = param.shard.check(&param.global_shape) {
            return refuse(why);
        }
        let whole = crate::shard::Shard::Whole.elements(&param.global_shape);
        match whole.and(param.elements()) {
            Some(elems) => sizes.push(elems),
            None => {
                let shape = &param.global_shape;
                return refuse(format!(
                    "its shape {shape:?} has more elements than can be counted"
                ));
            }
        }
    }
    Ok(sizes)
}

/// Decides what is stored for a parameter.
fn form(param: &Param, options: &Options) -> Result<Form> {
    let stochastic = options.rounding != Rounding::Nearest;
    let refuse = |what: String, why: String| Err(Error::Config { what, why });
    let (name, dtype) = (&param.name, param.weight_dtype);
    let wanted = match options.precision {
        Some(precision) => format!("state precision {precision}"),
        None => String::from("stochastic rounding"),
    };
    let precision = match (dtype, options.precision) {
        (DType::F32, None | Some(StatePrecision::Weights | StatePrecision::SplitMaster)) => {
            StatePrecision::Weights
        }
        (DType::F16, Some(StatePrecision::SplitMaster)) => {
            let why = format!("works with bf16 weights, but {name} is {dtype}; use fp32");
            return refuse(wanted, why);
        }
        (DType::BF16 | DType::F16, None) if stochastic => StatePrecision::Weights,
        (DType::BF16 | DType::F16, Some(StatePrecision::Weights)) if !stochastic => {
            let why = format!(
                "needs fp32 weights as the master, or stochastic rounding, but {name} is {dtype}; \
                 use fp32"
            );
            return refuse(wanted, why);
        }
        (DType::BF16 | DType::F16, Some(StatePrecision::Fp32 | StatePrecision::SplitMaster))
            if stochastic =>
        {
            let why = format!(
                "rounds the weights from their master, which stochastic rounding of {name} has no \
                 use for; leave one of them out"
            );
            return refuse(wanted, why);
        }
        (DType::F32 | DType::BF16 | DType::F16, Some(precision)) => precision,
        (DType::BF16 | DType::F16, None) => StatePrecision::Fp32,
        (dtype, _) => {
            let why = format!("weights of type {dtype} cannot be trained");
            return refuse(format!("parameter {name}"), why);
        }
    };
    Ok(Form { precision, amsgrad: options.groups[param.group].amsgrad })
}

fn resident(part: f64, subgroups: usize) -> Result<usize> {
    if (0.0..=1.0).contains(&part) {
        return Ok((part * subgroups as f64) as usize);
    }
    let why = String::from("the part of the subgroups that stays in memory is from 0 to 1");
    Err(Error::Config { what: format!("a resident part of {part}"), why })
}

/// Returns the largest power of two of which 48 fit into the host memory, within 256 Ki to 8 Mi; if
/// not even a pipeline of the smallest fits, the smallest legal size.
pub(crate) fn auto_elems(form: Form, host_bytes: u64) -> u64 {
    let (least, most) = AUTO_ELEMS;
    let memory = |elems: u64| granules_up(form.bytes(elems));
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

    fn refused(params: Vec<Param>, options: Options) -> String {
        Plan::new(params, options, 1 << 30).unwrap_err().to_string()
    }

    fn of(precision: StatePrecision) -> Options {
        Options { precision: Some(precision), ..Options::default() }
    }

    #[test]
    fn auto_takes_the_largest_size_of_which_48_fit() {
        let of = |host| plan(500_000_000, DType::BF16, host, Options::default()).unwrap();
        assert_eq!(of(1 << 30).subgroup_elems, 1 << 20);
        assert_eq!(of(64 << 30).subgroup_elems, 8 << 20);
        assert_eq!(of(64 << 20).subgroup_elems, 256 << 10);
        assert_eq!(of(4 << 20).subgroup_elems, 64 << 10);
        let plan = of(1 << 30);
        assert_eq!(plan.forms[0].precision, StatePrecision::Fp32);
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
    fn residents_take_their_memory_from_the_rest() {
        let options = Options { resident: 0.1, ..Options::default() };
        let some = plan(500_000_000, DType::BF16, 1 << 30, options).unwrap();
        assert_eq!((some.subgroups.len(), some.resident), (477, 47));
        assert_eq!(some.kept_after(1).subgroups, 83);
        assert_eq!(some.kept_after(2).subgroups, 83);
        let all = Options { resident: 1.0, ..Options::default() };
        assert!(plan(500_000_000, DType::BF16, 1 << 30, all.clone()).is_err());
        assert!(plan(500_000_000, DType::BF16, 6 << 30, all).is_ok());
        let odd = Options { resident: f64::NAN, ..Options::default() };
        assert!(plan(500, DType::BF16, 1 << 30, odd).is_err());
    }

    #[test]
    fn the_form_follows_from_weights_and_options() {
        use StatePrecision::{Fp32, SplitMaster, Weights};
        let form = |dtype, options| plan(1000, dtype, 1 << 30, options).unwrap().forms[0].precision;
        let stochastic =
            Options { rounding: Rounding::Stochastic { seed: 1 }, ..Options::default() };
        assert_eq!(form(DType::F32, Options::default()), Weights);
        assert_eq!(form(DType::F16, Options::default()), Fp32);
        assert_eq!(form(DType::F32, of(Fp32)), Fp32);
        assert_eq!(form(DType::BF16, of(SplitMaster)), SplitMaster);
        assert_eq!(form(DType::F32, of(SplitMaster)), Weights);
        assert_eq!(form(DType::F16, stochastic.clone()), Weights);
        let one = |dtype| vec![Param::new("w", [9], dtype)];
        for (params, options, parts) in [
            (one(DType::F16), of(Weights), ["w is F16", "use fp32"]),
            (one(DType::F16), of(SplitMaster), ["bf16", "w is F16"]),
            (one(DType::I32), Options::default(), ["parameter w", "I32"]),
            (
                one(DType::BF16),
                Options { precision: Some(Fp32), ..stochastic },
                ["w", "stochastic"],
            ),
        ] {
            let text = refused(params, options);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn parameters_that_cannot_be_are_refused_by_name() {
        let w = |shape: Vec<u64>| Param::new("w", shape, DType::F32);
        let text = refused(vec![w(vec![3]), w(vec![4])], Options::default());
        assert!(text.contains("parameter w") && text.contains("names must differ"), "{text}");
        let text = refused(vec![w(vec![3]).in_group(1)], Options::default());
        assert!(text.contains("group 1"), "{text}");
        let text = refused(vec![w(vec![u64::MAX, 2])], Options::default());
        assert!(text.contains("more elements"), "{text}");
        let shard = crate::shard::Shard::Flat { range: 0..4 };
        assert!(refused(vec![w(vec![3]).with_shard(shard)], Options::default()).contains("0..4"));
        assert!(
            refused(vec![w(vec![3])], Hyper { lr: -1.0, ..Hyper::default() }.into()).contains("lr")
        );
        assert!(refused(Vec::new(), Options::default()).contains("no parameters"));
        // A rank may hold nothing but empty shards.
        let empty = Plan::new(vec![w(vec![0, 3])], Options::default(), 1 << 20).unwrap();
        assert!(empty.subgroups.is_empty());
    }
}
