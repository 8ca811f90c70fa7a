//! Gradients that were handed over before their step: what has come of each parameter, and where it
//! is kept.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use tensortier_storage::dtype::DType;
use tensortier_storage::store::ObjectRef;

use crate::error::{Error, Result};
use crate::kernel::Input;
use crate::options::{Accumulation, GradientPlace};
use crate::param::Param;
use crate::subgroup::{BLOCK_ELEMS, Run, Subgroup};

/// All that was handed over since the last step.
#[derive(Debug)]
pub(crate) struct Accumulators {
    pub(crate) options: Accumulation,
    pub(crate) params: Vec<Received>,
    /// In memory of their own, each parameter's.
    memory: Vec<Vec<u32>>,
    /// In the store, each subgroup's.
    pub(crate) objects: Vec<Option<ObjectRef>>,
    /// A hand-over that failed on its way: parameter, range, and what of it was taken.
    pub(crate) partial: Option<(usize, Range<u64>, u64)>,
    /// Whether somebody was told that 16-bit sums lose precision.
    pub(crate) warned: bool,
}

/// What has come of one parameter's gradient.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received {
    /// For each block, how many micro-batches have come.
    pub(crate) batches: Vec<u32>,
    /// For each block, the sum of its squares, if it was summed after the last that came.
    pub(crate) sums: Vec<Option<f64>>,
}

impl Accumulators {
    /// Returns accumulators of nothing. Memory is taken when gradients come.
    ///
    /// # Errors
    /// [`Error::Config`] for a type that gradients cannot be summed in.
    pub(crate) fn new(
        options: Accumulation,
        params: &[Param],
        subgroups: usize,
    ) -> Result<Accumulators> {
        if !matches!(options.dtype, DType::BF16 | DType::F16 | DType::F32) {
            return Err(Error::Config {
                what: format!("gradients of type {}", options.dtype),
                why: String::from("use BF16, F16 or F32"),
            });
        }
        Ok(Accumulators {
            options,
            params: params.iter().map(Received::new).collect(),
            memory: vec![Vec::new(); params.len()],
            objects: vec![None; subgroups],
            partial: None,
            warned: false,
        })
    }

    /// Makes room for more parameters, and for this many subgroups in all.
    pub(crate) fn grow(&mut self, params: &[Param], subgroups: usize) {
        self.params.extend(params.iter().map(Received::new));
        self.memory.resize(self.params.len(), Vec::new());
        self.objects.resize(subgroups, None);
    }

    /// Says what to do about a hand-over of this parameter's gradient that failed on its way, if one
    /// did.
    pub(crate) fn taken_in_part(&self, param: usize) -> Option<String> {
        let (_, of, _) = self.partial.as_ref().filter(|(known, ..)| *known == param)?;
        Some(format!("its gradient of elements {of:?} was taken in part only: repeat that call"))
    }

    pub(crate) fn in_memory(&self) -> bool {
        self.options.place == GradientPlace::Memory
    }

    /// Returns the bytes of memory of their own that the accumulators take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.iter().map(|memory| 4 * memory.capacity() as u64).sum()
    }

    /// Returns the bytes of elements `range` of a parameter, which are in memory.
    pub(crate) fn bytes_mut(&mut self, param: usize, range: &Range<u64>, elems: u64) -> &mut [u8] {
        let width = self.options.dtype.bytes();
        let memory = &mut self.memory[param];
        if memory.is_empty() {
            memory.resize((elems * width).div_ceil(4) as usize, 0);
        }
        let bytes: &mut [u8] = cast_slice_mut(memory);
        &mut bytes[(range.start * width) as usize..(range.end * width) as usize]
    }

    /// Returns elements `range` of a parameter, which are in memory.
    pub(crate) fn elements(&self, param: usize, range: &Range<u64>) -> Input<'_> {
        let width = self.options.dtype.bytes();
        let bytes: &[u8] = cast_slice(&self.memory[param]);
        let range = (range.start * width) as usize..(range.end * width) as usize;
        elements(self.options.dtype, bytes.get(range).unwrap_or_default())
    }

    /// Returns where a run's gradient lies in its subgroup's object, in bytes.
    pub(crate) fn place(&self, group: &Subgroup, run: &Run) -> Range<usize> {
        let width = self.options.dtype.bytes();
        let elems = |run: &Run| run.range.end - run.range.start;
        let before = group.runs.iter().take_while(|other| other.param < run.param);
        let start: u64 = before.map(elems).sum();
        (start * width) as usize..((start + elems(run)) * width) as usize
    }

    /// Forgets what came.
    pub(crate) fn clear(&mut self) {
        self.partial = None;
        for received in &mut self.params {
            received.batches.fill(0);
            received.sums.fill(None);
        }
    }
}

impl Received {
    fn new(param: &Param) -> Self {
        let blocks = param.elements().unwrap_or(0).div_ceil(BLOCK_ELEMS) as usize;
        Received { batches: vec![0; blocks], sums: vec![None; blocks] }
    }

    /// Returns the first block that has not come, or that has come less often than another.
    pub(crate) fn missing(&self) -> Option<usize> {
        let most = self.batches.iter().copied().max().unwrap_or(0);
        self.batches.iter().position(|batches| *batches < most.max(1))
    }
}

/// Returns the elements that bytes hold.
pub(crate) fn elements(dtype: DType, bytes: &[u8]) -> Input<'_> {
    match dtype {
        DType::F32 => Input::F32(cast_slice(bytes)),
        DType::F16 => Input::F16(cast_slice(bytes)),
        _ => Input::Bf16(cast_slice(bytes)),
    }
}
