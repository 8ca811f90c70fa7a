//! One step: subgroups in their order, each leased, updated, and let go. The store reads ahead and
//! writes back behind.

use std::collections::HashMap;
use std::time::Instant;

use tensortier_storage::store::ObjectRef;

use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::norm::Verdict;
use crate::optimizer::{Announced, Optimizer, Unfinished};
use crate::order::Eviction;
use crate::report::{Begun, Outcome, StepReport, Times, Updated};
use crate::step_io::StepIo;
use crate::step_options::{Norm, StepOptions};

/// How many subgroups are asked for ahead when nothing is declared and nobody says otherwise.
const READ_AHEAD: u32 = 4;

impl Optimizer {
    /// Applies one step as [`StepOptions::default`] has it, or the rest of one that stopped; see
    /// [`Optimizer::step_with`].
    ///
    /// # Errors
    /// See [`Optimizer::step_with`].
    pub fn step(&mut self, io: &mut dyn StepIo) -> Result<StepReport> {
        self.step_with(io, &StepOptions::default())
    }

    /// Applies one step, or the rest of one that stopped.
    ///
    /// # Errors
    /// Before any change: [`Error::Parameter`] when something that `io` hands over does not fit its
    /// parameter, or when an unfinished step is taken up with gradients of other parameters;
    /// [`Error::Tied`], [`Error::WeightsChanged`], [`Error::NonFinite`]; [`Error::Config`] for
    /// options that no step can be made with, or that are not those of the unfinished step;
    /// [`Error::Storage`] when gradients that were handed over cannot be read for their norm.
    /// [`Error::Interrupted`] when something failed or `io` asked to stop in between: no update is
    /// lost, and the next call with the same gradients does the rest with the same bits.
    /// [`Error::HalfImported`] after an import that failed on its way.
    pub fn step_with(&mut self, io: &mut dyn StepIo, options: &StepOptions) -> Result<StepReport> {
        let begin = Instant::now();
        options.check()?;
        self.refuse_half_imported()?;
        let mut active = self.active(io);
        self.join_ready(options, &mut active)?;
        self.check_active(options, &active)?;
        let todo = self.todo(self.steps + 1, &active);
        self.check_all(&todo, &active, io)?;
        let mut begun = self.begin(Some((&todo, &active)))?;
        let verdict = self.look(options, &todo, &active, io, &mut begun.times);
        let outcome = verdict.and_then(|verdict| match verdict {
            Verdict::Skip { norm, param } => Ok((Some(norm), Some(param))),
            Verdict::Apply { factor, norm } => {
                self.apply((&todo, active), (options, factor, norm), io, &mut begun.times)?;
                Ok((norm, None))
            }
        });
        begun.times.elapsed += begin.elapsed();
        match outcome {
            Ok((_, None)) => self.end(begun),
            Ok((norm, Some(param))) => self.skip(begun, norm, param),
            Err(error) => {
                self.begun = Some(begun);
                Err(error)
            }
        }
    }

    /// Begins to read what the next step will use first, and does nothing else: to be called while
    /// the gradients are still being made. Whether it was called does not show in any bit.
    ///
    /// # Errors
    /// The store's errors, and [`Error::HalfImported`].
    pub fn begin_step(&mut self) -> Result<()> {
        self.refuse_half_imported()?;
        if self.unfinished.is_none() {
            // Who will have a gradient is not known yet; all of them is the best guess.
            let begun = self.begin(None)?;
            self.begun = Some(begun);
        }
        Ok(())
    }

    /// Returns which parameters have a gradient.
    pub(crate) fn active(&self, io: &dyn StepIo) -> Vec<bool> {
        (0..self.plan.params.len()).map(|param| io.has_gradient(param)).collect()
    }

    /// Returns the subgroups that step `step` has yet to update, in its order.
    pub(crate) fn todo(&self, step: u64, active: &[bool]) -> Vec<usize> {
        let mut order = self.plan.options.order.of_step(step, self.plan.subgroups.len());
        order.retain(|index| {
            let group = &self.plan.subgroups[*index];
            self.stamps[*index] != step && group.runs.iter().any(|run| active[run.param])
        });
        order
    }

