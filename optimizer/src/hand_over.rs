//! What a caller hands over for a step, looked at before anything is changed: that it fits, that no
//! two parameters share memory, and that split weights are as they were left.

use std::ops::Range;

use tensortier_storage::codec::checksum;

use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::precision::StatePrecision;
use crate::step_io::{Gradient, Segment, StepIo, Weight, WeightMut};
use crate::strides::Strides;
use crate::subgroup::{BLOCK_ELEMS, Run};
use crate::ties::Layout;

/// Where the weights of a run lie, or of all of a parameter if they are strided.
struct Place {
    param: usize,
    addresses: Range<usize>,
    layout: Layout,
    strided: bool,
}

impl Optimizer {
    /// Looks at everything that the subgroups `todo` will be handed.
    pub(crate) fn check_all(
        &self,
        todo: &[usize],
        active: &[bool],
        io: &mut dyn StepIo,
    ) -> Result<()> {
        self.check_each(todo, active, io, Self::check)
    }

    /// Looks at all weights, whoever has a gradient.
    pub(crate) fn check_all_weights(&self, io: &mut dyn StepIo) -> Result<()> {
        let todo: Vec<usize> = (0..self.plan.subgroups.len()).collect();
        let all = vec![true; self.plan.params.len()];
        self.check_each(&todo, &all, io, Self::check_weight)
    }

