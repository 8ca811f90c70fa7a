//! Updating one leased subgroup: the caller's gradients and weights, run by run, and the planes that
//! lie in the chunk.

use std::ops::Range;
use std::time::Instant;

use bytemuck::cast_slice_mut;
use tensortier_storage::store::{ObjectRef, WriteLease};

use crate::error::Result;
use crate::gathered::Gathered;
use crate::job::{Rounded, Split, WithMaster};
use crate::kernel::{
    self, HalfWeights, Input, Output, Planes, Scalars, SplitPlanes, Stochastic, WeightPlanes,
};
use crate::optimizer::{Optimizer, Progress};
use crate::options::Rounding;
use crate::precision::{Plane, StatePrecision};
use crate::report::Times;
use crate::step_io::{Gradient, Segment, StepIo, Weight, WeightMut};
use crate::subgroup::{BLOCK_ELEMS, Run, Subgroup};

/// How much of a strided run is gathered at a time, in elements: whole blocks that stay in a cache.
pub(crate) const TILE_ELEMS: u64 = BLOCK_ELEMS;

/// The planes of a run, or of a part of it; which there are depends on its form.
#[derive(Default)]
pub(crate) struct StoredPlanes<'a> {
    pub(crate) p: Option<&'a mut [f32]>,
    pub(crate) lo: Option<&'a mut [u16]>,
    pub(crate) m: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
    pub(crate) vmax: Option<&'a mut [f32]>,
}

