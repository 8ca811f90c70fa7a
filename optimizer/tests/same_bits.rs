//! The offloaded run against the same steps in memory with the scalar kernel: every bit of weights
//! and planes, for random models, sizes, budgets, orders, paths, threads and interruptions; and the
//! closed form of what moves.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail like the test itself")]

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use proptest::prelude::*;
use tensortier_optimizer::kernel::{self, Input, Isa, Output, Planes, Scalars};
use tensortier_optimizer::{
    Error, Eviction, Hyper, Optimizer, Options, Order, Param, Plan, Plane, Segment, StatePrecision,
    StepIo, WeightMut,
};
use tensortier_storage::dtype::DType;
use tensortier_storage::path::PathStore;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::store::Store;

#[derive(Debug, Clone, PartialEq)]
enum Tensor {
    F32(Vec<f32>),
    Half(DType, Vec<u16>),
}

impl Tensor {
    fn new(dtype: DType, values: &[f32]) -> Self {
        match dtype {
            DType::F32 => Tensor::F32(values.to_vec()),
            DType::BF16 => {
                Tensor::Half(dtype, values.iter().map(|v| kernel::round::f32_to_bf16(*v)).collect())
            }
            _ => {
                Tensor::Half(dtype, values.iter().map(|v| kernel::round::f32_to_f16(*v)).collect())
            }
        }
    }

    fn input(&self, range: Range<usize>) -> Input<'_> {
        match self {
            Tensor::F32(raw) => Input::F32(&raw[range]),
            Tensor::Half(DType::BF16, raw) => Input::Bf16(&raw[range]),
            Tensor::Half(_, raw) => Input::F16(&raw[range]),
        }
    }

    fn weight(&mut self, range: Range<usize>) -> WeightMut<'_> {
        match self {
            Tensor::F32(raw) => WeightMut::F32(&mut raw[range]),
            Tensor::Half(DType::BF16, raw) => WeightMut::Bf16(&mut raw[range]),
            Tensor::Half(_, raw) => WeightMut::F16(&mut raw[range]),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Tensor::F32(raw) => raw.iter().map(|v| v.to_bits()).collect(),
            Tensor::Half(_, raw) => raw.iter().map(|v| u32::from(*v)).collect(),
        }
    }
}

fn values(seed: u64, n: usize, scale: f32) -> Vec<f32> {
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

struct Model {
    weights: Vec<Tensor>,
    gradients: Vec<Option<Tensor>>,
    stop_after: Option<u64>,
}

impl StepIo for Model {
    fn has_gradient(&self, param: usize) -> bool {
        self.gradients[param].is_some()
    }

    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let range = range.start as usize..range.end as usize;
        let gradient = self.gradients[param].as_ref().unwrap().input(range.clone());
        Segment { gradient, weight: self.weights[param].weight(range) }
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

/// The same steps with everything in memory: one parameter at a time, the scalar kernel.
struct Reference {
    weights: Vec<Tensor>,
    planes: Vec<[Vec<f32>; 4]>,
    counts: Vec<u64>,
}

impl Reference {
    fn new(weights: &[Tensor]) -> Self {
        let planes = weights.iter().map(|w| {
            let n = w.bits().len();
            let mut p = vec![0.0; n];
            kernel::widen(w.input(0..n), &mut p).unwrap();
            [p, vec![0.0; n], vec![0.0; n], vec![0.0; n]]
        });
        Reference {
            planes: planes.collect(),
            weights: weights.to_vec(),
            counts: vec![0; weights.len()],
        }
    }

    fn step(&mut self, hyper: &Hyper, gradients: &[Option<Tensor>]) {
        for (index, gradient) in gradients.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            self.counts[index] += 1;
            let k = Scalars::at(hyper, self.counts[index], 1.0);
            let [p, m, v, vmax] = &mut self.planes[index];
            let n = p.len();
            let vmax = hyper.amsgrad.then_some(&mut vmax[..]);
            let out = match self.weights[index].weight(0..n) {
                WeightMut::F32(raw) => Output::F32(raw),
                WeightMut::Bf16(raw) => Output::Bf16(raw),
                WeightMut::F16(raw) => Output::F16(raw),
                _ => unreachable!(),
            };
            let planes = Planes { p, m, v, vmax };
            kernel::update(Isa::Scalar, &k, planes, gradient.input(0..n), out).unwrap();
        }
    }
}

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F16)]
}

