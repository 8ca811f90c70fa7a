//! The model of a run: its weights and gradients in memory, and where the weights came from.

use std::io;
use std::ops::{ControlFlow, Range};

use tensortier::optimizer::kernel::Input;
use tensortier::optimizer::{Gradient, Param, Segment, StepIo, WeightMut};
use tensortier::storage::dtype::DType;
use tensortier::storage::source::{Access, TensorEntry, TensorFile};
use tensortier::storage::units::{Bytes, Count};

use crate::args::{AdamArgs, FloatType};
use crate::buffer::Buffer;
use crate::elements::ElementsMut;
use crate::{Failure, gradient, memory, model};

/// Elements that are made or compared at a time: few enough to stay in a cache.
pub(super) const PIECE_ELEMS: u64 = 256 << 10;

/// Where the weights come from; asked again by the verification and by the file that is written.
#[derive(Debug)]
pub(super) enum Source {
    /// A file; the indices say which of its tensors are parameters.
    File { file: TensorFile, params: Vec<usize> },
    /// Made up from a seed.
    MadeUp { seed: u64 },
}

/// The parameters and where they come from, before anything is loaded.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) params: Vec<Param>,
    pub(super) source: Source,
    /// Tensors of the file that are no parameters: kept as they are.
    pub(super) untrained: Vec<String>,
}

/// Weights and gradients in memory.
pub(super) struct Model {
    pub(super) params: Vec<Param>,
    weights: Vec<Buffer>,
    gradients: Vec<Buffer>,
    grad_dtype: DType,
    /// Called after each subgroup; returns whether to go on.
    pub(super) after_subgroup: Box<dyn FnMut(u64, u64) -> bool + Send + Sync>,
}

/// Returns the element type of a name on the command line.
pub(super) fn dtype(name: FloatType) -> DType {
    match name {
        FloatType::Bf16 => DType::BF16,
        FloatType::Fp16 => DType::F16,
        FloatType::Fp32 => DType::F32,
    }
}

/// Returns a buffer's elements as what the fillers take.
pub(super) fn elements_mut(
    dtype: DType,
    buffer: &mut Buffer,
    range: Range<usize>,
) -> ElementsMut<'_> {
    match dtype {
        DType::F32 => ElementsMut::F32(&mut buffer.as_mut_slice()[range]),
        DType::F16 => ElementsMut::F16(&mut buffer.as_mut_slice()[range]),
        _ => ElementsMut::Bf16(&mut buffer.as_mut_slice()[range]),
    }
}

/// Returns a buffer's elements as what a kernel reads.
pub(super) fn input(dtype: DType, buffer: &Buffer, range: Range<usize>) -> Input<'_> {
    match dtype {
        DType::F32 => Input::F32(&buffer.as_slice()[range]),
        DType::F16 => Input::F16(&buffer.as_slice()[range]),
        _ => Input::Bf16(&buffer.as_slice()[range]),
    }
}

/// Returns the pieces of `0..elems` that are worked on at a time.
pub(super) fn pieces(elems: u64) -> impl Iterator<Item = Range<u64>> {
    (0..elems.div_ceil(PIECE_ELEMS))
        .map(move |i| i * PIECE_ELEMS..((i + 1) * PIECE_ELEMS).min(elems))
}

impl Description {
    /// Reads the names and shapes of the model.
    pub(super) fn new(args: &AdamArgs) -> Result<Self, Failure> {
        if let Some(weights) = &args.weights {
            let access = if args.map { Access::Map } else { Access::Direct };
            let description = Description::of_file(TensorFile::open(weights, access)?)?;
            let held = description.weight_bytes() + description.gradient_bytes(dtype(args.grads));
            fits_memory(&weights.display().to_string(), held)?;
            return Ok(description);
        }
        let parameters = args.params.map_or(0, |count| count.0);
        let width = dtype(args.weights_dtype).bytes() + dtype(args.grads).bytes();
        fits_memory(&format!("--params {}", Count(parameters)), parameters.saturating_mul(width))?;
        let tensors = model::tensors(parameters)?;
        let weight_dtype = dtype(args.weights_dtype);
        let params =
            tensors.into_iter().map(|t| Param::new(t.name, t.shape, weight_dtype)).collect();
        let source = Source::MadeUp { seed: args.seed };
        Ok(Description { params, source, untrained: Vec::new() })
    }

