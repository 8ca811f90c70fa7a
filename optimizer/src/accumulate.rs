//! Handing gradients over before their step, tensor by tensor and micro-batch by micro-batch.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use tensortier_storage::dtype::DType;
use tensortier_storage::store::WriteLease;

use crate::accumulators::Accumulators;
use crate::error::{Error, Result};
use crate::gathered::Gathered;
use crate::kernel::norm::block_sum;
use crate::kernel::{self, Accumulator, Input, Isa, KernelError};
use crate::optimizer::{Optimizer, Unfinished};
use crate::step_io::Gradient;
use crate::subgroup::{BLOCK_ELEMS, Run};
use crate::team::Team;

/// Sums of more micro-batches than this in 16 bits have lost some percent of their precision.
const MOST_16_BIT_BATCHES: u32 = 8;

impl Optimizer {
    /// Takes the gradient of elements `range` of a parameter for the next step, and adds it to what
    /// earlier micro-batches left. Parameters may come in any order, whole or in ranges that begin
    /// and end on blocks of 65,536 elements or at the parameter's end. In the last micro-batch the
    /// norm is summed on the way. The step takes what was handed over where [`crate::StepIo`] says
    /// [`Gradient::Stored`].
    ///
    /// # Errors
    /// [`Error::Parameter`] when the gradient does not fit, [`Error::OutOfRange`]; the store's errors
    /// when gradients are its objects: then the same call goes on where it stopped.
    /// [`Error::Unfinished`] while a step is unfinished that needs what was handed over.
    pub fn accumulate(
        &mut self,
        param: usize,
        range: Range<u64>,
        gradient: Gradient<'_>,
        last_micro_batch: bool,
    ) -> Result<()> {
        self.refuse_half_imported()?;
        if self.unfinished.as_ref().is_some_and(|unfinished| !unfinished.during_backward) {
            return Err(Error::Unfinished { step: self.steps + 1 });
        }
        self.check_gradient(param, &range, &gradient)?;
        let ready = |unfinished: &Unfinished| unfinished.active[param];
        if self.unfinished.as_ref().is_some_and(ready) {
            return Err(Error::Parameter {
                param: self.plan.params[param].name.clone(),
                why: String::from("its gradient was said to be final; finish the step first"),
            });
        }
        let taken = match &self.gradients.partial {
            Some((known, of, taken)) if (*known, of) == (param, &range) => *taken,
            Some((known, ..)) => {
                let name = self.plan.params[*known].name.clone();
                let why = self.gradients.taken_in_part(*known).unwrap_or_default();
                return Err(Error::Parameter { param: name, why });
            }
            None => range.start,
        };
        let piece = |run: &Run| run.range.start.max(taken)..run.range.end.min(range.end);
        let runs = self.runs_of(param).map(|(group, run)| (group, run.clone(), piece(run)));
        let runs: Vec<_> = runs.filter(|(_, _, piece)| piece.start < piece.end).collect();
        for (group, run, piece) in runs {
            let part = Part { gradient, of: range.start, piece: piece.clone(), last_micro_batch };
            if let Err(error) = self.take(group, &run, &part) {
                self.gradients.partial = Some((param, range, piece.start));
                return Err(error);
            }
        }
        self.gradients.partial = None;
        self.warn_of_rounding(param);
        Ok(())
    }

    /// Returns whether all of a parameter's gradient was handed over for the next step.
    pub fn has_accumulated(&self, param: usize) -> bool {
        self.gradients.params.get(param).is_some_and(|received| received.missing().is_none())
    }

    /// Forgets all gradients that were handed over for the next step: after a step was refused, or
    /// micro-batches are to begin anew. A step that is applied or skipped does so by itself.
    ///
    /// # Errors
    /// [`Error::Unfinished`] while a step is unfinished, and the store's errors.
    pub fn clear_gradients(&mut self) -> Result<()> {
        self.refuse_unfinished()?;
        self.forget_gradients()
    }

