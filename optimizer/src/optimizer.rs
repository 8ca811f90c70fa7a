//! The optimizer itself: its plan, its objects in the store, and how far it has come.

use tensortier_storage::dtype::DType;
use tensortier_storage::store::{ObjectRef, Schedule, Store};

use crate::error::{Error, Result};
use crate::hyper::Hyper;
use crate::kernel::Isa;
use crate::plan::Plan;
use crate::team::Team;

/// An offloaded Adam or AdamW. Its state lives in the store it was opened on; weights and gradients
/// stay with the caller and are handed over in each [`Optimizer::step`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tensortier_optimizer::kernel::Input;
/// use tensortier_optimizer::{Optimizer, Options, Param, Plan, Slices, WeightMut};
/// use tensortier_storage::{dtype::DType, path::Path, store::Store};
///
/// let plan = Plan::new(vec![Param::new("w", [1000], DType::F32)], Options::default(), 8 << 20)?;
/// let path = Path::new(std::env::temp_dir());
/// let store = Store::builder().host_budget(8 << 20).path(path).open()?;
/// let mut optimizer = Optimizer::open(store, plan)?;
/// let (mut weights, gradients) = (vec![1.0; 1000], vec![0.5; 1000]);
/// let mut io = Slices::new().param(WeightMut::F32(&mut weights), Input::F32(&gradients));
/// optimizer.step(&mut io)?;
/// assert!(weights[0] < 1.0);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Optimizer {
    pub(crate) store: Store,
    /// What the next steps access.
    pub(crate) schedule: Schedule,
    pub(crate) plan: Plan,
    /// One object of one chunk per subgroup.
    pub(crate) objects: Vec<ObjectRef>,
    pub(crate) team: Team,
    /// Steps that were applied to the end.
    pub(crate) steps: u64,
    /// For each subgroup, the last step that was applied to it.
    pub(crate) stamps: Vec<u64>,
    /// For each parameter, how often it was updated: torch's `step`.
    pub(crate) counts: Vec<u64>,
    /// A step that stopped on its way.
    pub(crate) unfinished: Option<Unfinished>,
}

/// How far a step came that stopped.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// Which parameters had a gradient when it began.
    pub(crate) active: Vec<bool>,
    /// A subgroup of which only some runs were updated, and how many.
    pub(crate) partial: Option<(usize, usize)>,
}

impl Optimizer {
    /// Makes the state of a plan in `store`; initial moments are zero and cost no I/O.
    ///
    /// # Errors
    /// [`Error::Config`] when the store has less host memory than the plan, and the store's errors.
    pub fn open(store: Store, plan: Plan) -> Result<Self> {
        let budget = store.stats().host.budget;
        if budget
            < plan.host_bytes / tensortier_storage::arena::GRANULE
                * tensortier_storage::arena::GRANULE
        {
            return Err(Error::Config {
                what: format!("a store with {budget} bytes of host memory"),
                why: format!("the plan is for {}", plan.host_bytes),
            });
        }
        let team = Team::new(plan.options.threads)?;
        let mut objects = Vec::with_capacity(plan.subgroups.len());
        for (index, bytes) in plan.subgroup_bytes.iter().enumerate() {
            let key = format!("optimizer/subgroup/{index:06}");
            objects.push(store.create_chunked(&key, DType::U8, &[*bytes], *bytes)?);
        }
        Ok(Optimizer {
            stamps: vec![0; plan.subgroups.len()],
            counts: vec![0; plan.params.len()],
            schedule: store.schedule(),
            store,
            plan,
            objects,
            team,
            steps: 0,
            unfinished: None,
        })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns how many steps were applied to the end.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.team.isa()
    }

    /// Returns how many threads the kernels use.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Changes the hyper-parameters from the next step on.
    ///
    /// # Errors
    /// [`Error::Hyper`]; [`Error::Config`] for switching amsgrad, which needs another plane, and
    /// while a step is unfinished, whose rest must be done as its beginning was.
    pub fn set_hyper(&mut self, hyper: Hyper) -> Result<()> {
        hyper.validate()?;
        if hyper.amsgrad != self.plan.options.hyper.amsgrad || self.unfinished.is_some() {
            return Err(Error::Config {
                what: String::from("changing hyper-parameters"),
                why: String::from(
                    "amsgrad is fixed when the optimizer is made, and an unfinished step must be \
                     finished first",
                ),
            });
        }
        self.plan.options.hyper = hyper;
        Ok(())
    }
}
