//! What a caller hands over for a step, looked at before anything is changed: that it fits, that no
//! two parameters share memory, and that split weights are as they were left.

use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::precision::StatePrecision;
use crate::step_io::{Gradient, Segment, StepIo, Weight, WeightMut};
use crate::strides::Strides;
use crate::subgroup::{BLOCK_ELEMS, Run};

/// Where the weights of a run lie.
struct Place {
    addresses: Range<usize>,
    /// Which subgroup and which of its runs.
    run: (usize, usize),
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
        let mut places = Vec::new();
        for index in todo {
            let runs = self.plan.subgroups[*index].runs.iter().enumerate();
            for (number, run) in runs.filter(|(_, run)| active[run.param]) {
                let segment = io.segment(run.param, run.range.clone());
                self.check(run, &segment)?;
                places.push(Place {
                    addresses: segment.weight.stored().addresses(),
                    run: (*index, number),
                    strided: matches!(segment.weight, Weight::Strided(..)),
                });
            }
        }
        self.check_ties(places, io)
    }

    /// Refuses a segment that does not fit its run.
    pub(crate) fn check(&self, run: &Run, segment: &Segment<'_>) -> Result<()> {
        let param = &self.plan.params[run.param];
        let elems = (run.range.end - run.range.start) as usize;
        let refuse = |why: String| Err(Error::Parameter { param: param.name.clone(), why });
        let strided = |strides: &Strides<'_>, len: usize| strides.check(&param.shape(), len);
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
                if let Err(why) = strided(strides, raw.len()) {
                    return refuse(format!("its gradient has {why}"));
                }
            }
        }
        match &segment.weight {
            Weight::Elements(raw) if raw.len() != elems => {
                return refuse(format!("elements {:?} got weights of {}", run.range, raw.len()));
            }
            Weight::Elements(_) => {}
            Weight::Strided(raw, strides) => {
                if let Err(why) = strided(strides, raw.len()) {
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
    fn check_ties(&self, mut places: Vec<Place>, io: &mut dyn StepIo) -> Result<()> {
        places.retain(|place| !place.addresses.is_empty());
        places.sort_unstable_by_key(|place| place.addresses.start);
        // Of those before, the ones that reach furthest: strided storages may hold others between.
        let mut open: Vec<&Place> = Vec::new();
        for place in &places {
            open.retain(|other| other.addresses.end > place.addresses.start);
            for other in &open {
                let (one, two) = (self.run(other), self.run(place));
                // The runs of one strided parameter are handed its whole storage each.
                if one.param == two.param && other.strided && place.strided {
                    continue;
                }
                let tied = !(other.strided || place.strided) || share_a_place((one, two), io);
                if tied {
                    let name = |run: &Run| self.plan.params[run.param].name.clone();
                    return Err(Error::Tied { first: name(one), second: name(two) });
                }
            }
            open.push(place);
        }
        Ok(())
    }

    fn run(&self, place: &Place) -> &Run {
        &self.plan.subgroups[place.run.0].runs[place.run.1]
    }

    /// Refuses weights that are half of a split master and were changed since they were written.
    pub(crate) fn check_weights(
        &self,
        todo: &[usize],
        active: &[bool],
        io: &mut dyn StepIo,
    ) -> Result<()> {
        let mut hashes = Vec::new();
        for run in todo.iter().flat_map(|index| &self.plan.subgroups[*index].runs) {
            let progress = &self.progress[run.param];
            let split = self.plan.forms[run.param].precision == StatePrecision::SplitMaster;
            if !split || !active[run.param] || progress.fresh {
                continue;
            }
            let first = (run.range.start / BLOCK_ELEMS) as usize;
            let blocks = (run.range.end - run.range.start).div_ceil(BLOCK_ELEMS) as usize;
            hashes.resize(blocks, 0);
            let segment = io.segment(run.param, run.range.clone());
            self.hash_weights(&segment.weight, run.range.clone(), &mut hashes);
            if hashes != progress.hashes[first..first + blocks] {
                let param = self.plan.params[run.param].name.clone();
                return Err(Error::WeightsChanged { param });
            }
        }
        Ok(())
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
    XxHash3_64::oneshot(bytemuck::cast_slice(block))
}

/// Returns whether two runs, at least one of them strided, have an element at one address: each
/// element of one is marked, and those of the other looked up.
fn share_a_place((one, two): (&Run, &Run), io: &mut dyn StepIo) -> bool {
    let mut marked = std::collections::HashSet::new();
    each_address(one, io, |address| {
        marked.insert(address);
    });
    let mut shared = false;
    each_address(two, io, |address| shared |= marked.contains(&address));
    shared
}

fn each_address(run: &Run, io: &mut dyn StepIo, mut each: impl FnMut(usize)) {
    let weight = io.segment(run.param, run.range.clone()).weight;
    let (start, width) = {
        let stored = weight.stored();
        (stored.addresses().start, stored.dtype().bytes() as usize)
    };
    match weight {
        Weight::Elements(raw) => (0..raw.len()).for_each(|i| each(start + i * width)),
        Weight::Strided(_, strides) => strides.places(|i| each(start + i * width)),
    }
}