    /// Forgets what was handed over, also what of it is an object of the store.
    pub(crate) fn forget_gradients(&mut self) -> Result<()> {
        self.gradients.clear();
        for object in self.gradients.objects.iter_mut().filter_map(Option::take) {
            self.store.delete(&object)?;
        }
        Ok(())
    }

    /// Returns the bytes of memory that gradients take beside the store's budget.
    pub fn gradient_memory(&self) -> u64 {
        self.gradients.memory_bytes()
    }

    fn check_gradient(
        &self,
        param: usize,
        range: &Range<u64>,
        gradient: &Gradient<'_>,
    ) -> Result<()> {
        let Some(known) = self.plan.params.get(param) else {
            let why = format!("there are {}", self.plan.params.len());
            return Err(Error::OutOfRange { what: format!("parameter number {param}"), why });
        };
        let elems = known.elements().unwrap_or(0);
        let refuse = |why: String| Err(Error::Parameter { param: known.name.clone(), why });
        if range.start > range.end || range.end > elems {
            return refuse(format!("elements {range:?} do not exist: it has {elems}"));
        }
        let edge = |at: u64| at.is_multiple_of(BLOCK_ELEMS) || at == elems;
        if !edge(range.start) || !edge(range.end) {
            return refuse(format!(
                "elements {range:?} do not begin and end on blocks of {BLOCK_ELEMS} or at its end"
            ));
        }
        match gradient {
            Gradient::Elements(raw) if raw.len() as u64 != range.end - range.start => {
                refuse(format!("elements {range:?} got a gradient of {}", raw.len()))
            }
            Gradient::Strided(raw, strides) => match strides.check(&known.shape(), raw.len()) {
                Ok(()) => Ok(()),
                Err(why) => refuse(format!("its gradient has {why}")),
            },
            Gradient::Elements(_) => Ok(()),
            Gradient::None | Gradient::Stored => {
                refuse(String::from("was handed over no gradient"))
            }
        }
    }

    /// Takes a part of a gradient that lies in one run of one subgroup.
    fn take(&mut self, group: usize, run: &Run, part: &Part<'_>) -> Result<()> {
        let Part { piece, .. } = part;
        let first = (piece.start / BLOCK_ELEMS) as usize;
        let blocks = first..first + (piece.end - piece.start).div_ceil(BLOCK_ELEMS) as usize;
        let dtype = self.gradients.options.dtype;
        let counts = self.gradients.params[run.param].batches[blocks.clone()].to_vec();
        let results = if self.gradients.in_memory() {
            let elems = self.plan.params[run.param].elements().unwrap_or(0);
            let bytes = self.gradients.bytes_mut(run.param, piece, elems);
            part.add(&self.team, dtype, bytes, &counts)
        } else {
            let mut lease = self.gradient_lease(group)?;
            let place = self.gradients.place(&self.plan.subgroups[group], run);
            let start = place.start + ((piece.start - run.range.start) * dtype.bytes()) as usize;
            let end = start + ((piece.end - piece.start) * dtype.bytes()) as usize;
            part.add(&self.team, dtype, &mut lease[start..end], &counts)
        };
        let received = &mut self.gradients.params[run.param];
        for (result, block) in results.into_iter().zip(blocks) {
            received.sums[block] = result?;
            received.batches[block] += 1;
        }
        Ok(())
    }

    /// Leases the object of a subgroup's gradients, made if it is not there.
    fn gradient_lease(&mut self, group: usize) -> Result<WriteLease> {
        let object = match &self.gradients.objects[group] {
            Some(object) => object.clone(),
            None => {
                let key = format!("{}/gradient/{group:06}", self.plan.options.name);
                let dtype = self.gradients.options.dtype;
                let elems = self.plan.subgroups[group].elems;
                let object =
                    self.store.create_chunked(&key, dtype, &[elems], elems * dtype.bytes())?;
                self.gradients.objects[group].insert(object).clone()
            }
        };
        Ok(self.store.lease_write(&object, 0).wait()?)
    }

