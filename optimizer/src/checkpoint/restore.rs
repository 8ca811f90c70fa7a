//! Taking state from memory, or from wherever else it is, tensor by tensor: no file is needed.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::kernel::round::{f32_to_bf16, f32_to_f16};
use crate::optimizer::Optimizer;
use crate::param::Param;
use crate::plan::Plan;
use crate::precision::Plane;
use crate::step_io::{StepIo, WeightMut};
use crate::subgroup::BLOCK_ELEMS;

use super::merge::{check_master, check_squares};
use super::overwrite::Incoming;
use super::tensors::Kind;

/// The state of all parameters of a plan, to be read by logical range.
pub trait StateSource {
    /// Returns how often a parameter was updated. Nothing else is asked of one that never was.
    fn updates(&self, param: usize) -> u64;

    /// Returns whether it has an fp32 master beside its weights.
    fn has_master(&self, param: usize) -> bool;

    /// Fills `out` with elements `range` of a plane: `P` where there is a master, `M`, `V`, and `VMax`
    /// where the plan keeps it. May be asked for the same more than once.
    ///
    /// # Errors
    /// Whatever keeps it from reading.
    fn read(
        &mut self,
        param: usize,
        plane: Plane,
        range: Range<u64>,
        out: &mut [f32],
    ) -> Result<()>;
}

/// A source for the length of a restore.
struct Restored<'a> {
    source: &'a mut dyn StateSource,
    steps: u64,
    scratch: Vec<f32>,
}

impl Optimizer {
    /// Takes the state from `source` and goes on from it. A master is taken for the caller's weights
    /// too: they become it, rounded to their type. Weights without one are left as they are, and are
    /// the master of the next update. Hyper-parameters stay. What the optimizer held before is lost, an
    /// unfinished step and gradients for the next one too.
    ///
    /// # Errors
    /// Before any change: [`Error::Checkpoint`] for a master without an update or that the plan has no
    /// place for and for negative second moments; what the source answers;
    /// [`Error::Parameter`] and [`Error::Tied`] when the weights that `io` hands over do not fit. After
    /// that [`Error::HalfImported`]: then nothing but another restore or import works.
    pub fn restore(&mut self, source: &mut dyn StateSource, io: &mut dyn StepIo) -> Result<()> {
        self.check_all_weights(io)?;
        verify(source, &self.plan)?;
        let steps = (0..self.plan.params.len()).map(|param| source.updates(param)).max();
        let mut restored = Restored { source, steps: steps.unwrap_or(0), scratch: Vec::new() };
        self.replace(&mut restored, io)
    }
}

/// Refuses what the plan has no place for, and squares that are negative.
fn verify(source: &mut dyn StateSource, plan: &Plan) -> Result<()> {
    let mut words = Vec::new();
    for (index, (param, form)) in plan.params.iter().zip(&plan.forms).enumerate() {
        let (updates, master) = (source.updates(index), source.has_master(index));
        check_master(param, *form, master)?;
        if master && updates == 0 {
            return Err(Error::Checkpoint {
                what: format!("parameter {:?}", param.name),
                why: String::from("has a master and was never updated"),
            });
        }
        let kinds = [(Plane::V, Kind::ExpAvgSq), (Plane::VMax, Kind::MaxExpAvgSq)];
        let elems = if updates == 0 { 0 } else { param.elements().unwrap_or(0) };
        for (plane, kind) in kinds.into_iter().filter(|(plane, _)| form.planes().contains(plane)) {
            for start in (0..elems).step_by(BLOCK_ELEMS as usize) {
                let end = (start + BLOCK_ELEMS).min(elems);
                words.resize((end - start) as usize, 0.0);
                source.read(index, plane, start..end, &mut words)?;
                check_squares((param, kind), start, &words)?;
            }
        }
    }
    Ok(())
}

impl Incoming for Restored<'_> {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn updates(&self, index: usize) -> u64 {
        self.source.updates(index)
    }

    fn master(&self, index: usize) -> bool {
        self.source.has_master(index)
    }

    fn state(
        &mut self,
        (index, kind): (usize, Kind),
        _param: &Param,
        range: Range<u64>,
        out: &mut [f32],
    ) -> Result<()> {
        let plane = match kind {
            Kind::Param | Kind::Master => Plane::P,
            Kind::ExpAvg => Plane::M,
            Kind::ExpAvgSq => Plane::V,
            Kind::MaxExpAvgSq => Plane::VMax,
        };
        self.source.read(index, plane, range, out)
    }

    fn weights(
        &mut self,
        index: usize,
        _param: &Param,
        range: Range<u64>,
        out: WeightMut<'_>,
    ) -> Result<()> {
        if !self.source.has_master(index) {
            return Ok(());
        }
        let narrow = |to: fn(f32) -> u16, raw: &mut [u16], wide: &[f32]| {
            raw.iter_mut().zip(wide).for_each(|(raw, wide)| *raw = to(*wide));
        };
        self.scratch.resize(out.len(), 0.0);
        let wide = &mut self.scratch[..];
        match out {
            WeightMut::F32(raw) => self.source.read(index, Plane::P, range, raw)?,
            WeightMut::Bf16(raw) => {
                self.source.read(index, Plane::P, range, wide)?;
                narrow(f32_to_bf16, raw, wide);
            }
            WeightMut::F16(raw) => {
                self.source.read(index, Plane::P, range, wide)?;
                narrow(f32_to_f16, raw, wide);
            }
        }
        Ok(())
    }
}
