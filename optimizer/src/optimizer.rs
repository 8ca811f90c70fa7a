//! The optimizer itself: its plan, its objects in the store, and how far it has come.

use std::collections::HashMap;

use tensortier_storage::arena::GRANULE;
use tensortier_storage::codec::checksum;
use tensortier_storage::dtype::DType;
use tensortier_storage::store::{ObjectRef, Schedule, Store, WriteLease};

use crate::accumulators::Accumulators;
use crate::error::{Error, Result};
use crate::hyper::Hyper;
use crate::kernel::Isa;
use crate::plan::Plan;
use crate::precision::StatePrecision;
use crate::report::Begun;
use crate::step_options::{Norm, StepOptions};
use crate::subgroup::BLOCK_ELEMS;
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
    /// The subgroups that never leave memory, from the first on.
    pub(crate) resident: Vec<WriteLease>,
    /// Gradients that were handed over for the next step.
    pub(crate) gradients: Accumulators,
    pub(crate) team: Team,
    /// Steps that were applied to the end.
    pub(crate) steps: u64,
    /// For each subgroup, the last step that was applied to it.
    pub(crate) stamps: Vec<u64>,
    pub(crate) progress: Vec<Progress>,
    /// What was declared to the store and is not begun.
    pub(crate) announced: Option<Announced>,
    /// What is counted of a step that is announced or under way.
    pub(crate) begun: Option<Begun>,
    /// A step that has changed something and is not done.
    pub(crate) unfinished: Option<Unfinished>,
    /// After an import that failed on its way: how many subgroups are those of the checkpoint.
    pub(crate) half_imported: Option<u64>,
}

/// What was declared to the store for a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Subgroups in their order.
    pub(crate) todo: Vec<usize>,
    /// Which parameters have a gradient.
    pub(crate) active: Vec<bool>,
    /// How many subgroups' gradients are objects of the store.
    pub(crate) gradients: usize,
}

/// How far a parameter has come.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    /// How often it was updated: torch's `step`.
    pub(crate) updates: u64,
    /// Whether its master starts from the caller's weights at its next update.
    pub(crate) fresh: bool,
    /// For each block of weights that are half of a split master, the hash of what was last written.
    pub(crate) hashes: Vec<u64>,
    /// What tells it apart from others wherever the model is cut: a hash of its name.
    pub(crate) identity: u64,
}

/// How far a step came that is not done.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// Which parameters have a gradient in it.
    pub(crate) active: Vec<bool>,
    /// How it was asked for.
    pub(crate) options: StepOptions,
    /// The factor of all gradients.
    pub(crate) factor: f64,
    /// Their norm, if it was asked for.
    pub(crate) norm: Option<Norm>,
    /// Whether more gradients may come: it is made by updates during the backward pass.
    pub(crate) during_backward: bool,
    /// Subgroups of which only some runs were updated, and how many.
    pub(crate) partial: HashMap<usize, usize>,
}

impl Optimizer {
    /// Makes the state of a plan in `store`; initial moments are zero and cost no I/O. The state goes
    /// with the optimizer: [`Optimizer::export`] keeps it.
    ///
    /// # Errors
    /// [`Error::Config`] when the store has less host memory than the plan, and the store's errors:
    /// `AlreadyExists` when an optimizer of this name has its state there.
    pub fn open(store: Store, plan: Plan) -> Result<Self> {
        let budget = store.stats().host.budget;
        if budget < plan.host_bytes / GRANULE * GRANULE {
            return Err(Error::Config {
                what: format!("a store with {budget} bytes of host memory"),
                why: format!("the plan is for {}", plan.host_bytes),
            });
        }
        let team = Team::new(plan.options.threads)?;
        let gradients =
            Accumulators::new(plan.options.gradients, &plan.params, plan.subgroups.len())?;
        let mut optimizer = Optimizer {
            stamps: vec![0; plan.subgroups.len()],
            progress: plan.params.iter().zip(&plan.forms).map(Progress::new).collect(),
            schedule: match plan.options.read_ahead {
                Some(subgroups) => store.schedule().with_read_ahead(subgroups),
                None => store.schedule(),
            },
            objects: make_objects(&store, &plan, 0)?,
            resident: Vec::with_capacity(plan.resident),
            store,
            plan,
            gradients,
            team,
            steps: 0,
            announced: None,
            begun: None,
            unfinished: None,
            half_imported: None,
        };
        for object in &optimizer.objects[..optimizer.plan.resident] {
            optimizer.resident.push(optimizer.store.lease_write(object, 0).wait()?);
        }
        Ok(optimizer)
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

    /// Returns how often a parameter was updated: torch's `step`. Steps in which it had no gradient
    /// do not count.
    pub fn updates(&self, param: usize) -> Option<u64> {
        self.progress.get(param).map(|progress| progress.updates)
    }

    /// Returns the instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.team.isa()
    }