    /// Refuses gradients that are missing, and options and gradients that are not those of the
    /// unfinished step.
    fn check_active(&self, options: &StepOptions, active: &[bool]) -> Result<()> {
        let name = |param: usize| self.plan.params[param].name.clone();
        if let Some(param) = active.iter().position(|active| !active)
            && options.require_all
        {
            return Err(Error::MissingGradient { param: name(param) });
        }
        let unfinished = self.unfinished.as_ref().filter(|unfinished| !unfinished.during_backward);
        let Some(unfinished) = unfinished else { return Ok(()) };
        if let Some(param) = unfinished.active.iter().zip(active).position(|(a, b)| a != b) {
            let (had, has) = if active[param] { ("no", "one") } else { ("a", "none") };
            let why =
                format!("the unfinished step began with {had} gradient and now there is {has}");
            return Err(Error::Parameter { param: name(param), why });
        }
        if unfinished.options != *options {
            return Err(Error::Config {
                what: format!("finishing step {} with {options:?}", self.steps + 1),
                why: format!("it began with {:?}; use these", unfinished.options),
            });
        }
        Ok(())
    }

    /// Begins to count, or goes on, and announces what comes: the given subgroups, or all of the
    /// model if nothing was announced yet.
    pub(crate) fn begin(&mut self, coming: Option<(&[usize], &[bool])>) -> Result<Begun> {
        match (coming, self.begun.take()) {
            (None, Some(begun)) => Ok(begun),
            (coming, begun) => {
                let begun = begun.unwrap_or_else(|| Begun {
                    before: self.store.stats(),
                    times: Times::default(),
                });
                match coming {
                    Some((todo, active)) => self.announce(todo, active)?,
                    None => {
                        let all = vec![true; self.plan.params.len()];
                        self.announce(&self.todo(self.steps + 1, &all), &all)?;
                    }
                }
                Ok(begun)
            }
        }
    }

