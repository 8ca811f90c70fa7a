//! Updates during the backward pass: a subgroup is updated as soon as all of its gradients are there.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::optimizer::{Optimizer, Unfinished};
use crate::step_io::StepIo;
use crate::step_options::StepOptions;

impl Optimizer {
    /// Says that the gradients of these parameters are final if `last_micro_batch`, and updates the
    /// subgroups that wait for no other; otherwise does nothing, so that it can be called in every
    /// micro-batch. The next [`Optimizer::step`] updates the rest and ends the step: parameters whose
    /// gradients never came are skipped. The bits are those of a step alone.
    ///
    /// Gradients of parameters that were said to be final are asked for until their last subgroup is
    /// updated, at the latest in [`Optimizer::step`]. Such a step cannot be clipped, scaled or
    /// skipped, since it changes weights before all gradients are known. [`crate::Order::Descending`]
    /// suits it: gradients of the last parameters come first.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a parameter that is not there; those of [`Optimizer::step_with`];
    /// [`Error::Config`] when the step under way was not begun by this.
    pub fn update_ready(
        &mut self,
        io: &mut dyn StepIo,
        params: &[usize],
        last_micro_batch: bool,
    ) -> Result<()> {
        if !last_micro_batch {
            return Ok(());
        }
        let begin = Instant::now();
        self.refuse_half_imported()?;
        let count = self.plan.params.len();
        if let Some(param) = params.iter().find(|param| **param >= count) {
            let (what, why) = (format!("parameter number {param}"), format!("there are {count}"));
            return Err(Error::OutOfRange { what, why });
        }
        let mut active = self.ready()?;
        params.iter().for_each(|param| active[*param] = true);
        let todo = self.complete(&active);
        self.check_all(&todo, &active, io)?;
        self.check_weights(&todo, &active, io)?;
        let mut begun = self.begin(None)?;
        self.unfinished = Some(Unfinished {
            active: active.clone(),
            partial: self.unfinished.take().map(|it| it.partial).unwrap_or_default(),
            ..Unfinished::during_backward()
        });
        let scalars = self.scalars(&active, 1.0);
        let outcome = self.update_all(&todo, &scalars, io, &mut begun.times);
        begun.times.elapsed += begin.elapsed();
        self.begun = Some(begun);
        outcome
    }

    /// Returns the parameters whose gradients are final so far.
    fn ready(&self) -> Result<Vec<bool>> {
        match &self.unfinished {
            None => Ok(vec![false; self.plan.params.len()]),
            Some(Unfinished { during_backward: true, active, .. }) => Ok(active.clone()),
            Some(_) => Err(Error::Config {
                what: format!("updating during the backward pass of step {}", self.steps + 1),
                why: String::from("it is under way already; call step again to finish it"),
            }),
        }
    }

    /// Returns the subgroups not yet updated whose parameters all have their gradients.
    fn complete(&self, active: &[bool]) -> Vec<usize> {
        let mut todo = self.todo(self.steps + 1, active);
        todo.retain(|index| self.plan.subgroups[*index].runs.iter().all(|run| active[run.param]));
        todo
    }

    /// Takes the gradients that are there at the end of a backward pass together with those that were
    /// said to be final, and refuses ones that are gone too early.
    pub(crate) fn join_ready(&self, options: &StepOptions, active: &mut [bool]) -> Result<()> {
        let Some(Unfinished { during_backward: true, active: ready, .. }) = &self.unfinished else {
            return Ok(());
        };
        if (StepOptions { require_all: false, ..*options }) != StepOptions::default() {
            return Err(Error::Config {
                what: format!("finishing step {} with {options:?}", self.steps + 1),
                why: String::from(
                    "updates during the backward pass exclude clipping, loss scales and skipping",
                ),
            });
        }
        for (param, active) in active.iter_mut().enumerate().filter(|(param, _)| ready[*param]) {
            let waits = |(index, _): (usize, _)| self.stamps[index] != self.steps + 1;
            if !*active && self.runs_of(param).any(waits) {
                return Err(Error::Parameter {
                    param: self.plan.params[param].name.clone(),
                    why: String::from(
                        "its gradient was said to be final and is gone before it was applied",
                    ),
                });
            }
            *active = true;
        }
        Ok(())
    }
}