    /// Returns how many threads the kernels use.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Returns the hyper-parameters of a group.
    pub fn hyper(&self, group: usize) -> Option<&Hyper> {
        self.plan.options.groups.get(group)
    }

    /// Changes the hyper-parameters of a group from the next step on.
    ///
    /// # Errors
    /// [`Error::Hyper`]; [`Error::Config`] for a group that is not there, for switching amsgrad,
    /// which needs another plane, and while a step is unfinished, whose rest must be done as its
    /// beginning was.
    pub fn set_hyper(&mut self, group: usize, hyper: Hyper) -> Result<()> {
        hyper.validate()?;
        let groups = self.plan.options.groups.len();
        let refuse = |why: String| {
            Err(Error::Config { what: format!("changing hyper-parameters of group {group}"), why })
        };
        let Some(known) = self.plan.options.groups.get_mut(group) else {
            return refuse(format!("there are {groups} groups"));
        };
        if hyper.amsgrad != known.amsgrad {
            return refuse(String::from("amsgrad is fixed when the optimizer is made"));
        }
        if self.unfinished.is_some() {
            return refuse(String::from("an unfinished step must be finished first"));
        }
        *known = hyper;
        Ok(())
    }

    /// Takes the caller's weights of a parameter for its master at its next update, whatever the
    /// master was: to be called after weights were changed outside of a step. The moments stay. While a
    /// step is unfinished this is for what it has not updated yet.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a parameter that is not there; [`Error::HalfImported`].
    pub fn refresh_master(&mut self, param: usize) -> Result<()> {
        self.refuse_half_imported()?;
        let params = self.progress.len();
        let progress = self.progress.get_mut(param).ok_or_else(|| Error::OutOfRange {
            what: format!("parameter number {param}"),
            why: format!("there are {params}"),
        })?;
        progress.fresh = true;
        Ok(())
    }

    /// Takes the caller's weights of all parameters for their masters; see
    /// [`Optimizer::refresh_master`].
    ///
    /// # Errors
    /// [`Error::HalfImported`].
    pub fn refresh_masters(&mut self) -> Result<()> {
        (0..self.progress.len()).try_for_each(|param| self.refresh_master(param))
    }

    /// Refuses to use weights and state that are partly those of a checkpoint.
    pub(crate) fn refuse_half_imported(&self) -> Result<()> {
        let subgroups = self.plan.subgroups.len() as u64;
        match self.half_imported {
            Some(done) => Err(Error::HalfImported { done, subgroups, cause: None }),
            None => Ok(()),
        }
    }

    /// Refuses if there is no state that is whole: while a step is unfinished, and after an import that
    /// failed on its way.
    ///
    /// # Errors
    /// [`Error::Unfinished`], [`Error::HalfImported`].
    pub fn refuse_unfinished(&self) -> Result<()> {
        self.refuse_half_imported()?;
        match self.unfinished {
            Some(_) => Err(Error::Unfinished { step: self.steps + 1 }),
            None => Ok(()),
        }
    }
}

/// Makes an object of one chunk for each subgroup from `first` on; none if one cannot be made.
pub(crate) fn make_objects(store: &Store, plan: &Plan, first: usize) -> Result<Vec<ObjectRef>> {
    let mut objects = Vec::with_capacity(plan.subgroups.len() - first);
    for (index, group) in plan.subgroups.iter().enumerate().skip(first) {
        let key = format!("{}/subgroup/{index:06}", plan.options.name);
        match store.create_chunked(&key, DType::U8, &[group.bytes], group.bytes) {
            Ok(object) => objects.push(object),
            Err(error) => {
                for object in objects {
                    // The first error is the one that is told.
                    let _ = store.delete(&object);
                }
                return Err(error.into());
            }
        }
    }
    Ok(objects)
}

impl Drop for Optimizer {
    fn drop(&mut self) {
        let gradients = self.gradients.objects.iter_mut().filter_map(Option::take);
        for object in self.objects.drain(..).chain(gradients) {
            // A store that is closed has deleted them already.
            let _ = self.store.delete(&object);
        }
    }
}

impl Unfinished {
    /// Returns a step that nothing is known of yet.
    pub(crate) fn during_backward() -> Self {
        Unfinished {
            active: Vec::new(),
            options: StepOptions::default(),
            factor: 1.0,
            norm: None,
            during_backward: true,
            partial: HashMap::new(),
        }
    }
}

impl Progress {
    pub(crate) fn new((param, form): (&crate::param::Param, &crate::precision::Form)) -> Self {
        let blocks = match form.precision {
            StatePrecision::SplitMaster => param.elements().unwrap_or(0).div_ceil(BLOCK_ELEMS),
            _ => 0,
        };
        Progress {
            updates: 0,
            fresh: true,
            hashes: vec![0; blocks as usize],
            identity: checksum(param.name.as_bytes()),
        }
    }
}