    fn check_each(
        &self,
        todo: &[usize],
        active: &[bool],
        io: &mut dyn StepIo,
        look: impl Fn(&Self, &Run, &Segment<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut places: Vec<Place> = Vec::new();
        for run in todo.iter().flat_map(|index| &self.plan.subgroups[*index].runs) {
            if active[run.param] {
                let segment = io.segment(run.param, run.range.clone());
                look(self, run, &segment)?;
                let place = Place::of(run.param, &segment.weight);
                // The runs of one strided parameter are handed its whole storage each.
                let known = |last: &Place| last.strided && last.param == place.param;
                if !places.last().is_some_and(known) {
                    places.push(place);
                }
            }
        }
        self.check_ties(places)
    }

    /// Refuses a segment that does not fit its run.
    pub(crate) fn check(&self, run: &Run, segment: &Segment<'_>) -> Result<()> {
        let param = &self.plan.params[run.param];
        let elems = (run.range.end - run.range.start) as usize;
        let refuse = |why: String| Err(Error::Parameter { param: param.name.clone(), why });
        match &segment.gradient {
            Gradient::None => {
                return refuse(String::from("has a gradient that is not handed over"));
            }
            Gradient::Elements(raw) if raw.len() != elems => {
                let got = raw.len();
                return refuse(format!("elements {:?} got a gradient of {got}", run.range));
            }
            Gradient::Elements(_) => {}
            Gradient::Stored => {
                if let Some(why) = self.gradients.taken_in_part(run.param) {
                    return refuse(why);
                }
                if let Some(block) = self.gradients.params[run.param].missing() {
                    let from = block as u64 * BLOCK_ELEMS;
                    return refuse(format!(
                        "its gradient from element {from} on was not handed over in every \
                         micro-batch"
                    ));
                }
            }
            Gradient::Strided(raw, strides) => {
                if let Err(why) = strides.check(&param.shape(), raw.len()) {
                    return refuse(format!("its gradient has {why}"));
                }
            }
        }
        self.check_weight(run, segment)
    }

    /// Refuses weights that do not fit their run.
    pub(crate) fn check_weight(&self, run: &Run, segment: &Segment<'_>) -> Result<()> {
        let param = &self.plan.params[run.param];
        let elems = (run.range.end - run.range.start) as usize;
        let refuse = |why: String| Err(Error::Parameter { param: param.name.clone(), why });
        match &segment.weight {
            Weight::Elements(raw) if raw.len() != elems => {
                return refuse(format!("elements {:?} got weights of {}", run.range, raw.len()));
            }
            Weight::Elements(_) => {}
            Weight::Strided(raw, strides) => {
                if let Err(why) = strides.check(&param.shape(), raw.len()) {
                    return refuse(format!("its weights have {why}"));
                }
                if strides.overlaps() {
                    let strides = strides.strides;
                    return refuse(format!(
                        "its weights share places with each other (strides {strides:?}); make \
                         them contiguous"
                    ));
                }
            }
        }
        let given = segment.weight.stored().dtype();
        if given != param.weight_dtype {
            return refuse(format!("got {given} weights, declared as {}", param.weight_dtype));
        }
        Ok(())
    }

    /// Refuses weights that two runs share: they would be updated twice.
    fn check_ties(&self, mut places: Vec<Place>) -> Result<()> {
        places.retain(|place| !place.addresses.is_empty());
        places.sort_unstable_by_key(|place| place.addresses.start);
        // Of those before, the ones that reach further: strided storages may hold others between.
        let mut open: Vec<&Place> = Vec::new();
        for place in &places {
            open.retain(|other| other.addresses.end > place.addresses.start);
            for other in &open {
                let one_storage = other.param == place.param && other.strided && place.strided;
                if !one_storage && other.layout.overlaps(&place.layout) {
                    let name = |place: &Place| self.plan.params[place.param].name.clone();
                    return Err(Error::Tied { first: name(other), second: name(place) });
                }
            }
            open.push(place);
        }
        Ok(())
    }

    /// Refuses weights that are half of a split master and were changed since they were written.
    pub(crate) fn check_weights(
        &self,
        todo: &[usize],
        active: &[bool],
        io: &mut dyn StepIo,
    ) -> Result<()> {
        let mut hashes = Vec::new();
        for run in self.written_weights(todo, active, io.spans_runs()) {
            let first = (run.range.start / BLOCK_ELEMS) as usize;
            let blocks = (run.range.end - run.range.start).div_ceil(BLOCK_ELEMS) as usize;
            hashes.resize(blocks, 0);
            let segment = io.segment(run.param, run.range.clone());
            self.check_weight(&run, &segment)?;
            self.hash_weights(&segment.weight, run.range, &mut hashes);
            if hashes != self.progress[run.param].hashes[first..first + blocks] {
                let param = self.plan.params[run.param].name.clone();
                return Err(Error::WeightsChanged { param });
            }
        }
        Ok(())
    }

    /// Returns the runs in the subgroups of `todo` whose weights are half of a split master and were
    /// written. If they may `span` runs, those that touch are one: threads are woken once for them.
    fn written_weights(&self, todo: &[usize], active: &[bool], span: bool) -> Vec<Run> {
        let all = todo.iter().flat_map(|index| &self.plan.subgroups[*index].runs);
        let is_written = |run: &&Run| {
            let split = self.plan.forms[run.param].precision == StatePrecision::SplitMaster;
            split && active[run.param] && !self.progress[run.param].fresh
        };
        let mut runs: Vec<_> = all.filter(is_written).cloned().collect();
        runs.sort_unstable_by_key(|run| (run.param, run.range.start));
        runs.dedup_by(|next, last| {
            let touch = span && next.param == last.param && next.range.start == last.range.end;
            if touch {
                last.range.end = next.range.end;
            }
            touch
        });
        runs
    }

    /// Fills `hashes`, one for each block, with those of weights `range`.
    fn hash_weights(&self, weight: &Weight<'_>, range: Range<u64>, hashes: &mut [u64]) {
        match weight {
            Weight::Elements(WeightMut::Bf16(raw)) => self.hash_elements(raw, hashes),
            Weight::Strided(WeightMut::Bf16(raw), strides) => {
                let mut block = Vec::new();
                for (index, hash) in hashes.iter_mut().enumerate() {
                    let start = range.start + index as u64 * BLOCK_ELEMS;
                    let end = (start + BLOCK_ELEMS).min(range.end);
                    strides.gather(raw, start..end, &mut block);
                    *hash = hash_block(&block);
                }
            }
            // The plan splits bf16 weights alone, and the types were checked.
            Weight::Elements(_) | Weight::Strided(..) => {}
        }
    }

    /// Fills `hashes`, one for each block, with those of contiguous weights.
    pub(crate) fn hash_elements(&self, raw: &[u16], hashes: &mut [u64]) {
        self.team.each_block(raw.len(), hashes, |block| hash_block(&raw[block]));
    }
}

fn hash_block(block: &[u16]) -> u64 {
    checksum(bytemuck::cast_slice(block))
}

impl Place {
    /// Returns where weights lie that were checked.
    fn of(param: usize, weight: &Weight<'_>) -> Self {
        let stored = weight.stored();
        let (addresses, width) = (stored.addresses(), stored.dtype().bytes());
        let (dims, strided) = match weight {
            Weight::Elements(raw) => (vec![(raw.len() as u64, width)], false),
            Weight::Strided(_, Strides { shape, strides }) => {
                let dim = |(extent, stride): (&u64, &u64)| (*extent, stride.saturating_mul(width));
                (shape.iter().zip(*strides).map(dim).collect(), true)
            }
        };
        let layout = Layout { start: addresses.start, width, dims };
        Place { param, addresses, layout, strided }
    }
}
