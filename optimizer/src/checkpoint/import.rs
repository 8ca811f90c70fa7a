//! Taking a checkpoint out of its files: everything is looked at before anything is changed.

use std::ops::Range;
use std::path::Path;

use crate::error::Result;
use crate::optimizer::Optimizer;
use crate::options::Rounding;
use crate::param::Param;
use crate::step_io::{StepIo, WeightMut};

use super::merge::Checkpoint;
use super::overwrite::Incoming;
use super::tensors::Kind;

impl Optimizer {
    /// Takes weights and state from the files of a checkpoint ([`Optimizer::export`]), all those that
    /// were written together, in any order, and goes on as the optimizer that wrote them would have:
    /// hyper-parameters, counts of steps and updates, and the seed of stochastic rounding are theirs.
    /// Everything else follows the plan: subgroups, shards, precision, paths, memory. Where shards of
    /// several files overlap, the first file that has an element counts. What the optimizer held
    /// before is lost, an unfinished step and gradients for the next one too.
    ///
    /// All files are read twice as far as they are needed here: once to see that nothing is missing,
    /// damaged or senseless, before anything is changed, and once to take it. Takes some 16 MiB beside
    /// the store's budget, and up to 4 MiB for each file.
    ///
    /// # Errors
    /// Before any change: [`Error::Checkpoint`] for what is wrong with the files or does not fit the
    /// plan; [`Error::Parameter`] and [`Error::Tied`] when the weights that `io` hands over do not
    /// fit; the store's errors, those of the files included. After that [`Error::HalfImported`]: then
    /// nothing but another import works, so that nothing half old and half new is ever used.
    pub fn import<P: AsRef<Path>>(&mut self, files: &[P], io: &mut dyn StepIo) -> Result<()> {
        let mut saved = Checkpoint::open(files, &self.plan)?;
        self.check_all_weights(io)?;
        saved.verify(&self.plan)?;
        self.replace(&mut saved, io)?;
        self.plan.options.groups.clone_from(&saved.groups);
        if let (Rounding::Stochastic { seed }, Rounding::Stochastic { seed: was }) =
            (&mut self.plan.options.rounding, saved.rounding)
        {
            *seed = was;
        }
        Ok(())
    }
}

impl Incoming for Checkpoint {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn updates(&self, index: usize) -> u64 {
        self.params[index].updates
    }

    fn master(&self, index: usize) -> bool {
        self.params[index].master
    }

    fn state(
        &mut self,
        tensor: (usize, Kind),
        param: &Param,
        range: Range<u64>,
        out: &mut [f32],
    ) -> Result<()> {
        self.fill(tensor, param, range, out)
    }

    fn weights(
        &mut self,
        index: usize,
        param: &Param,
        range: Range<u64>,
        out: WeightMut<'_>,
    ) -> Result<()> {
        let tensor = (index, Kind::Param);
        match out {
            WeightMut::F32(raw) => self.fill(tensor, param, range, raw),
            WeightMut::Bf16(raw) | WeightMut::F16(raw) => self.fill(tensor, param, range, raw),
        }
    }
}
