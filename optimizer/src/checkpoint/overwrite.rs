//! Overwriting an optimizer: subgroup by subgroup, state in the store and weights with the caller, from
//! whatever holds another.

use std::ops::Range;

use tensortier_storage::store::ObjectRef;

use crate::error::{Error, Result};
use crate::gathered::Gathered;
use crate::kernel::split;
use crate::optimizer::Optimizer;
use crate::order::Eviction;
use crate::param::Param;
use crate::step_io::{StepIo, Weight, WeightMut};
use crate::subgroup::{BLOCK_ELEMS, Run};
use crate::update::StoredPlanes;

use super::tensors::Kind;

/// The stamp of a subgroup that is being overwritten.
const WRITTEN: u64 = u64::MAX;

/// What an optimizer is overwritten with. It was looked at before: it fits the plan.
pub(super) trait Incoming {
    /// Steps that were applied.
    fn steps(&self) -> u64;

    /// How often a parameter was updated; without an update it has no state.
    fn updates(&self, index: usize) -> u64;

    /// Whether it has a master of its own.
    fn master(&self, index: usize) -> bool;

    /// Fills `out` with elements `range` of one kind of a parameter's state.
    fn state(
        &mut self,
        tensor: (usize, Kind),
        param: &Param,
        range: Range<u64>,
        out: &mut [f32],
    ) -> Result<()>;

    /// Overwrites the weights `range` of a parameter, if it has any.
    fn weights(
        &mut self,
        index: usize,
        param: &Param,
        range: Range<u64>,
        out: WeightMut<'_>,
    ) -> Result<()>;
}

impl Optimizer {
    /// Overwrites everything. What the optimizer held before is lost, an unfinished step and gradients
    /// for the next one too.
    ///
    /// # Errors
    /// [`Error::HalfImported`].
    pub(super) fn replace(&mut self, saved: &mut dyn Incoming, io: &mut dyn StepIo) -> Result<()> {
        // A step that stopped inside a subgroup has changed it without a stamp.
        let untouched = self.unfinished.take().is_none() && self.half_imported.is_none();
        let old = std::mem::take(&mut self.stamps);
        let mut stamps: Vec<u64> =
            old.into_iter().map(|stamp| if untouched { stamp } else { WRITTEN }).collect();
        let subgroups = stamps.len() as u64;
        self.half_imported = Some(0);
        let outcome = self.overwrite(saved, io, &mut stamps);
        self.stamps = stamps;
        if let Err(cause) = outcome {
            let (done, cause) = (self.half_imported.unwrap_or(0), Some(Box::new(cause)));
            return Err(Error::HalfImported { done, subgroups, cause });
        }
        self.settle(saved);
        Ok(())
    }

    /// Overwrites all subgroups, those last that the next step uses first.
    fn overwrite(
        &mut self,
        saved: &mut dyn Incoming,
        io: &mut dyn StepIo,
        stamps: &mut [u64],
    ) -> Result<()> {
        self.forget_gradients()?;
        (self.announced, self.begun) = (None, None);
        let order = |step: u64| self.plan.options.order.of_step(step, self.plan.subgroups.len());
        let (this, next) = (order(saved.steps()), order(saved.steps() + 1));
        let has_state = |index: usize| {
            self.plan.subgroups[index].runs.iter().any(|run| saved.updates(run.param) > 0)
        };
        for (index, stamp) in stamps.iter_mut().enumerate() {
            *stamp = if *stamp > 0 || has_state(index) { WRITTEN } else { 0 };
        }
        if self.plan.options.eviction == Eviction::Schedule {
            let coming = |order: &[usize]| -> Vec<ObjectRef> {
                let moving = order
                    .iter()
                    .filter(|index| **index >= self.plan.resident && stamps[**index] == WRITTEN);
                moving.map(|index| self.objects[*index].clone()).collect()
            };
            let elsewhere = self.store.stats().host.budget.saturating_sub(self.plan.capacity());
            self.schedule.declare(&coming(&this), &coming(&next), elsewhere)?;
        }
        for (done, index) in this.into_iter().enumerate() {
            self.half_imported = Some(done as u64);
            self.overwrite_subgroup(index, stamps[index] == WRITTEN, saved, io)?;
        }
        self.half_imported = Some(stamps.len() as u64);
        Ok(self.store.barrier()?)
    }

    /// Makes what was overwritten the state of the optimizer.
    fn settle(&mut self, saved: &dyn Incoming) {
        self.steps = saved.steps();
        for (stamp, group) in self.stamps.iter_mut().zip(&self.plan.subgroups) {
            let has_state = group.runs.iter().any(|run| saved.updates(run.param) > 0);
            *stamp = if has_state { self.steps } else { 0 };
        }
        for (index, progress) in self.progress.iter_mut().enumerate() {
            progress.updates = saved.updates(index);
            progress.fresh = !saved.master(index);
        }
        self.half_imported = None;
    }

