//! One step: subgroups in their order, each leased, updated, and let go. The store reads ahead and
//! writes back behind.

use std::time::{Duration, Instant};

use bytemuck::cast_slice_mut;
use tensortier_storage::store::{Stats, WriteLease};

use crate::error::{Error, Result};
use crate::kernel::{self, Input, Output, Planes, Scalars};
use crate::optimizer::Optimizer;
use crate::order::Eviction;
use crate::precision::{Plane, plane_range};
use crate::step_io::{Segment, StepIo, WeightMut};
use crate::subgroup::Run;

/// How many subgroups are asked for ahead when nothing is declared.
const READ_AHEAD: usize = 4;

/// What a step did. Its counts are of the store, so they are what really moved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Elements that were updated.
    pub elements: u64,
    /// Subgroups that were updated and their stored bytes.
    pub updated: Moved,
    /// Read from paths.
    pub reads: Moved,
    /// Given to write-back.
    pub writes: Moved,
    /// In memory when their turn came.
    pub hits: Moved,
    /// Bytes read from and written to each path meanwhile, padding included.
    pub paths: Vec<(u64, u64)>,
    /// Waiting for subgroups to arrive.
    pub waiting_on_reads: Duration,
    /// Updating.
    pub computing: Duration,
    /// Waiting for memory that write-backs free.
    pub waiting_on_writes: Duration,
}

/// A number of subgroups and their stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Moved {
    /// Subgroups.
    pub subgroups: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Times that are added up over a step.
#[derive(Debug, Default)]
struct Times {
    reads: Duration,
    computing: Duration,
    writes: Duration,
}

