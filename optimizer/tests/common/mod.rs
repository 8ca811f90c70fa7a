//! What the optimizer's tests share: a model in memory that is handed over to steps, and the same
//! steps wholly in memory with the scalar kernel, one parameter at a time.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

pub(crate) mod golden;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use proptest::prelude::*;
use tensortier_optimizer::hyper::{Algorithm, Subnormals};
use tensortier_optimizer::kernel::{
    self, HalfWeights, Input, Isa, Output, Planes, Scalars, Stochastic, WeightPlanes,
};
use tensortier_optimizer::{
    Error, Gradient, Hyper, Optimizer, Param, Plane, Rounding, Segment, StatePrecision, StepIo,
    StepOptions, StepReport, Strides, Weight, WeightMut,
};
use tensortier_storage::dtype::DType;
use tensortier_storage::path::PathStore;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::store::Store;

/// Elements of one type; 16-bit ones as bit patterns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tensor {
    F32(Vec<f32>),
    Half(DType, Vec<u16>),
}

impl Tensor {
    pub(crate) fn new(dtype: DType, values: &[f32]) -> Self {
        let narrow = |to: fn(f32) -> u16| values.iter().map(|v| to(*v)).collect();
        match dtype {
            DType::F32 => Tensor::F32(values.to_vec()),
            DType::BF16 => Tensor::Half(dtype, narrow(kernel::round::f32_to_bf16)),
            _ => Tensor::Half(dtype, narrow(kernel::round::f32_to_f16)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Tensor::F32(raw) => raw.len(),
            Tensor::Half(_, raw) => raw.len(),
        }
    }

    pub(crate) fn input(&self, range: Range<usize>) -> Input<'_> {
        match self {
            Tensor::F32(raw) => Input::F32(&raw[range]),
            Tensor::Half(DType::BF16, raw) => Input::Bf16(&raw[range]),
            Tensor::Half(_, raw) => Input::F16(&raw[range]),
        }
    }

    pub(crate) fn weight(&mut self, range: Range<usize>) -> WeightMut<'_> {
        match self {
            Tensor::F32(raw) => WeightMut::F32(&mut raw[range]),
            Tensor::Half(DType::BF16, raw) => WeightMut::Bf16(&mut raw[range]),
            Tensor::Half(_, raw) => WeightMut::F16(&mut raw[range]),
        }
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        match self {
            Tensor::F32(raw) => raw.iter().map(|v| v.to_bits()).collect(),
            Tensor::Half(_, raw) => raw.iter().map(|v| u32::from(*v)).collect(),
        }
    }

    /// The elements as fp32.
    pub(crate) fn wide(&self) -> Vec<f32> {
        let mut wide = vec![0.0; self.len()];
        kernel::widen(self.input(0..self.len()), &mut wide).unwrap();
        wide
    }

    /// The elements of this, a whole tensor, that a parameter has here.
    pub(crate) fn shard(&self, param: &Param) -> Tensor {
        let here = places(param);
        match self {
            Tensor::F32(raw) => Tensor::F32(here.iter().map(|i| raw[*i]).collect()),
            Tensor::Half(dtype, raw) => {
                Tensor::Half(*dtype, here.iter().map(|i| raw[*i]).collect())
            }
        }
    }

    /// The same elements, those of a matrix of `columns` stored column by column.
    fn transposed(&self, columns: usize) -> Tensor {
        fn turn<T: Copy>(raw: &[T], columns: usize) -> Vec<T> {
            let rows = raw.len() / columns.max(1);
            (0..raw.len()).map(|i| raw[i % rows * columns + i / rows]).collect()
        }
        match self {
            Tensor::F32(raw) => Tensor::F32(turn(raw, columns)),
            Tensor::Half(dtype, raw) => Tensor::Half(*dtype, turn(raw, columns)),
        }
    }
}

/// Where in the whole tensor the elements lie that a parameter has here.
pub(crate) fn places(param: &Param) -> Vec<usize> {
    let n = param.elements().unwrap();
    let stretches = param.stretches(0..n);
    stretches.flat_map(|s| s.global as usize..(s.global + s.elems) as usize).collect()
}

/// Hyper-parameters of every algorithm, switch and kind of decay.
pub(crate) fn hyper() -> impl Strategy<Value = Hyper> {
    let choices = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (choices, 0usize..3).prop_map(|((adam, amsgrad, maximize, flush), decay)| Hyper {
        algorithm: if adam { Algorithm::Adam } else { Algorithm::AdamW },
        weight_decay: [0.0, 1e-2, 0.3][decay],
        amsgrad,
        maximize,
        subnormals: if flush { Subnormals::Flush } else { Subnormals::Keep },
        ..Hyper::default()
    })
}

/// Reproducible values in (-scale, scale).
pub(crate) fn values(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / 8_388_608.0 - 1.0) * scale
        })
        .collect()
}