    /// Looks at gradients and weights, while the first subgroups are read.
    fn look(
        &self,
        options: &StepOptions,
        todo: &[usize],
        active: &[bool],
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<Verdict> {
        let begin = Instant::now();
        let verdict = match &self.unfinished {
            Some(Unfinished { factor, norm, .. }) => {
                Ok(Verdict::Apply { factor: *factor, norm: *norm })
            }
            None => self.judge(options, active, io),
        };
        let verdict =
            verdict.and_then(|verdict| self.check_weights(todo, active, io).map(|()| verdict));
        times.looking += begin.elapsed();
        verdict
    }

    /// Updates what is left of a step whose gradients were looked at.
    fn apply(
        &mut self,
        (todo, active): (&[usize], Vec<bool>),
        (options, factor, norm): (&StepOptions, f64, Option<Norm>),
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<()> {
        let scalars = self.scalars(&active, factor);
        self.unfinished = Some(Unfinished {
            active,
            options: *options,
            factor,
            norm,
            during_backward: false,
            partial: self.unfinished.take().map(|it| it.partial).unwrap_or_default(),
        });
        self.update_all(todo, &scalars, io, times)
    }

    /// Ends a step all of whose subgroups are updated.
    fn end(&mut self, begun: Begun) -> Result<StepReport> {
        self.store.barrier()?;
        let Unfinished { active, factor, norm, .. } =
            self.unfinished.take().unwrap_or_else(Unfinished::during_backward);
        self.steps += 1;
        for (progress, active) in self.progress.iter_mut().zip(&active) {
            progress.updates += u64::from(*active);
            progress.fresh &= !active;
        }
        let mut updated = Updated::default();
        let stamped = self.stamps.iter().zip(&self.plan.subgroups);
        for (_, group) in stamped.filter(|(stamp, _)| **stamp == self.steps) {
            let took_part = group.runs.iter().filter(|run| active[run.param]);
            updated.elements += took_part.map(|run| run.range.end - run.range.start).sum::<u64>();
            updated.moved.subgroups += 1;
            updated.moved.bytes += group.bytes;
        }
        let judged = (Outcome::Applied, norm, factor);
        let after = self.store.stats();
        self.forget_gradients()?;
        Ok(StepReport::new(self.steps, judged, updated, (&begun, &after)))
    }

    /// Ends a step that changes nothing. What was read ahead for it counts for the one that uses it.
    fn skip(
        &mut self,
        begun: Begun,
        norm: Option<Norm>,
        param: Option<usize>,
    ) -> Result<StepReport> {
        let param = param.map(|index| self.plan.params[index].name.clone());
        let judged = (Outcome::Skipped { param }, norm, 0.0);
        let counts = (&begun, &begun.before);
        let report = StepReport::new(self.steps + 1, judged, Updated::default(), counts);
        self.begun = Some(Begun { times: Times::default(), ..begun });
        self.forget_gradients()?;
        Ok(report)
    }

    /// Declares this step's order and the next one's to the store, which then reads ahead. What was
    /// declared and not yet begun is not declared again: what was read ahead for it would look like
    /// what an earlier step left, and be planned for.
    fn announce(&mut self, todo: &[usize], active: &[bool]) -> Result<()> {
        let gradients = self.gradients.objects.iter().flatten().count();
        let announced = Announced { todo: todo.to_vec(), active: active.to_vec(), gradients };
        if self.announced.as_ref() == Some(&announced) {
            return Ok(());
        }
        let moving = |index: &&usize| **index >= self.plan.resident;
        let states = |indices: &[usize]| -> Vec<ObjectRef> {
            indices.iter().filter(moving).map(|index| self.objects[*index].clone()).collect()
        };
        let this = || {
            todo.iter().flat_map(|index| {
                let state = Some(index).filter(moving).map(|index| &self.objects[*index]);
                self.gradients.objects[*index].iter().chain(state).cloned()
            })
        };
        if self.plan.options.eviction == Eviction::Schedule {
            // Who is updated next time is not known yet; most likely the same as this time.
            let next = self.todo(self.steps + 2, active);
            let elsewhere = self.store.stats().host.budget.saturating_sub(self.plan.capacity());
            self.schedule.declare(&this().collect::<Vec<_>>(), &states(&next), elsewhere)?;
        } else {
            for object in this().take(self.read_ahead()) {
                // Why a hint failed is said by the lease that follows it.
                let _ = self.store.prefetch(&object);
            }
        }
        self.announced = Some(announced);
        Ok(())
    }

    fn read_ahead(&self) -> usize {
        self.plan.options.read_ahead.unwrap_or(READ_AHEAD) as usize
    }

    fn prefetch_next(&self, todo: &[usize], position: usize) {
        if self.plan.options.eviction == Eviction::Lru
            && let Some(index) = todo.get(position + self.read_ahead())
        {
            let state = Some(&self.objects[*index]).filter(|_| *index >= self.plan.resident);
            for object in self.gradients.objects[*index].iter().chain(state) {
                let _ = self.store.prefetch(object);
            }
        }
    }

    /// Returns each parameter's scalars for its own next update; those of a group mostly share them.
    pub(crate) fn scalars(&self, active: &[bool], factor: f64) -> Vec<Option<Scalars>> {
        let mut known: HashMap<(usize, u64), Scalars> = HashMap::new();
        let each =
            self.progress.iter().zip(active).enumerate().map(|(param, (progress, active))| {
                let (group, t) = (self.plan.params[param].group, progress.updates + 1);
                let hyper = &self.plan.options.groups[group];
                active.then(|| {
                    *known.entry((group, t)).or_insert_with(|| Scalars::at(hyper, t, factor))
                })
            });
        each.collect()
    }

    /// Updates the subgroups `todo`, in that order.
    pub(crate) fn update_all(
        &mut self,
        todo: &[usize],
        scalars: &[Option<Scalars>],
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<()> {
        let (step, subgroups) = (self.steps + 1, self.plan.subgroups.len() as u64);
        let mut done = subgroups - todo.len() as u64;
        self.announced = self.announced.take().filter(|_| todo.is_empty());
        for (position, index) in todo.iter().enumerate() {
            self.prefetch_next(todo, position);
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