impl Optimizer {
    /// Applies one step, or the rest of one that stopped.
    ///
    /// # Errors
    /// Before any change: none of the gradients' shapes are looked at until their turn.
    /// [`Error::Interrupted`] when something failed or `io` asked to stop in between: no update is
    /// lost, and the next call with the same gradients does the rest with the same bits.
    pub fn step(&mut self, io: &mut dyn StepIo) -> Result<StepReport> {
        let begin = Instant::now();
        let step = self.steps + 1;
        let active: Vec<bool> = (0..self.plan.params.len()).map(|p| io.has_gradient(p)).collect();
        let todo = self.todo(step, &active);
        let before = self.store.stats();
        self.announce(step, &todo, &active)?;
        let scalars = self.scalars(&active);
        let mut times = Times::default();
        self.interrupted = true;
        let (mut done, of) =
            ((self.plan.subgroups.len() - todo.len()) as u64, self.plan.subgroups.len() as u64);
        for (position, index) in todo.iter().enumerate() {
            self.read_ahead(&todo, position);
            let outcome = self.update_subgroup(*index, &scalars, io, &mut times);
            if outcome.is_ok() {
                self.stamps[*index] = step;
                done += 1;
            }
            let stopped = match outcome {
                Ok(()) if io.subgroup_done(done, of).is_continue() || done == of => continue,
                Ok(()) => None,
                Err(cause) => Some(Box::new(cause)),
            };
            return Err(Error::Interrupted { step, done, subgroups: of, cause: stopped });
        }
        self.store.barrier()?;
        self.interrupted = false;
        self.steps = step;
        for (count, active) in self.counts.iter_mut().zip(&active) {
            *count += u64::from(*active);
        }
        let after = self.store.stats();
        Ok(self.report(step, begin.elapsed(), &todo, (&before, &after), &times))
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

    /// Declares this step's order and the next one's to the store, which then reads ahead.
    fn announce(&self, step: u64, todo: &[usize], active: &[bool]) -> Result<()> {
        if self.plan.options.eviction == Eviction::Schedule {
            let objects = |indices: &[usize]| -> Vec<_> {
                indices.iter().map(|index| self.objects[*index].clone()).collect()
            };
            // Who is updated next time is not known yet; most likely the same as this time.
            let next = self.todo(step + 1, active);
            self.store.declare(&objects(todo), &objects(&next), self.plan.reserve_bytes)?;
        } else {
            for index in todo.iter().take(READ_AHEAD) {
                self.store.prefetch(&self.objects[*index]);
            }
        }
        Ok(())
    }

    fn read_ahead(&self, todo: &[usize], position: usize) {
        if self.plan.options.eviction == Eviction::Lru
            && let Some(index) = todo.get(position + READ_AHEAD)
        {
            self.store.prefetch(&self.objects[*index]);
        }
    }

    /// Returns each parameter's scalars for its own next step.
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

    fn update_subgroup(
        &self,
        index: usize,
        scalars: &[Option<Scalars>],
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<()> {
        let mut lease = self.store.lease_write(&self.objects[index], 0).wait()?;
        times.writes += lease.waits().memory;
        times.reads += lease.waits().arrival;
        let begin = Instant::now();
        let group = &self.plan.subgroups[index];
        // Everything is looked at before anything of the subgroup is changed.
        for run in &group.runs {
            if scalars[run.param].is_some() {
                self.check(run, &io.segment(run.param, run.range.clone()))?;
            }
        }
        for run in &group.runs {
            if let Some(scalars) = &scalars[run.param] {
                let segment = io.segment(run.param, run.range.clone());
                self.update_run(&mut lease, group.elems, run, scalars, segment)?;
            }
        }
        times.computing += begin.elapsed();
        Ok(())
    }

    fn check(&self, run: &Run, segment: &Segment<'_>) -> Result<()> {
        let param = &self.plan.params[run.param];
        let elems = (run.range.end - run.range.start) as usize;
        let refuse = |why: String| Err(Error::Parameter { param: param.name.clone(), why });
        if segment.gradient.len() != elems {
            return refuse(format!(
                "elements {:?} got a gradient of {}",
                run.range,
                segment.gradient.len()
            ));
        }
        if segment.weight.len() != elems {
            return refuse(format!(
                "elements {:?} got weights of {}",
                run.range,
                segment.weight.len()
            ));
        }
        if segment.weight.dtype() != param.weight_dtype {
            let (given, declared) = (segment.weight.dtype(), param.weight_dtype);
            return refuse(format!("got {given} weights, declared as {declared}"));
        }
        Ok(())
    }

    /// Updates one run of a leased subgroup. A master plane starts from the caller's weights when
    /// its parameter is updated for the first time.
    fn update_run(
        &self,
        lease: &mut WriteLease,
        group_elems: u64,
        run: &Run,
        scalars: &Scalars,
        segment: Segment<'_>,
    ) -> Result<()> {
        let range = run.start as usize..(run.start + run.range.end - run.range.start) as usize;
        let planes = self.plan.precision.planes(self.plan.options.hyper.amsgrad);
        let (mut p, mut m, mut v, mut vmax) = (None, None, None, None);
        let mut rest: &mut [u8] = lease;
        let mut at = 0;
        for (index, plane) in planes.iter().enumerate() {
            let bytes = plane_range(index, group_elems);
            let (head, tail) = rest.split_at_mut(bytes.end - at);
            let values: &mut [f32] = cast_slice_mut(&mut head[bytes.start - at..]);
            let slot = match plane {
                Plane::P => &mut p,
                Plane::M => &mut m,
                Plane::V => &mut v,
                Plane::VMax => &mut vmax,
            };
            *slot = Some(&mut values[range.clone()]);
            (rest, at) = (tail, bytes.end);
        }
        let Segment { gradient, weight } = segment;
        if let (0, Some(p)) = (self.counts[run.param], &mut p) {
            kernel::widen(weight.as_input(), p)?;
        }
        let (Some(m), Some(v)) = (m, v) else { return Ok(()) };
        self.run_kernel(scalars, p, weight, gradient, |p| Planes { p, m, v, vmax })
    }

    fn run_kernel<'a>(
        &self,
        scalars: &Scalars,
        p: Option<&'a mut [f32]>,
        weight: WeightMut<'a>,
        gradient: Input<'a>,
        planes: impl FnOnce(&'a mut [f32]) -> Planes<'a>,
    ) -> Result<()> {
        match (p, weight) {
            (Some(p), weight) => {
                self.team.update(scalars, planes(p), gradient, weight.into_output())?;
            }
            (None, WeightMut::F32(weight)) => {
                self.team.update(scalars, planes(weight), gradient, Output::None)?;
            }
            // `check` has refused this already: the plan takes weights as the master in fp32 only.
            (None, WeightMut::Bf16(_) | WeightMut::F16(_)) => {}
        }
        Ok(())
    }

    fn report(
        &self,
        step: u64,
        elapsed: Duration,
        todo: &[usize],
        (before, after): (&Stats, &Stats),
        times: &Times,
    ) -> StepReport {
        let counted = after.counters.since(&before.counters);
        let updated = Moved {
            subgroups: todo.len() as u64,
            bytes: todo.iter().map(|index| self.plan.subgroup_bytes[*index]).sum(),
        };
        let reads = Moved { subgroups: counted.loads, bytes: counted.load_bytes };
        let writes = Moved { subgroups: counted.write_backs, bytes: counted.write_back_bytes };
        let fresh = Moved { subgroups: counted.zero_fills, bytes: counted.zero_fill_bytes };
        let hits = Moved {
            subgroups: updated.subgroups.saturating_sub(reads.subgroups + fresh.subgroups),
            bytes: updated.bytes.saturating_sub(reads.bytes + fresh.bytes),
        };
        let paths = before.paths.iter().zip(&after.paths);
        StepReport {
            step,
            elapsed,
            elements: todo.iter().map(|index| self.plan.subgroups[*index].elems).sum(),
            updated,
            reads,
            writes,
            hits,
            paths: paths
                .map(|(b, a)| (a.read_bytes - b.read_bytes, a.written_bytes - b.written_bytes))
                .collect(),
            waiting_on_reads: times.reads,
            computing: times.computing,
            waiting_on_writes: times.writes,
        }
    }
}