    /// Overwrites a subgroup: its state if there is any or was any, and the weights of its runs.
    fn overwrite_subgroup(
        &mut self,
        index: usize,
        state: bool,
        saved: &mut dyn Incoming,
        io: &mut dyn StepIo,
    ) -> Result<()> {
        if !state {
            return self.overwrite_runs(index, None, saved, io);
        }
        if index < self.plan.resident {
            // Taken out meanwhile: nobody else looks at it before it is put back.
            let mut leases = std::mem::take(&mut self.resident);
            let outcome = self.overwrite_runs(index, Some(&mut leases[index]), saved, io);
            self.resident = leases;
            return outcome;
        }
        let mut lease = self.store.lease_write(&self.objects[index], 0).wait()?;
        self.overwrite_runs(index, Some(&mut lease), saved, io)
    }

    fn overwrite_runs(
        &mut self,
        index: usize,
        mut chunk: Option<&mut [u8]>,
        saved: &mut dyn Incoming,
        io: &mut dyn StepIo,
    ) -> Result<()> {
        if let Some(chunk) = &mut chunk {
            // What was never updated has no state in the files: it is zero.
            chunk.fill(0);
        }
        let mut hashes = Vec::new();
        for number in 0..self.plan.subgroups[index].runs.len() {
            let group = &self.plan.subgroups[index];
            let run = &group.runs[number];
            hashes.clear();
            hashes.resize((run.range.end - run.range.start).div_ceil(BLOCK_ELEMS) as usize, 0);
            let segment = io.segment(run.param, run.range.clone());
            self.check_weight(run, &segment)?;
            let planes = chunk.as_deref_mut().filter(|_| saved.updates(run.param) > 0);
            let planes = planes.map(|chunk| StoredPlanes::of(chunk, group, run));
            self.overwrite_run(run, planes, segment.weight, saved, &mut hashes)?;
            let (param, first) = (run.param, (run.range.start / BLOCK_ELEMS) as usize);
            let known = self.progress[param].hashes.iter_mut().skip(first);
            known.zip(&hashes).for_each(|(known, hash)| *known = *hash);
        }
        Ok(())
    }

    /// Overwrites one run: its planes, and then its weights, a block at a time.
    fn overwrite_run(
        &self,
        run: &Run,
        mut planes: Option<StoredPlanes<'_>>,
        mut weight: Weight<'_>,
        saved: &mut dyn Incoming,
        hashes: &mut [u64],
    ) -> Result<()> {
        if let Some(planes) = &mut planes {
            self.overwrite_planes(run, planes, saved)?;
        }
        let mut gathered = Gathered::default();
        let starts = run.range.clone().step_by(BLOCK_ELEMS as usize);
        for (start, hash) in starts.zip(hashes) {
            let tile = start..(start + BLOCK_ELEMS).min(run.range.end);
            let at = (start - run.range.start) as usize;
            let within = at..at + (tile.end - tile.start) as usize;
            let planes = planes.as_mut().map(|planes| planes.part(within.clone()));
            let place = (run.param, tile.clone());
            match &mut weight {
                Weight::Elements(raw) => {
                    self.overwrite_weights(place, planes, raw.part(within), saved, hash)?;
                }
                Weight::Strided(raw, strides) => {
                    let part = gathered.weight(raw, strides, tile.clone());
                    self.overwrite_weights(place, planes, part, saved, hash)?;
                    gathered.put_back(raw, strides, tile);
                }
            }
        }
        Ok(())
    }

    /// Overwrites the planes of a run but what a split master has of it.
    fn overwrite_planes(
        &self,
        run: &Run,
        planes: &mut StoredPlanes<'_>,
        saved: &mut dyn Incoming,
    ) -> Result<()> {
        let (param, known) = (run.param, &self.plan.params[run.param]);
        let master = saved.master(param);
        let mut fill =
            |kind, out: &mut [f32]| saved.state((param, kind), known, run.range.clone(), out);
        fill(Kind::ExpAvg, planes.m)?;
        fill(Kind::ExpAvgSq, planes.v)?;
        if let Some(vmax) = planes.vmax.as_deref_mut() {
            fill(Kind::MaxExpAvgSq, vmax)?;
        }
        match planes.p.as_deref_mut() {
            Some(p) if master => fill(Kind::Master, p),
            _ => Ok(()),
        }
    }

    /// Overwrites the weights of one block. A saved master that has no plane of its own is split into
    /// weights and their lower halves, or is the weights.
    fn overwrite_weights(
        &self,
        (param, tile): (usize, Range<u64>),
        planes: Option<StoredPlanes<'_>>,
        weight: WeightMut<'_>,
        saved: &mut dyn Incoming,
        hash: &mut u64,
    ) -> Result<()> {
        let known = &self.plan.params[param];
        let master = saved.master(param);
        match (planes, weight) {
            (Some(StoredPlanes { lo: Some(lo), v, .. }), WeightMut::Bf16(hi)) if master => {
                let mut whole = vec![0.0_f32; hi.len()];
                saved.state((param, Kind::Master), known, tile, &mut whole)?;
                split::split_all(&whole, hi, lo, v)?;
                self.hash_elements(hi, std::slice::from_mut(hash));
                Ok(())
            }
            (Some(StoredPlanes { p: None, .. }), WeightMut::F32(raw)) if master => {
                saved.state((param, Kind::Master), known, tile, raw)
            }
            (_, weight) => saved.weights(param, known, tile, weight),
        }
    }
}