    fn warn_of_rounding(&mut self, param: usize) {
        let Accumulators { options, params, warned, .. } = &mut self.gradients;
        let batches = params[param].batches.iter().copied().max().unwrap_or(0);
        if batches > MOST_16_BIT_BATCHES && options.dtype != DType::F32 && !*warned {
            *warned = true;
            tracing::warn!(
                batches,
                "gradients summed in {} lose precision over more than {MOST_16_BIT_BATCHES} \
                 micro-batches; sum them in F32",
                options.dtype
            );
        }
    }

    /// Returns what was handed over of a run of a subgroup, given the lease on the subgroup's
    /// gradients if they are in the store.
    pub(crate) fn stored_gradient<'a>(
        &'a self,
        (group, run): (usize, &Run),
        lease: Option<&'a WriteLease>,
    ) -> Input<'a> {
        match lease {
            Some(lease) => {
                let place = self.gradients.place(&self.plan.subgroups[group], run);
                crate::accumulators::elements(self.gradients.options.dtype, &lease[place])
            }
            None => self.gradients.elements(run.param, &run.range),
        }
    }
}

/// A part of a gradient that is handed over.
struct Part<'a> {
    gradient: Gradient<'a>,
    /// Which of the parameter's elements the gradient begins with, if it is contiguous.
    of: u64,
    piece: Range<u64>,
    last_micro_batch: bool,
}

impl Part<'_> {
    /// Adds it to accumulators of `dtype`, block by block; `counts` says how many micro-batches each
    /// holds. Returns each block's sum of squares, if it is the last time.
    fn add(
        &self,
        team: &Team,
        dtype: DType,
        bytes: &mut [u8],
        counts: &[u32],
    ) -> Vec<Result<Option<f64>, KernelError>> {
        let mut results = vec![Ok(None); counts.len()];
        let isa = team.isa();
        match dtype {
            DType::F32 => {
                team.each_block_mut::<f32, _>(
                    cast_slice_mut(bytes),
                    &mut results,
                    |i, into, out| {
                        *out = self.add_block(isa, i, counts[i], Accumulator::F32(into));
                    },
                );
            }
            DType::F16 => {
                team.each_block_mut::<u16, _>(
                    cast_slice_mut(bytes),
                    &mut results,
                    |i, into, out| {
                        *out = self.add_block(isa, i, counts[i], Accumulator::F16(into));
                    },
                );
            }
            _ => {
                team.each_block_mut::<u16, _>(
                    cast_slice_mut(bytes),
                    &mut results,
                    |i, into, out| {
                        *out = self.add_block(isa, i, counts[i], Accumulator::Bf16(into));
                    },
                );
            }
        }
        results
    }

    fn add_block(
        &self,
        isa: Isa,
        index: usize,
        count: u32,
        mut into: Accumulator<'_>,
    ) -> Result<Option<f64>, KernelError> {
        let start = self.piece.start + index as u64 * BLOCK_ELEMS;
        let block = start..start + into.len() as u64;
        let mut gathered = Gathered::default();
        let from = match self.gradient {
            Gradient::Elements(raw) => {
                raw.part((block.start - self.of) as usize..(block.end - self.of) as usize)
            }
            Gradient::Strided(raw, strides) => gathered.gradient(raw, &strides, block),
            Gradient::None | Gradient::Stored => return Ok(None),
        };
        let again = match &mut into {
            Accumulator::Bf16(raw) => Accumulator::Bf16(raw),
            Accumulator::F16(raw) => Accumulator::F16(raw),
            Accumulator::F32(raw) => Accumulator::F32(raw),
        };
        match count {
            0 => kernel::store(isa, again, from)?,
            _ => kernel::accumulate(isa, again, from)?,
        }
        if !self.last_micro_batch {
            return Ok(None);
        }
        let sum = match &into {
            Accumulator::Bf16(raw) => block_sum(isa, Input::Bf16(raw)),
            Accumulator::F16(raw) => block_sum(isa, Input::F16(raw)),
            Accumulator::F32(raw) => block_sum(isa, Input::F32(raw)),
        };
        sum.map(Some)
    }
}