/// A model in memory: what a caller hands over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) weights: Vec<Tensor>,
    pub(crate) gradients: Vec<Option<Tensor>>,
    /// For a parameter whose weights and gradient are stored column by column: its columns.
    pub(crate) columns: Vec<Option<u64>>,
    /// Ends the step after so many subgroups, once.
    pub(crate) stop_after: Option<u64>,
    shapes: Vec<[u64; 2]>,
    strides: Vec<[u64; 2]>,
}

impl Model {
    /// Weights that follow from a seed; nothing has a gradient yet.
    pub(crate) fn new(params: &[Param], seed: u64) -> Self {
        let weight = |(i, param): (usize, &Param)| {
            let n = param.elements().unwrap() as usize;
            Tensor::new(param.weight_dtype, &values(seed ^ (i as u64) << 20, n, 0.02))
        };
        let weights: Vec<_> = params.iter().enumerate().map(weight).collect();
        let n = weights.len();
        Model {
            weights,
            gradients: vec![None; n],
            columns: vec![None; n],
            stop_after: None,
            shapes: vec![[0; 2]; n],
            strides: vec![[0; 2]; n],
        }
    }

    /// From now on a parameter, a matrix, is stored column by column.
    pub(crate) fn transpose(&mut self, param: usize, columns: u64) {
        let rows = self.weights[param].len() as u64 / columns.max(1);
        self.weights[param] = self.weights[param].transposed(columns as usize);
        self.columns[param] = Some(columns);
        self.shapes[param] = [rows, columns];
        self.strides[param] = [1, rows];
    }

    /// A parameter's weights in row-major order.
    pub(crate) fn row_major(&self, param: usize) -> Tensor {
        match self.columns[param] {
            None => self.weights[param].clone(),
            Some(columns) => {
                let rows = self.weights[param].len() / (columns as usize).max(1);
                self.weights[param].transposed(rows)
            }
        }
    }

    /// Sets the gradients, given in row-major order.
    pub(crate) fn set_gradients(&mut self, gradients: &[Option<Tensor>]) {
        self.gradients = gradients
            .iter()
            .zip(&self.columns)
            .map(|(gradient, columns)| match (gradient, columns) {
                (Some(gradient), Some(columns)) => Some(gradient.transposed(*columns as usize)),
                (gradient, _) => gradient.clone(),
            })
            .collect();
    }
}

impl StepIo for Model {
    fn has_gradient(&self, param: usize) -> bool {
        self.gradients[param].is_some()
    }

    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let range = range.start as usize..range.end as usize;
        let gradient = self.gradients[param].as_ref();
        let weight = &mut self.weights[param];
        if self.columns[param].is_some() {
            let strides = Strides { shape: &self.shapes[param], strides: &self.strides[param] };
            let all = 0..weight.len();
            let gradient = gradient
                .map_or(Gradient::None, |g| Gradient::Strided(g.input(all.clone()), strides));
            return Segment::new(gradient, Weight::Strided(weight.weight(all), strides));
        }
        let gradient = gradient.map_or(Gradient::None, |g| g.input(range.clone()).into());
        Segment::new(gradient, weight.weight(range))
    }

    /// Some models can, some cannot: nothing else may depend on it.
    fn spans_runs(&self) -> bool {
        self.weights.len().is_multiple_of(2)
    }

    fn subgroup_done(&mut self, _done: u64, _of: u64) -> ControlFlow<()> {
        match &mut self.stop_after {
            Some(0) => {
                self.stop_after = None;
                ControlFlow::Break(())
            }
            Some(left) => {
                *left -= 1;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Continue(()),
        }
    }
}

/// A model whose gradients were all handed over before.
#[derive(Debug)]
pub(crate) struct Handed<'a>(pub(crate) &'a mut Model);

impl StepIo for Handed<'_> {
    fn has_gradient(&self, param: usize) -> bool {
        self.0.has_gradient(param)
    }

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

/// The same steps with everything in memory: one parameter at a time, the scalar kernel.
#[derive(Debug, Clone)]
pub(crate) struct Reference {
    pub(crate) weights: Vec<Tensor>,
    /// p, m, v, vmax.
    pub(crate) planes: Vec<[Vec<f32>; 4]>,
    pub(crate) counts: Vec<u64>,
    names: Vec<String>,
    rounding: Rounding,
}

impl Reference {
    pub(crate) fn new(params: &[Param], weights: &[Tensor], rounding: Rounding) -> Self {
        let planes = weights.iter().map(|w| {
            let n = w.len();
            let mut p = vec![0.0; n];
            kernel::widen(w.input(0..n), &mut p).unwrap();
            [p, vec![0.0; n], vec![0.0; n], vec![0.0; n]]
        });
        Reference {
            planes: planes.collect(),
            weights: weights.to_vec(),
            counts: vec![0; weights.len()],
            names: params.iter().map(|param| param.name.clone()).collect(),
            rounding,
        }
    }

