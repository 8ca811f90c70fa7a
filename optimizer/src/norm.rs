//! The norm of all gradients of a step, before anything is changed: summed by blocks of a parameter,
//! so that it does not depend on how the model is cut into subgroups.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::gathered::Gathered;
use crate::kernel::Input;
use crate::kernel::norm::{block_sum, sum_of};
use crate::optimizer::Optimizer;
use crate::step_io::{Gradient, StepIo};
use crate::step_options::{NonFinite, Norm, StepOptions};
use crate::subgroup::{BLOCK_ELEMS, Run};

/// What follows from the gradients of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// They are applied times this factor.
    Apply {
        /// Of clipping and loss scale.
        factor: f64,
        /// Their norm, if it was asked for.
        norm: Option<Norm>,
    },
    /// The step is skipped: this parameter's gradient is not finite, if it is one of this rank.
    Skip {
        /// Their norm.
        norm: Norm,
        /// The first parameter whose gradient is not finite.
        param: Option<usize>,
    },
}

impl Optimizer {
    /// Returns the norm of the gradients that are handed over here, still multiplied by their loss
    /// scale: what ranks add up (the sums of squares) before each gives the whole to its step.
    ///
    /// # Errors
    /// [`Error::Parameter`] when something that is handed over does not fit its parameter;
    /// [`Error::Unfinished`] while a step is unfinished, which has used up a part of it.
    pub fn gradient_norm(&mut self, io: &mut dyn StepIo) -> Result<Norm> {
        self.refuse_unfinished()?;
        let active = self.active(io);
        let all: Vec<usize> = (0..self.plan.subgroups.len()).collect();
        self.check_all(&all, &active, io)?;
        Ok(self.norm(&active, io)?.0)
    }

    /// Decides what becomes of a step.
    ///
    /// # Errors
    /// [`Error::NonFinite`] when the step is to be refused for its gradients.
    pub(crate) fn judge(
        &self,
        options: &StepOptions,
        active: &[bool],
        io: &mut dyn StepIo,
    ) -> Result<Verdict> {
        let (norm, param) = match (options.norm, options.needs_norm()) {
            (None, false) => (None, None),
            (None, true) => {
                let (norm, param) = self.norm(active, io)?;
                (Some(norm), param)
            }
            (Some(given), _) => (Some(given), None),
        };
        let factor = options.gradient_factor(norm.as_ref());
        match (norm, options.non_finite) {
            (Some(norm), NonFinite::Skip) if !norm.finite => Ok(Verdict::Skip { norm, param }),
            (Some(norm), NonFinite::Raise) if !norm.finite => Err(Error::NonFinite {
                param: param.map(|index| self.plan.params[index].name.clone()),
            }),
            _ => Ok(Verdict::Apply { factor, norm }),
        }
    }

    /// Returns the norm and the first parameter whose part of it is not finite.
    fn norm(&self, active: &[bool], io: &mut dyn StepIo) -> Result<(Norm, Option<usize>)> {
        let (mut sums, mut not_finite) = (Vec::new(), None);
        let mut scratch = Gathered::default();
        for (index, param) in self.plan.params.iter().enumerate().filter(|(i, _)| active[*i]) {
            let before = sums.len();
            let blocks = param.elements().unwrap_or(0).div_ceil(BLOCK_ELEMS) as usize;
            sums.resize(before + blocks, 0.0);
            let own = &mut sums[before..];
            for (group, run) in self.runs_of(index) {
                let piece = run.range.clone();
                let first = (piece.start / BLOCK_ELEMS) as usize;
                let count = (piece.end - piece.start).div_ceil(BLOCK_ELEMS) as usize;
                let out = &mut own[first..first + count];
                match io.segment(index, piece.clone()).gradient {
                    Gradient::Stored => self.sum_stored((group, index), run, out)?,
                    gradient => self.sum_piece(gradient, piece, out, &mut scratch)?,
                }
            }
            if not_finite.is_none() && own.iter().any(|sum| !sum.is_finite()) {
                not_finite = Some(index);
            }
        }
        Ok((Norm::from(sum_of(&sums)), not_finite))
    }

    /// Sums what was handed over before of a run: most of it was summed then.
    fn sum_stored(&self, (group, param): (usize, usize), run: &Run, out: &mut [f64]) -> Result<()> {
        let first = (run.range.start / BLOCK_ELEMS) as usize;
        let known = &self.gradients.params[param].sums[first..first + out.len()];
        if known.iter().all(Option::is_some) {
            for (out, known) in out.iter_mut().zip(known) {
                *out = known.unwrap_or_default();
            }
            return Ok(());
        }
        let lease = match &self.gradients.objects[group] {
            Some(object) => Some(self.store.lease_write(object, 0).wait()?),
            None => None,
        };
        let stored = self.stored_gradient((group, run), lease.as_ref());
        let summed =
            self.sum_piece(stored.into(), run.range.clone(), out, &mut Gathered::default());
        if let Some(lease) = lease {
            lease.unchanged();
        }
        summed
    }

    fn sum_piece(
        &self,
        gradient: Gradient<'_>,
        piece: Range<u64>,
        out: &mut [f64],
        scratch: &mut Gathered,
    ) -> Result<()> {
        let isa = self.team.isa();
        match gradient {
            Gradient::Elements(raw) => {
                let mut results = vec![Ok(0.0); out.len()];
                self.team
                    .each_block(raw.len(), &mut results, |block| block_sum(isa, raw.part(block)));
                for (out, result) in out.iter_mut().zip(results) {
                    *out = result?;
                }
            }
            Gradient::Strided(raw, strides) => {
                for (index, out) in out.iter_mut().enumerate() {
                    let start = piece.start + index as u64 * BLOCK_ELEMS;
                    let end = (start + BLOCK_ELEMS).min(piece.end);
                    let block: Input<'_> = scratch.gradient(raw, &strides, start..end);
                    *out = block_sum(isa, block)?;
                }
            }
            Gradient::None | Gradient::Stored => {}
        }
        Ok(())
    }
}
