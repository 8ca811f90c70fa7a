//! A tile of a strided tensor, gathered so that kernels see neighbours, and put back after.

use std::ops::Range;

use crate::kernel::Input;
use crate::step_io::WeightMut;
use crate::strides::Strides;

/// Room for one tile, to be used again for the next.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    half: Vec<u16>,
    full: Vec<f32>,
}

impl Gathered {
    /// Returns elements `range` of a storage that the strides fit, in order.
    pub(crate) fn gradient<'a>(
        &'a mut self,
        storage: Input<'_>,
        strides: &Strides<'_>,
        range: Range<u64>,
    ) -> Input<'a> {
        match storage {
            Input::F32(raw) => {
                strides.gather(raw, range, &mut self.full);
                Input::F32(&self.full)
            }
            Input::Bf16(raw) => {
                strides.gather(raw, range, &mut self.half);
                Input::Bf16(&self.half)
            }
            Input::F16(raw) => {
                strides.gather(raw, range, &mut self.half);
                Input::F16(&self.half)
            }
        }
    }

    /// Returns a copy of weights `range`, to be changed and then [put back](Gathered::put_back).
    pub(crate) fn weight<'a>(
        &'a mut self,
        storage: &WeightMut<'_>,
        strides: &Strides<'_>,
        range: Range<u64>,
    ) -> WeightMut<'a> {
        match storage {
            WeightMut::F32(raw) => {
                strides.gather(raw, range, &mut self.full);
                WeightMut::F32(&mut self.full)
            }
            WeightMut::Bf16(raw) => {
                strides.gather(raw, range, &mut self.half);
                WeightMut::Bf16(&mut self.half)
            }
            WeightMut::F16(raw) => {
                strides.gather(raw, range, &mut self.half);
                WeightMut::F16(&mut self.half)
            }
        }
    }

    /// Writes the weights that were last gathered back to where they came from.
    pub(crate) fn put_back(
        &self,
        storage: &mut WeightMut<'_>,
        strides: &Strides<'_>,
        range: Range<u64>,
    ) {
        match storage {
            WeightMut::F32(raw) => strides.scatter(&self.full, raw, range),
            WeightMut::Bf16(raw) | WeightMut::F16(raw) => strides.scatter(&self.half, raw, range),
        }
    }
}
