//! What may change of an open optimizer beside its hyper-parameters: a group of parameters more, and
//! how gradients are kept that are handed over before the step.

use crate::accumulators::Accumulators;
use crate::error::{Error, Result};
use crate::hyper::Hyper;
use crate::optimizer::{Optimizer, Progress, make_objects};
use crate::options::Accumulation;
use crate::param::Param;
use crate::plan::{Plan, auto_elems, forms};
use crate::subgroup::cut;

impl Plan {
    /// Returns the plan with one more group of parameters, in subgroups of their own behind those that
    /// are there, which stay as they are. Whatever [`Param::group`] says, they are of the new group.
    ///
    /// # Errors
    /// As [`Plan::new`], but for [`Error::NoParameters`].
    pub fn with_group(&self, hyper: Hyper, params: Vec<Param>) -> Result<Self> {
        let mut plan = self.clone();
        plan.options.groups.push(hyper);
        let group = self.options.groups.len();
        plan.params.extend(params.into_iter().map(|param| param.in_group(group)));
        let forms = forms(&plan.params, &plan.options)?;
        let added = &forms[self.params.len()..];
        let first = self.params.len();
        let widest = added.iter().map(|(_, form)| *form).max_by_key(|it| it.bytes_per_element());
        let elems = match (self.options.subgroup_elems, widest) {
            // Wider ones than there are may need smaller subgroups.
            (None, Some(widest)) => self.subgroup_elems.min(auto_elems(widest, self.host_bytes)),
            _ => self.subgroup_elems,
        };
        let mut subgroups = cut(added, elems)?;
        subgroups.iter_mut().flat_map(|it| &mut it.runs).for_each(|run| run.param += first);
        plan.forms.extend(added.iter().map(|(_, form)| *form));
        plan.subgroups.extend(subgroups);
        plan.complete()
    }
}

impl Optimizer {
    /// Adds a group of parameters that were never updated, with numbers and a group behind those that
    /// are there. Gradients that were handed over for the next step stay. Bits do not tell it from an
    /// optimizer that was opened with all of them.
    ///
    /// # Errors
    /// As [`Plan::with_group`] and [`Optimizer::open`]; [`Error::Unfinished`] while a step is
    /// unfinished. Nothing is changed then.
    pub fn add_group(&mut self, hyper: Hyper, params: Vec<Param>) -> Result<()> {
        self.refuse_unfinished()?;
        let plan = self.plan.with_group(hyper, params)?;
        let objects = make_objects(&self.store, &plan, self.plan.subgroups.len())?;
        let first = self.plan.params.len();
        self.gradients.grow(&plan.params[first..], plan.subgroups.len());
        self.stamps.resize(plan.subgroups.len(), 0);
        let added = plan.params.iter().zip(&plan.forms).skip(first);
        self.progress.extend(added.map(Progress::new));
        self.objects.extend(objects);
        self.plan = plan;
        Ok(())
    }

    /// Changes how gradients are kept that are handed over before the step.
    ///
    /// # Errors
    /// [`Error::Config`] for a type that gradients cannot be summed in, and after a gradient was handed
    /// over for the next step.
    pub fn set_accumulation(&mut self, options: Accumulation) -> Result<()> {
        if self.gradients.params.iter().any(|received| received.batches.iter().any(|n| *n > 0)) {
            return Err(Error::Config {
                what: format!("keeping gradients as {options:?}"),
                why: String::from("some were handed over already; make the step first"),
            });
        }
        self.gradients = Accumulators::new(options, &self.plan.params, self.plan.subgroups.len())?;
        self.plan.options.gradients = options;
        Ok(())
    }
}