    fn of_file(file: TensorFile) -> Result<Self, Failure> {
        let trained = |e: &TensorEntry| matches!(e.dtype, DType::F32 | DType::F16 | DType::BF16);
        let (params, untrained): (Vec<usize>, Vec<usize>) =
            (0..file.entries().len()).partition(|index| trained(&file.entries()[*index]));
        if params.iter().all(|index| file.entries()[*index].elements() == 0) {
            let why = "has no F32, F16 or BF16 elements to train; name a file of weights";
            return Err(format!("{}: {why}", file.path().display()).into());
        }
        let describe = |index: &usize| {
            let entry = &file.entries()[*index];
            Param::new(entry.name.clone(), entry.shape.clone(), entry.dtype)
        };
        Ok(Description {
            params: params.iter().map(describe).collect(),
            untrained: untrained.iter().map(|i| file.entries()[*i].name.clone()).collect(),
            source: Source::File { file, params },
        })
    }

    /// Returns the bytes of the weights.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.params.iter().map(|p| p.elements().unwrap_or(0) * p.weight_dtype.bytes()).sum()
    }

    /// Returns the bytes of gradients of this type.
    pub(super) fn gradient_bytes(&self, grad_dtype: DType) -> u64 {
        self.params.iter().map(|p| p.elements().unwrap_or(0) * grad_dtype.bytes()).sum()
    }

    /// Loads the weights and makes room for the gradients.
    pub(super) fn load(&self, grad_dtype: DType) -> Result<Model, Failure> {
        let room = |elems: u64, dtype: DType| -> Result<Buffer, Failure> {
            let bytes = elems * dtype.bytes();
            let buffer = usize::try_from(bytes).map_err(io::Error::other).and_then(Buffer::new);
            buffer.map_err(|error| format!("cannot take {bytes} bytes of memory: {error}").into())
        };
        let (mut weights, mut gradients) = (Vec::new(), Vec::new());
        for (index, param) in self.params.iter().enumerate() {
            let elems = param.elements().unwrap_or(0);
            let mut buffer = room(elems, param.weight_dtype)?;
            for piece in pieces(elems) {
                let range = piece.start as usize..piece.end as usize;
                self.source.read(index, param, piece, &mut buffer, range)?;
            }
            weights.push(buffer);
            gradients.push(room(elems, grad_dtype)?);
        }
        Ok(Model {
            params: self.params.clone(),
            weights,
            gradients,
            grad_dtype,
            after_subgroup: Box::new(|_, _| true),
        })
    }
}

/// Refuses a model whose weights and gradients would end the process for want of memory.
fn fits_memory(model: &str, held_bytes: u64) -> Result<(), Failure> {
    match memory::available_bytes() {
        Some(available) if held_bytes > available => Err(format!(
            "{model}: weights and gradients take {} of memory and {} are available; use a smaller \
             model or a machine with more memory",
            Bytes(held_bytes),
            Bytes(available)
        )
        .into()),
        _ => Ok(()),
    }
}

impl Source {
    /// Reads the initial weights `piece` of a parameter into elements `at` of a buffer of its type.
    pub(super) fn read(
        &self,
        index: usize,
        param: &Param,
        piece: Range<u64>,
        buffer: &mut Buffer,
        at: Range<usize>,
    ) -> Result<(), Failure> {
        match self {
            Source::MadeUp { seed } => {
                let out = elements_mut(param.weight_dtype, buffer, at);
                model::fill(*seed, index as u64, piece, out);
            }
            Source::File { file, params } => {
                let width = param.weight_dtype.bytes();
                let bytes = at.start * width as usize..at.end * width as usize;
                let out = &mut buffer.as_mut_slice::<u8>()[bytes];
                file.read_into(&file.entries()[params[index]], piece.start * width, out)?;
            }
        }
        Ok(())
    }
}