impl Optimizer {
    /// Leases a subgroup and updates its runs that have a gradient.
    pub(crate) fn update_subgroup(
        &mut self,
        index: usize,
        scalars: &[Option<Scalars>],
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<()> {
        let gradients = match self.gradients.objects[index].clone() {
            Some(object) => Some((self.lease(&object, times)?, object)),
            None => None,
        };
        let stored = gradients.as_ref().map(|(lease, _)| lease);
        if index < self.plan.resident {
            // Taken out meanwhile: nobody else looks at it before it is put back.
            let mut leases = std::mem::take(&mut self.resident);
            let outcome =
                self.update_leased(index, (&mut leases[index], stored), scalars, io, times);
            self.resident = leases;
            outcome?;
        } else {
            let mut lease = self.lease(&self.objects[index].clone(), times)?;
            self.update_leased(index, (&mut lease, stored), scalars, io, times)?;
        }
        if let Some((_lease, object)) = gradients {
            self.gradients.objects[index] = None;
            // Before its lease ends, so that it is never written. A store that fails here fails the
            // next lease too, which says so.
            let _ = self.store.delete(&object);
        }
        Ok(())
    }

    fn lease(&self, object: &ObjectRef, times: &mut Times) -> Result<WriteLease> {
        let lease = self.store.lease_write(object, 0).wait()?;
        times.writes += lease.waits().memory;
        times.reads += lease.waits().arrival;
        Ok(lease)
    }

    /// Updates the runs of a leased subgroup. If one fails, those before it are remembered, so that
    /// they are not updated twice when the step is taken up again.
    fn update_leased(
        &mut self,
        index: usize,
        (lease, gradients): (&mut WriteLease, Option<&WriteLease>),
        scalars: &[Option<Scalars>],
        io: &mut dyn StepIo,
        times: &mut Times,
    ) -> Result<()> {
        let begin = Instant::now();
        let partial = self.unfinished.as_mut().and_then(|it| it.partial.remove(&index));
        let first = partial.unwrap_or(0);
        let runs = self.plan.subgroups[index].runs.len();
        let mut outcome = Ok(());
        for number in first..runs {
            outcome = self.update_run((index, number), (lease, gradients), scalars, io);
            if outcome.is_err() {
                if let Some(unfinished) = &mut self.unfinished {
                    unfinished.partial.insert(index, number);
                }
                break;
            }
        }
        times.computing += begin.elapsed();
        outcome
    }

    /// Updates one run of a leased subgroup, if its parameter takes part in the step.
    fn update_run(
        &mut self,
        (index, number): (usize, usize),
        (chunk, gradients): (&mut [u8], Option<&WriteLease>),
        scalars: &[Option<Scalars>],
        io: &mut dyn StepIo,
    ) -> Result<()> {
        let group = &self.plan.subgroups[index];
        let run = &group.runs[number];
        let Some(scalars) = &scalars[run.param] else { return Ok(()) };
        let mut segment = io.segment(run.param, run.range.clone());
        self.check(run, &segment)?;
        if let Gradient::Stored = segment.gradient {
            segment.gradient = self.stored_gradient((index, run), gradients).into();
        }
        let mut stored = StoredPlanes::of(chunk, group, run);
        let (param, first) = (run.param, (run.range.start / BLOCK_ELEMS) as usize);
        let mut hashes = Vec::new();
        if self.plan.forms[param].precision == StatePrecision::SplitMaster {
            hashes.resize((run.range.end - run.range.start).div_ceil(BLOCK_ELEMS) as usize, 0);
        }
        match segment {
            Segment {
                gradient: Gradient::Elements(gradient),
                weight: Weight::Elements(weight),
            } => {
                let (whole, both) = (run.range.clone(), (gradient, weight));
                self.update_tile(run, whole, scalars, stored, both, &mut hashes)?;
            }
            segment => self.update_strided(run, scalars, &mut stored, segment, &mut hashes)?,
        }
        let known = &mut self.progress[param].hashes;
        known.iter_mut().skip(first).zip(hashes).for_each(|(known, hash)| *known = hash);
        Ok(())
    }

    /// Updates a run of which gradient or weights are strided, a tile at a time.
    fn update_strided(
        &self,
        run: &Run,
        scalars: &Scalars,
        stored: &mut StoredPlanes<'_>,
        segment: Segment<'_>,
        hashes: &mut [u64],
    ) -> Result<()> {
        let Segment { gradient, mut weight } = segment;
        let (mut gradients, mut weights) = (Gathered::default(), Gathered::default());
        for start in run.range.clone().step_by(TILE_ELEMS as usize) {
            let tile = start..(start + TILE_ELEMS).min(run.range.end);
            let at = (tile.start - run.range.start) as usize;
            let within = at..at + (tile.end - tile.start) as usize;
            let own = hashes.get_mut(at / BLOCK_ELEMS as usize..).unwrap_or_default();
            let planes = stored.part(within.clone());
            let gradient = match gradient {
                Gradient::Elements(raw) => raw.part(within.clone()),
                Gradient::Strided(raw, strides) => gradients.gradient(raw, &strides, tile.clone()),
                Gradient::None | Gradient::Stored => return Ok(()),
            };
            match &mut weight {
                Weight::Elements(raw) => {
                    let weight = raw.part(within);
                    self.update_tile(run, tile, scalars, planes, (gradient, weight), own)?;
                }
                Weight::Strided(raw, strides) => {
                    let weight = weights.weight(raw, strides, tile.clone());
                    self.update_tile(run, tile.clone(), scalars, planes, (gradient, weight), own)?;
                    weights.put_back(raw, strides, tile);
                }
            }
        }
        Ok(())
    }

    /// Updates contiguous elements `range` of a parameter. A master starts from the caller's weights
    /// when its parameter is updated for the first time.
    fn update_tile(
        &self,
        run: &Run,
        range: Range<u64>,
        scalars: &Scalars,
        stored: StoredPlanes<'_>,
        (gradient, weight): (Input<'_>, WeightMut<'_>),
        hashes: &mut [u64],
    ) -> Result<()> {
        let fresh = self.progress[run.param].fresh;
        match (stored, weight) {
            (StoredPlanes { p: Some(p), m, v, vmax, .. }, weight) => {
                if fresh {
                    kernel::widen(weight.as_input(), p)?;
                }
                let planes = Planes { p, m, v, vmax };
                let out = weight.into_output();
                self.team.update(scalars, WithMaster { planes, gradient, out })?;
            }
            (StoredPlanes { lo: Some(lo), m, v, vmax, .. }, WeightMut::Bf16(hi)) => {
                if fresh {
                    lo.fill(0);
                    kernel::split::unmark(v);
                }
                let planes = SplitPlanes { lo, m, v, vmax, hi: &mut *hi };
                self.team.update(scalars, Split { planes, gradient })?;
                let blocks = hi.len().div_ceil(BLOCK_ELEMS as usize);
                self.hash_elements(hi, &mut hashes[..blocks]);
            }
            (StoredPlanes { m, v, vmax, .. }, WeightMut::F32(p)) => {
                let planes = Planes { p, m, v, vmax };
                self.team.update(scalars, WithMaster { planes, gradient, out: Output::None })?;
            }
            (stored, WeightMut::Bf16(raw)) => {
                self.update_rounded(
                    run,
                    range,
                    scalars,
                    stored,
                    (gradient, HalfWeights::Bf16(raw)),
                )?;
            }
            (stored, WeightMut::F16(raw)) => {
                self.update_rounded(
                    run,
                    range,
                    scalars,
                    stored,
                    (gradient, HalfWeights::F16(raw)),
                )?;
            }
        }
        Ok(())
    }

    /// Updates weights that are rounded stochastically, a stretch of neighbours in the whole tensor
    /// at a time: the chance of an element follows from where it lies there.
    fn update_rounded(
        &self,
        run: &Run,
        range: Range<u64>,
        scalars: &Scalars,
        mut stored: StoredPlanes<'_>,
        (gradient, mut weights): (Input<'_>, HalfWeights<'_>),
    ) -> Result<()> {
        let Rounding::Stochastic { seed } = self.plan.options.rounding else { return Ok(()) };
        let Progress { updates, identity, .. } = self.progress[run.param];
        let key = Stochastic::key(seed, updates + 1, identity);
        for stretch in self.plan.params[run.param].stretches(range.clone()) {
            let start = (stretch.local - range.start) as usize;
            let within = start..start + stretch.elems as usize;
            let part = stored.part(within.clone());
            let weights = match &mut weights {
                HalfWeights::Bf16(raw) => HalfWeights::Bf16(&mut raw[within.clone()]),
                HalfWeights::F16(raw) => HalfWeights::F16(&mut raw[within.clone()]),
            };
            let planes = WeightPlanes { weights, m: part.m, v: part.v, vmax: part.vmax };
            let chance = Stochastic { key, first: stretch.global };
            let gradient = gradient.part(within);
            self.team.update(scalars, Rounded { planes, gradient, chance })?;
        }
        Ok(())
    }
}

impl<'a> StoredPlanes<'a> {
    /// Takes the planes of `run` out of its subgroup's chunk.
    pub(crate) fn of(chunk: &'a mut [u8], group: &Subgroup, run: &Run) -> Self {
        let mut stored = StoredPlanes::default();
        let (mut rest, mut at) = (chunk, 0);
        for (plane, bytes) in group.planes(run) {
            let (head, tail) = rest.split_at_mut(bytes.end - at);
            let raw = &mut head[bytes.start - at..];
            match plane {
                Plane::Lo => stored.lo = Some(cast_slice_mut(raw)),
                Plane::P => stored.p = Some(cast_slice_mut(raw)),
                Plane::M => stored.m = cast_slice_mut(raw),
                Plane::V => stored.v = cast_slice_mut(raw),
                Plane::VMax => stored.vmax = Some(cast_slice_mut(raw)),
            }
            (rest, at) = (tail, bytes.end);
        }
        stored
    }

    /// Returns a part of each plane, in elements.
    pub(crate) fn part(&mut self, range: Range<usize>) -> StoredPlanes<'_> {
        StoredPlanes {
            p: self.p.as_deref_mut().map(|plane| &mut plane[range.clone()]),
            lo: self.lo.as_deref_mut().map(|plane| &mut plane[range.clone()]),
            m: &mut self.m[range.clone()],
            v: &mut self.v[range.clone()],
            vmax: self.vmax.as_deref_mut().map(|plane| &mut plane[range]),
        }
    }
}