fn compare(optimizer: &Optimizer, model: &Model, reference: &Reference) {
    for (index, param) in optimizer.plan().params.iter().enumerate() {
        assert_eq!(model.weights[index].bits(), reference.weights[index].bits(), "{}", param.name);
        let n = param.elements().unwrap();
        for (plane, expect) in
            [Plane::P, Plane::M, Plane::V, Plane::VMax].iter().zip(&reference.planes[index])
        {
            let mut got = vec![1.0; n as usize];
            match optimizer.read_plane(index, *plane, 0..n, &mut got) {
                Err(Error::OutOfRange { .. }) => continue,
                Err(error) => panic!("{error}"),
                Ok(()) if reference.counts[index] == 0 && *plane == Plane::P => continue,
                Ok(()) => {}
            }
            assert!(
                got.iter().zip(expect).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{} {plane}",
                param.name
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
    ))]

    #[test]
    fn an_offloaded_run_gives_the_bits_of_a_run_in_memory(
        sizes in prop::collection::vec(prop_oneof![0usize..200, 60_000usize..300_000], 1..7),
        weights in dtype(),
        grads in dtype(),
        blocks in 1u64..3,
        extra_chunks in 0u64..8,
        alternate in any::<bool>(),
        scheduled in any::<bool>(),
        amsgrad in any::<bool>(),
        paths in 1usize..4,
        threads in 1usize..4,
        seed in any::<u64>(),
        missing in prop::collection::vec(0usize..12, 6),
        stops in prop::collection::vec(0u64..9, 6),
    ) {
        let hyper = Hyper { lr: 1e-2, amsgrad, ..Hyper::default() };
        let params: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, n)| Param::new(format!("p{i}"), [*n as u64], weights))
            .collect();
        let options = Options {
            hyper,
            precision: None,
            subgroup_elems: Some(blocks * 65_536),
            order: if alternate { Order::Alternate } else { Order::Ascending },
            eviction: if scheduled { Eviction::Schedule } else { Eviction::Lru },
            threads: Some(threads),
        };
        let host = match Plan::new(params.clone(), options.clone(), u64::MAX) {
            Ok(plan) => plan.reserve_bytes / 2 * (3 + extra_chunks),
            Err(Error::NoParameters) => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        let plan = Plan::new(params, options, host).unwrap();
        let mut builder = Store::builder().host_budget(host);
        for index in 0..paths {
            let path = MemoryPath::new(&format!("memory {index}"), 1e9 + 3e8 * index as f64);
            path.set_mischief(Mischief { reorder: index, ..Mischief::default() });
            builder = builder.path_store(Arc::new(path) as Arc<dyn PathStore>);
        }
        let mut optimizer = Optimizer::open(builder.open().unwrap(), plan).unwrap();
        let start: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, n)| Tensor::new(weights, &values(seed ^ i as u64, *n, 0.02)))
            .collect();
        let mut reference = Reference::new(&start);
        let gradients = vec![None; sizes.len()];
        let mut model = Model { weights: start, gradients, stop_after: None };
        let mut whole_steps = true;
        for step in 1..=6u64 {
            let gradient = |i: usize| {
                let seed = seed.wrapping_add(step * 1000 + i as u64);
                (missing[step as usize - 1] != i).then(|| Tensor::new(grads, &values(seed, sizes[i], 1e-3)))
            };
            model.gradients = (0..sizes.len()).map(gradient).collect();
            reference.step(&hyper, &model.gradients);
            model.stop_after = Some(stops[step as usize - 1]).filter(|stop| *stop < 4);
            let mut result = optimizer.step(&mut model);
            while let Err(Error::Interrupted { cause: None, .. }) = result {
                prop_assert!(optimizer.read_plane(0, Plane::M, 0..0, &mut []).is_err());
                whole_steps = false;
                result = optimizer.step(&mut model);
            }
            let report = result.unwrap();
            whole_steps &= model.gradients.iter().all(Option::is_some);
            if whole_steps && scheduled && step > 1 {
                let n = optimizer.plan().subgroups.len() as u64;
                let (before, after) = (optimizer.plan().kept_after(step - 1), optimizer.plan().kept_after(step));
                prop_assert_eq!(report.reads.subgroups, n - before.subgroups, "step {}", step);
                prop_assert_eq!(report.writes.subgroups, n - after.subgroups, "step {}", step);
                let all = optimizer.plan().state_bytes();
                prop_assert_eq!(report.reads.bytes, all - before.bytes);
                prop_assert_eq!(report.writes.bytes, all - after.bytes);
                prop_assert_eq!(report.hits.subgroups, before.subgroups);
            }
        }
        compare(&optimizer, &model, &reference);
    }
}