    /// Applies one step with each parameter's own hyper-parameters and a factor of all gradients.
    pub(crate) fn step(&mut self, hypers: &[Hyper], factor: f64, gradients: &[Option<Tensor>]) {
        for (index, gradient) in gradients.iter().enumerate() {
            if let Some(gradient) = gradient {
                self.counts[index] += 1;
                let k = Scalars::at(&hypers[index], self.counts[index], factor);
                self.update(index, &k, gradient);
            }
        }
    }

    fn update(&mut self, index: usize, k: &Scalars, gradient: &Tensor) {
        let [p, m, v, vmax] = &mut self.planes[index];
        let n = p.len();
        let vmax = k.amsgrad.then_some(&mut vmax[..]);
        let grad = gradient.input(0..n);
        let out = match (self.weights[index].weight(0..n), self.rounding) {
            (WeightMut::F32(raw), _) => Output::F32(raw),
            (WeightMut::Bf16(raw), Rounding::Nearest) => Output::Bf16(raw),
            (WeightMut::F16(raw), Rounding::Nearest) => Output::F16(raw),
            (weights, Rounding::Stochastic { seed }) => {
                let name = twox_hash::XxHash3_64::oneshot(self.names[index].as_bytes());
                let chance =
                    Stochastic { key: Stochastic::key(seed, self.counts[index], name), first: 0 };
                let weights = match weights {
                    WeightMut::Bf16(raw) => HalfWeights::Bf16(raw),
                    WeightMut::F16(raw) => HalfWeights::F16(raw),
                    _ => unreachable!(),
                };
                let planes = WeightPlanes { weights, m, v, vmax };
                kernel::update_stochastic(Isa::Scalar, k, planes, grad, chance).unwrap();
                let weights = self.weights[index].input(0..n);
                return kernel::widen(weights, p).unwrap();
            }
            _ => unreachable!(),
        };
        kernel::update(Isa::Scalar, k, Planes { p, m, v, vmax }, grad, out).unwrap();
    }
}

/// Compares every bit of weights and state.
pub(crate) fn compare(optimizer: &Optimizer, model: &Model, reference: &Reference) {
    let plan = optimizer.plan();
    for (index, param) in plan.params.iter().enumerate() {
        let weights = model.row_major(index);
        assert_eq!(weights.bits(), reference.weights[index].bits(), "{}", param.name);
        assert_eq!(optimizer.updates(index), Some(reference.counts[index]), "{}", param.name);
        let n = param.elements().unwrap();
        let [p, m, v, vmax] = &reference.planes[index];
        let mut got = vec![1.0; n as usize];
        let same = |got: &[f32], expect: &[f32], what: &str| {
            let same =
                |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(got.iter().zip(expect).all(same), "{what} of {}", param.name);
        };
        optimizer.read_master(index, 0..n, weights.input(0..n as usize), &mut got).unwrap();
        same(&got, p, "master");
        for (plane, expect) in [(Plane::M, m), (Plane::V, v), (Plane::VMax, vmax)] {
            match optimizer.read_plane(index, plane, 0..n, &mut got) {
                Ok(()) => same(&got, expect, &plane.to_string()),
                Err(Error::OutOfRange { .. }) => {
                    assert!(plane == Plane::VMax && !plan.forms[index].amsgrad)
                }
                Err(error) => panic!("{error}"),
            }
        }
        let stored = optimizer.read_plane(index, Plane::P, 0..n, &mut got).is_ok();
        assert_eq!(stored, plan.forms[index].precision == StatePrecision::Fp32);
    }
}

/// A store over paths in memory, of unequal speeds, that answer in odd orders.
pub(crate) fn store(host: u64, paths: usize) -> Store {
    let mut builder = Store::builder().host_budget(host);
    for index in 0..paths {
        let path = MemoryPath::new(&format!("memory {index}"), 1e9 + 3e8 * index as f64);
        path.set_mischief(Mischief { reorder: index, ..Mischief::default() });
        builder = builder.path_store(Arc::new(path) as Arc<dyn PathStore>);
    }
    builder.open().unwrap()
}

/// Makes a step, taking it up again until it is done; returns whether it had to be.
pub(crate) fn step(
    optimizer: &mut Optimizer,
    model: &mut Model,
    options: &StepOptions,
) -> (StepReport, bool) {
    let mut stopped = false;
    loop {
        match optimizer.step_with(model, options) {
            Err(Error::Interrupted { cause: None, .. }) => {
                assert!(optimizer.read_plane(0, Plane::M, 0..0, &mut []).is_err());
                stopped = true;
            }
            result => return (result.unwrap(), stopped),
        }
    }
}
