//! One step: subgroups in their order, each leased, updated, and let go. The store reads ahead and
//! writes back behind.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::optimizer::{Optimizer, Unfinished};
use crate::order::Eviction;
use crate::report::{StepReport, Times};
use crate::step_io::StepIo;

/// How many subgroups are asked for ahead when nothing is declared.
const READ_AHEAD: usize = 4;

impl Optimizer {
    /// Applies one step, or the rest of one that stopped.
    ///
    /// # Errors
    /// Before any change: [`Error::Parameter`] when something that `io` hands over does not fit its
    /// parameter, or when an unfinished step is taken up with gradients of other parameters.
    /// [`Error::Interrupted`] when something failed or `io` asked to stop in between: no update is
    /// lost, and the next call with the same gradients does the rest with the same bits.
    pub fn step(&mut self, io: &mut dyn StepIo) -> Result<StepReport> {
        let begin = Instant::now();
        let step = self.steps + 1;
        let active: Vec<bool> = (0..self.plan.params.len()).map(|p| io.has_gradient(p)).collect();
        let todo = self.todo(step, &active);
        self.check_all(&todo, &active, io)?;
        let before = self.store.stats();
        self.announce(step, &todo, &active)?;
        let scalars = self.scalars(&active);
        let mut times = Times::default();
        self.unfinished.get_or_insert(Unfinished { active, partial: None });
        self.update_all(step, &todo, &scalars, io, &mut times)?;
        self.store.barrier()?;
        self.steps = step;
        if let Some(Unfinished { active, .. }) = self.unfinished.take() {
            for (count, active) in self.counts.iter_mut().zip(active) {
                *count += u64::from(active);
            }
        }
        let (plan, after) = (&self.plan, self.store.stats());
        Ok(StepReport::new(step, begin.elapsed(), (plan, &todo), (&before, &after), &times))
    }

    /// Returns the subgroups that this step has yet to update, in its order.
    fn todo(&self, step: u64, active: &[bool]) -> Vec<usize> {
        let order = self.plan.options.order.of_step(step, self.plan.subgroups.len());
        let wanted = |index: &usize| {
            let group = &self.plan.subgroups[*index];
            self.stamps[*index] != step && group.runs.iter().any(|run| active[run.param])
        };
        order.into_iter().filter(wanted).collect()
    }

    /// Looks at everything that will be handed over, before anything is changed.
    fn check_all(&self, todo: &[usize], active: &[bool], io: &mut dyn StepIo) -> Result<()> {
        if let Some(unfinished) = &self.unfinished
            && let Some(param) = unfinished.active.iter().zip(active).position(|(a, b)| a != b)
        {
            let (had, has) = if active[param] { ("no", "one") } else { ("a", "none") };
            return Err(Error::Parameter {
                param: self.plan.params[param].name.clone(),
                why: format!(
                    "the unfinished step began with {had} gradient and now there is {has}"
                ),
            });
        }
        for index in todo {
            for run in self.plan.subgroups[*index].runs.iter().filter(|run| active[run.param]) {
                self.check(run, &io.segment(run.param, run.range.clone()))?;
            }
        }
        Ok(())
    }

    /// Declares this step's order and the next one's to the store, which then reads ahead.
    fn announce(&self, step: u64, todo: &[usize], active: &[bool]) -> Result<()> {
        if self.plan.options.eviction == Eviction::Schedule {
            let objects = |indices: &[usize]| -> Vec<_> {
                indices.iter().map(|index| self.objects[*index].clone()).collect()
            };
            // Who is updated next time is not known yet; most likely the same as this time.
            let next = self.todo(step + 1, active);
            self.schedule.declare(&objects(todo), &objects(&next), self.plan.reserve_bytes)?;
        } else {
            for index in todo.iter().take(READ_AHEAD) {
                self.store.prefetch(&self.objects[*index])?;
            }
        }
        Ok(())
    }

    fn read_ahead(&self, todo: &[usize], position: usize) {
        if self.plan.options.eviction == Eviction::Lru
            && let Some(index) = todo.get(position + READ_AHEAD)
        {
            // Why a hint failed is said by the lease that follows it.
            let _ = self.store.prefetch(&self.objects[*index]);
        }
    }

    /// Returns each parameter's scalars for its own next step; neighbours mostly share them.
    fn scalars(&self, active: &[bool]) -> Vec<Option<Scalars>> {
        let hyper = &self.plan.options.hyper;
        let mut last: Option<(u64, Scalars)> = None;
        let each = self.counts.iter().zip(active).map(|(count, active)| {
            active.then(|| match last {
                Some((t, scalars)) if t == count + 1 => scalars,
                _ => {
                    let scalars = Scalars::at(hyper, count + 1, 1.0);
                    last = Some((count + 1, scalars));
                    scalars
                }
            })
        });
        each.collect()
    }

    fn update_all(
        &mut self,
        step: u64,
        todo: &[usize],
        scalars: &[Option<Scalars>],
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<()> {
        let subgroups = self.plan.subgroups.len() as u64;
        let mut done = subgroups - todo.len() as u64;
        for (position, index) in todo.iter().enumerate() {
            self.read_ahead(todo, position);
            if let Err(cause) = self.update_subgroup(*index, scalars, io, times) {
                let cause = Some(Box::new(cause));
                return Err(Error::Interrupted { step, done, subgroups, cause });
            }
            self.stamps[*index] = step;
            done += 1;
            // A wish to stop after the last one comes too late to leave anything undone.
            if io.subgroup_done(done, subgroups).is_break() && position + 1 < todo.len() {
                return Err(Error::Interrupted { step, done, subgroups, cause: None });
            }
        }
        Ok(())
    }
}