#[test]
fn a_wrong_hand_over_is_refused_and_can_be_mended() {
    let params = vec![Param::new("a", [100], DType::BF16), Param::new("b", [70_000], DType::BF16)];
    let plan = Plan::new(params, Options::default(), 64 << 20).unwrap();
    assert_eq!(plan.precision, StatePrecision::Fp32);
    let path: Arc<dyn PathStore> = Arc::new(MemoryPath::new("memory", 1e9));
    let store = Store::builder().host_budget(64 << 20).path_store(path).open().unwrap();
    let mut optimizer = Optimizer::open(store, plan).unwrap();
    let good = |n: usize| Tensor::new(DType::BF16, &values(n as u64, n, 1.0));
    let mut model = Model {
        weights: vec![good(100), Tensor::new(DType::F16, &values(1, 70_000, 1.0))],
        gradients: vec![Some(good(100)), Some(good(70_000))],
        stop_after: None,
    };
    let text = optimizer.step(&mut model).unwrap_err().to_string();
    assert!(text.contains("parameter b") && text.contains("F16"), "{text}");
    model.weights[1] = good(70_000);
    optimizer.step(&mut model).unwrap();
    assert_eq!(optimizer.steps(), 1);
}

/// Hands over good segments but for one call, which gets an empty gradient.
struct Liar {
    model: Model,
    calls: usize,
    bad_call: usize,
}

impl StepIo for Liar {
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        self.calls += 1;
        let mut segment = self.model.segment(param, range);
        if self.calls == self.bad_call {
            segment.gradient = Input::F32(&[]);
        }
        segment
    }
}

#[test]
fn a_failure_inside_a_subgroup_updates_nothing_twice() {
    let sizes = [100usize, 2000, 70_000, 5];
    // Looked at once before the step, then handed over one by one: the bad call is run 2 of those.
    for bad_call in [1, 7, 8] {
        let params: Vec<_> =
            sizes.iter().map(|n| Param::new(format!("p{n}"), [*n as u64], DType::F32)).collect();
        let plan = Plan::new(params, Options::default(), 16 << 20).unwrap();
        let hyper = plan.options.hyper;
        let path: Arc<dyn PathStore> = Arc::new(MemoryPath::new("memory", 1e9));
        let store = Store::builder().host_budget(16 << 20).path_store(path).open().unwrap();
        let mut optimizer = Optimizer::open(store, plan).unwrap();
        let tensors = |seed: u64| -> Vec<Tensor> {
            sizes.iter().map(|n| Tensor::new(DType::F32, &values(seed, *n, 0.1))).collect()
        };
        let model = Model {
            weights: tensors(1),
            gradients: tensors(2).into_iter().map(Some).collect(),
            stop_after: None,
        };
        let mut reference = Reference::new(&model.weights);
        reference.step(&hyper, &model.gradients);
        let mut liar = Liar { model, calls: 0, bad_call };
        match optimizer.step(&mut liar).unwrap_err() {
            Error::Parameter { .. } if bad_call == 1 => {}
            Error::Interrupted { cause: Some(_), .. } if bad_call > 1 => {
                let missing = liar.model.gradients[0].take();
                let text = optimizer.step(&mut liar.model).unwrap_err().to_string();
                assert!(text.contains("began with a gradient"), "{text}");
                liar.model.gradients[0] = missing;
            }
            error => panic!("{error}"),
        }
        optimizer.step(&mut liar).unwrap();
        compare(&optimizer, &liar.model, &reference);
    }
}