impl Model {
    /// Makes the gradients of a step: what a backward pass would leave.
    pub(super) fn make_gradients(&mut self, seed: u64, step: u64, threads: usize) {
        let work = self.gradients.iter_mut().zip(&self.params).enumerate();
        let dtype = self.grad_dtype;
        for (index, (buffer, param)) in work {
            let elems = param.elements().unwrap_or(0);
            match dtype {
                DType::F32 => split(buffer.as_mut_slice(), threads, |range, out| {
                    gradient::fill(seed, step, index as u64, range, ElementsMut::F32(out));
                }),
                DType::F16 => split(buffer.as_mut_slice(), threads, |range, out| {
                    gradient::fill(seed, step, index as u64, range, ElementsMut::F16(out));
                }),
                _ => split(buffer.as_mut_slice(), threads, |range, out| {
                    gradient::fill(seed, step, index as u64, range, ElementsMut::Bf16(out));
                }),
            }
            debug_assert_eq!(buffer.as_slice::<u8>().len() as u64, elems * dtype.bytes());
        }
    }

    /// Returns a parameter's whole gradient.
    pub(super) fn gradient(&self, param: usize) -> Gradient<'_> {
        let elems = self.params[param].elements().unwrap_or(0) as usize;
        Gradient::Elements(input(self.grad_dtype, &self.gradients[param], 0..elems))
    }

    /// Returns a number that differs, but for chance, when any bit of any weight does.
    pub(super) fn checksum(&self) -> u64 {
        use std::hash::Hasher;
        let mut hasher = std::hash::DefaultHasher::new();
        for (param, weights) in self.params.iter().zip(&self.weights) {
            let bytes = param.elements().unwrap_or(0) * param.weight_dtype.bytes();
            hasher.write(&weights.as_slice()[..bytes as usize]);
        }
        hasher.finish()
    }

    /// Returns weights `range` of a parameter.
    pub(super) fn weights(&self, param: usize, range: Range<u64>) -> Input<'_> {
        let range = range.start as usize..range.end as usize;
        input(self.params[param].weight_dtype, &self.weights[param], range)
    }

    /// Returns a parameter's weights as bytes.
    pub(super) fn weight_bytes(&self, param: usize) -> &[u8] {
        self.weights[param].as_slice()
    }
}

/// Calls `fill` on parts of `out`, one per thread, each with the range it stands for.
fn split<T: Send>(out: &mut [T], threads: usize, fill: impl Fn(Range<u64>, &mut [T]) + Sync) {
    let each = out.len().div_ceil(threads.max(1)).max(PIECE_ELEMS as usize);
    if out.len() <= each {
        return fill(0..out.len() as u64, out);
    }
    std::thread::scope(|scope| {
        for (index, part) in out.chunks_mut(each).enumerate() {
            let start = (index * each) as u64;
            let fill = &fill;
            scope.spawn(move || fill(start..start + part.len() as u64, part));
        }
    });
}

/// A model whose gradients were handed over before the step.
pub(super) struct HandedOver<'a>(pub(super) &'a mut Model);

impl StepIo for HandedOver<'_> {
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        Segment { gradient: Gradient::Stored, ..self.0.segment(param, range) }
    }

    fn spans_runs(&self) -> bool {
        self.0.spans_runs()
    }

    fn subgroup_done(&mut self, done: u64, of: u64) -> ControlFlow<()> {
        self.0.subgroup_done(done, of)
    }
}

impl StepIo for Model {
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let range = range.start as usize..range.end as usize;
        let gradient = input(self.grad_dtype, &self.gradients[param], range.clone());
        let weights = &mut self.weights[param];
        let weight = match self.params[param].weight_dtype {
            DType::F32 => WeightMut::F32(&mut weights.as_mut_slice()[range]),
            DType::F16 => WeightMut::F16(&mut weights.as_mut_slice()[range]),
            _ => WeightMut::Bf16(&mut weights.as_mut_slice()[range]),
        };
        Segment::new(gradient, weight)
    }

    fn spans_runs(&self) -> bool {
        true
    }

    fn subgroup_done(&mut self, done: u64, of: u64) -> ControlFlow<()> {
        if (self.after_subgroup)(done, of) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}
