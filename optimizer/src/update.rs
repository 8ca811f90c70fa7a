//! Updating one leased subgroup: the caller's gradients and weights, run by run, and the planes that
//! lie in the chunk.

use std::time::Instant;

use bytemuck::cast_slice_mut;

use crate::error::{Error, Result};
use crate::kernel::{self, Output, Planes, Scalars};
use crate::optimizer::Optimizer;
use crate::precision::{Plane, plane_range};
use crate::report::Times;
use crate::step_io::{Segment, StepIo, WeightMut};
use crate::subgroup::Run;

/// The planes of one run in its chunk; which there are depends on the state precision.
#[derive(Default)]
struct StoredPlanes<'a> {
    p: Option<&'a mut [f32]>,
    m: Option<&'a mut [f32]>,
    v: Option<&'a mut [f32]>,
    vmax: Option<&'a mut [f32]>,
}

impl Optimizer {
    /// Updates the runs of a subgroup that have a gradient. If one fails, those before it are
    /// remembered, so that they are not updated twice when the step is taken up again.
    pub(crate) fn update_subgroup(
        &mut self,
        index: usize,
        scalars: &[Option<Scalars>],
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<()> {
        let mut lease = self.store.lease_write(&self.objects[index], 0).wait()?;
        times.writes += lease.waits().memory;
        times.reads += lease.waits().arrival;
        let begin = Instant::now();
        let partial = self.unfinished.as_mut().and_then(|unfinished| unfinished.partial.take());
        let first = partial.filter(|(group, _)| *group == index).map_or(0, |(_, runs)| runs);
        let group = &self.plan.subgroups[index];
        let mut outcome = Ok(());
        for (number, run) in group.runs.iter().enumerate().skip(first) {
            let Some(scalars) = &scalars[run.param] else { continue };
            let segment = io.segment(run.param, run.range.clone());
            outcome = self
                .check(run, &segment)
                .and_then(|()| self.update_run(&mut lease, group.elems, run, scalars, segment));
            if outcome.is_err() {
                if let Some(unfinished) = &mut self.unfinished {
                    unfinished.partial = Some((index, number));
                }
                break;
            }
        }
        times.computing += begin.elapsed();
        outcome
    }

    /// Refuses a segment that does not fit its run.
    pub(crate) fn check(&self, run: &Run, segment: &Segment<'_>) -> Result<()> {
        let param = &self.plan.params[run.param];
        let elems = (run.range.end - run.range.start) as usize;
        let refuse = |why: String| Err(Error::Parameter { param: param.name.clone(), why });
        let (gradient, weight) = (segment.gradient.len(), segment.weight.len());
        if gradient != elems {
            return refuse(format!("elements {:?} got a gradient of {gradient}", run.range));
        }
        if weight != elems {
            return refuse(format!("elements {:?} got weights of {weight}", run.range));
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
        chunk: &mut [u8],
        group_elems: u64,
        run: &Run,
        scalars: &Scalars,
        segment: Segment<'_>,
    ) -> Result<()> {
        let planes = self.plan.precision.planes(self.plan.options.hyper.amsgrad);
        let StoredPlanes { mut p, m, v, vmax } = StoredPlanes::of(chunk, planes, group_elems, run);
        let Segment { gradient, weight } = segment;
        if let (0, Some(p)) = (self.counts[run.param], &mut p) {
            kernel::widen(weight.as_input(), p)?;
        }
        // Without a stored master the fp32 weights are it: the plan allows nothing else.
        let (p, out) = match (p, weight) {
            (Some(p), weight) => (p, weight.into_output()),
            (None, WeightMut::F32(weight)) => (weight, Output::None),
            (None, WeightMut::Bf16(_) | WeightMut::F16(_)) => return Ok(()),
        };
        if let (Some(m), Some(v)) = (m, v) {
            self.team.update(scalars, Planes { p, m, v, vmax }, gradient, out)?;
        }
        Ok(())
    }
}

impl<'a> StoredPlanes<'a> {
    /// Lays the stored planes over a chunk and takes the part of each that belongs to `run`.
    fn of(chunk: &'a mut [u8], planes: &[Plane], group_elems: u64, run: &Run) -> Self {
        let range = run.start as usize..(run.start + run.range.end - run.range.start) as usize;
        let mut stored = StoredPlanes::default();
        let (mut rest, mut at) = (chunk, 0);
        for (number, plane) in planes.iter().enumerate() {
            let bytes = plane_range(number, group_elems);
            let (head, tail) = rest.split_at_mut(bytes.end - at);
            let values: &mut [f32] = cast_slice_mut(&mut head[bytes.start - at..]);
            let slot = match plane {
                Plane::P => &mut stored.p,
                Plane::M => &mut stored.m,
                Plane::V => &mut stored.v,
                Plane::VMax => &mut stored.vmax,
            };
            *slot = Some(&mut values[range.clone()]);
            (rest, at) = (tail, bytes.end);
        }
        stored
    }
}
