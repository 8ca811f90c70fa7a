//! The offloaded run against the same steps in memory with the scalar kernel: every bit of weights
//! and planes, for random models, groups, precisions, layouts, sizes, budgets, orders, paths, threads
//! and interruptions; and the closed form of what moves.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::ops::Range;

use common::{Model, Reference, Tensor, compare, step, store, values};
use proptest::prelude::*;
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Error, Eviction, Hyper, NonFinite, Optimizer, Options, Order, Outcome, Param, Plan, Plane,
    Rounding, Segment, StatePrecision, StepIo, StepOptions,
};
use tensortier_storage::dtype::DType;

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F16)]
}

#[derive(Debug, Clone)]
struct Tensors {
    /// Elements, weight type, group, and whether it is stored column by column.
    params: Vec<(usize, DType, usize, bool)>,
    grads: DType,
    precision: Option<StatePrecision>,
    rounding: Rounding,
}

fn tensors() -> impl Strategy<Value = Tensors> {
    let size = prop_oneof![0usize..200, 60_000usize..300_000];
    let param = (size, dtype(), 0usize..3, any::<bool>());
    let precision = prop_oneof![
        3 => Just(None),
        1 => Just(Some(StatePrecision::Fp32)),
        3 => Just(Some(StatePrecision::SplitMaster)),
    ];
    let stochastic = prop::option::weighted(0.2, any::<u64>());
    (prop::collection::vec(param, 1..7), dtype(), precision, stochastic).prop_map(
        |(mut params, grads, precision, stochastic)| {
            if precision == Some(StatePrecision::SplitMaster) {
                params.iter_mut().filter(|p| p.1 == DType::F16).for_each(|p| p.1 = DType::BF16);
            }
            let rounding = stochastic
                .filter(|_| precision.is_none())
                .map_or(Rounding::Nearest, |seed| Rounding::Stochastic { seed });
            Tensors { params, grads, precision, rounding }
        },
    )
}

fn hyper() -> impl Strategy<Value = Hyper> {
    let beta1 = prop_oneof![Just(0.9), Just(0.0), Just(0.4), Just(0.5)];
    (common::hyper(), beta1).prop_map(|(hyper, beta1)| Hyper { lr: 1e-2, beta1, ..hyper })
}

/// One step's events: which parameter has no gradient, after how many subgroups it is stopped, and
/// what is asked for.
#[derive(Debug, Clone)]
struct Event {
    missing: usize,
    stop: u64,
    max_norm: Option<f64>,
    loss_scale: f64,
    infinite: bool,
    begun: bool,
}

fn event() -> impl Strategy<Value = Event> {
    let stop = 0u64..9;
    (0usize..12, stop, prop::option::of(0.01f64..1.0), 0u32..3, 0u32..8, any::<bool>()).prop_map(
        |(missing, stop, max_norm, scale, infinite, begun)| Event {
            missing,
            stop,
            max_norm,
            loss_scale: f64::from(1u32 << (scale * 8)),
            infinite: infinite == 0,
            begun,
        },
    )
}

fn options(
    tensors: &Tensors,
    groups: &[Hyper],
    blocks: u64,
    order: u8,
    scheduled: bool,
) -> Options {
    Options {
        groups: groups.to_vec(),
        precision: tensors.precision,
        rounding: tensors.rounding,
        subgroup_elems: Some(blocks * 65_536),
        order: [Order::Alternate, Order::Ascending, Order::Descending][order as usize],
        eviction: if scheduled { Eviction::Schedule } else { Eviction::Lru },
        ..Options::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
    ))]

    #[test]
    fn an_offloaded_run_gives_the_bits_of_a_run_in_memory(
        tensors in tensors(),
        groups in prop::collection::vec(hyper(), 3),
        blocks in 1u64..3,
        extra_chunks in 0u64..8,
        resident in prop_oneof![2 => Just(0.0), 1 => 0.0f64..1.0],
        order in 0u8..3,
        scheduled in any::<bool>(),
        paths in 1usize..4,
        threads in 1usize..4,
        seed in any::<u64>(),
        events in prop::collection::vec(event(), 6..20),
    ) {
        let param = |(i, p): (usize, &(usize, DType, usize, bool))| {
            // Of two columns, if that makes a matrix.
            let shape = if p.3 && p.0 % 2 == 0 { vec![p.0 as u64 / 2, 2] } else { vec![p.0 as u64] };
            Param::new(format!("p{i}"), shape, p.1).in_group(p.2)
        };
        let params: Vec<_> = tensors.params.iter().enumerate().map(param).collect();
        let options = Options {
            resident,
            threads: Some(threads),
            ..options(&tensors, &groups, blocks, order, scheduled)
        };
        let widest = Plan::new(params.clone(), options.clone(), u64::MAX).unwrap();
        let host = widest.reserve_bytes / 2 * (3 + extra_chunks) + widest.resident_memory();
        let plan = Plan::new(params.clone(), options, host.max(1 << 16)).unwrap();
        let mut optimizer = Optimizer::open(store(host.max(1 << 16), paths), plan).unwrap();
        let mut model = Model::new(&params, seed);
        for (i, param) in params.iter().enumerate() {
            if param.global_shape.len() == 2 {
                model.transpose(i, 2);
            }
        }
        let start: Vec<_> = (0..params.len()).map(|i| model.row_major(i)).collect();
        let mut reference = Reference::new(&params, &start, tensors.rounding);
        let mut hypers: Vec<Hyper> = params.iter().map(|p| groups[p.group]).collect();
        let (mut whole_steps, mut applied) = (true, 0u64);
        for (t, event) in events.iter().enumerate() {
            let gradient = |i: usize| {
                let seed = seed.wrapping_add((t * 1000 + i) as u64);
                let mut values = values(seed, tensors.params[i].0, 1e-3);
                if event.infinite && i == params.len() - 1 && let Some(last) = values.last_mut() {
                    *last = f32::INFINITY;
                }
                (event.missing != i).then(|| Tensor::new(tensors.grads, &values))
            };
            let gradients: Vec<_> = (0..params.len()).map(gradient).collect();
            model.set_gradients(&gradients);
            model.stop_after = Some(event.stop).filter(|stop| *stop < 4);
            if event.begun {
                optimizer.begin_step().unwrap();
            }
            let options = StepOptions {
                max_norm: event.max_norm,
                loss_scale: event.loss_scale,
                non_finite: NonFinite::Skip,
                ..StepOptions::default()
            };
            let before = model.weights.clone();
            let (report, stopped) = step(&mut optimizer, &mut model, &options);
            let infinite = gradients.iter().flatten().any(|g| {
                let mut wide = vec![0.0; g.len()];
                tensortier_optimizer::kernel::widen(g.input(0..g.len()), &mut wide).unwrap();
                wide.iter().any(|v| !v.is_finite())
            });
            if infinite {
                let param = Some(params[params.len() - 1].name.clone());
                prop_assert_eq!(&report.outcome, &Outcome::Skipped { param });
                prop_assert_eq!(&model.weights, &before);
                // It was planned without those that have no gradient, and they left memory.
                whole_steps &= gradients.iter().all(Option::is_some);
                continue;
            }
            prop_assert_eq!(&report.outcome, &Outcome::Applied);
            applied += 1;
            reference.step(&hypers, report.gradient_factor, &gradients);
            check_factor(&options, &gradients, report.gradient_factor);
            whole_steps &= !stopped && gradients.iter().all(Option::is_some);
            if whole_steps && scheduled && applied > 1 {
                let plan = optimizer.plan();
                let n = plan.subgroups.len() as u64;
                let (before, after) = (plan.kept_after(applied - 1), plan.kept_after(applied));
                prop_assert_eq!(report.reads.subgroups, n - before.subgroups, "{:?}", report);
                prop_assert_eq!(report.writes.subgroups, n - after.subgroups, "{:?}", report);
                let all = plan.state_bytes();
                prop_assert_eq!(report.reads.bytes, all - before.bytes);
                prop_assert_eq!(report.writes.bytes, all - after.bytes);
                prop_assert_eq!(report.hits.subgroups, before.subgroups);
            }
            // A scheduler changes the learning rate of one group.
            let group = t % 3;
            let hyper = Hyper { lr: 1e-2 / (t + 2) as f64, ..*optimizer.hyper(group).unwrap() };
            optimizer.set_hyper(group, hyper).unwrap();
            for (own, param) in hypers.iter_mut().zip(&params).filter(|(_, p)| p.group == group) {
                own.lr = if param.group == group { hyper.lr } else { own.lr };
            }
        }
        prop_assert_eq!(optimizer.steps(), applied);
        compare(&optimizer, &model, &reference);
    }
}

/// The factor from a norm that is summed plainly: nearly the same.
fn check_factor(options: &StepOptions, gradients: &[Option<Tensor>], factor: f64) {
    let mut sum = 0.0;
    for gradient in gradients.iter().flatten() {
        let mut wide = vec![0.0; gradient.len()];
        tensortier_optimizer::kernel::widen(gradient.input(0..wide.len()), &mut wide).unwrap();
        sum += wide.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    }
    let norm = sum.sqrt() / options.loss_scale;
    let clip = options.max_norm.map_or(1.0, |max| (max / (norm + 1e-6)).min(1.0));
    let expect = clip / options.loss_scale;
    assert!((factor - expect).abs() <= 1e-9 * expect, "{factor} {expect}");
}

fn small(dtype: DType, sizes: &[usize], options: Options) -> (Optimizer, Model) {
    let params: Vec<_> =
        sizes.iter().map(|n| Param::new(format!("p{n}"), [*n as u64], dtype)).collect();
    let model = Model::new(&params, 7);
    let plan = Plan::new(params, options, 64 << 20).unwrap();
    (Optimizer::open(store(64 << 20, 1), plan).unwrap(), model)
}

fn gradients(dtype: DType, sizes: &[usize], seed: u64) -> Vec<Option<Tensor>> {
    sizes.iter().map(|n| Some(Tensor::new(dtype, &values(seed + *n as u64, *n, 0.1)))).collect()
}

#[test]
fn a_wrong_hand_over_is_refused_and_can_be_mended() {
    let sizes = [100, 70_000];
    let (mut optimizer, mut model) = small(DType::BF16, &sizes, Options::default());
    assert_eq!(optimizer.plan().forms[0].precision, StatePrecision::Fp32);
    model.set_gradients(&gradients(DType::BF16, &sizes, 1));
    let good = model.weights[1].clone();
    model.weights[1] = Tensor::new(DType::F16, &values(1, 70_000, 1.0));
    let text = optimizer.step(&mut model).unwrap_err().to_string();
    assert!(text.contains("parameter p70000") && text.contains("F16"), "{text}");
    model.weights[1] = good;
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
            segment.gradient = Input::F32(&[]).into();
        }
        segment
    }
}

#[test]
fn a_failure_inside_a_subgroup_updates_nothing_twice() {
    let sizes = [100usize, 2000, 70_000, 5];
    // Looked at once before the step, then handed over one by one: the bad call is run 2 of those.
    for bad_call in [1, 7, 8] {
        let (mut optimizer, mut model) = small(DType::F32, &sizes, Options::default());
        let mut reference =
            Reference::new(&optimizer.plan().params, &model.weights, Rounding::Nearest);
        let gradients = gradients(DType::F32, &sizes, 2);
        reference.step(&[Hyper::default(); 4], 1.0, &gradients);
        model.set_gradients(&gradients);
        let mut liar = Liar { model, calls: 0, bad_call };
        match optimizer.step(&mut liar).unwrap_err() {
            Error::Parameter { .. } if bad_call == 1 => {}
            Error::Interrupted { cause: Some(_), .. } if bad_call > 1 => {
                let missing = liar.model.gradients[0].take();
                let text = optimizer.step(&mut liar.model).unwrap_err().to_string();
                assert!(text.contains("began with a gradient"), "{text}");
                liar.model.gradients[0] = missing;
                let clipped = StepOptions { max_norm: Some(1.0), ..StepOptions::default() };
                let text = optimizer.step_with(&mut liar, &clipped).unwrap_err().to_string();
                assert!(text.contains("it began with"), "{text}");
            }
            error => panic!("{error}"),
        }
        optimizer.step(&mut liar).unwrap();
        compare(&optimizer, &liar.model, &reference);
    }
}

/// Two parameters whose weights lie in one vector, at these places.
struct Shared {
    weights: Vec<f32>,
    gradient: Vec<f32>,
    at: [Range<usize>; 2],
}

impl StepIo for Shared {
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let weight = &mut self.weights[self.at[param].clone()];
        let range = range.start as usize..range.end as usize;
        Segment::new(
            Input::F32(&self.gradient[range.clone()]),
            tensortier_optimizer::WeightMut::F32(&mut weight[range]),
        )
    }
}

#[test]
fn weights_that_two_parameters_share_are_refused() {
    for (at, tied) in [([0..10, 10..20], false), ([0..10, 9..19], true), ([0..10, 0..10], true)] {
        let params: Vec<_> =
            ["a", "b"].map(|name| Param::new(name, [10], DType::F32)).into_iter().collect();
        let plan = Plan::new(params, Options::default(), 1 << 20).unwrap();
        let mut optimizer = Optimizer::open(store(1 << 20, 1), plan).unwrap();
        let mut io = Shared { weights: vec![1.0; 20], gradient: vec![1.0; 10], at };
        match optimizer.step(&mut io) {
            Ok(_) => assert!(!tied),
            Err(error) => {
                assert!(tied);
                assert!(error.to_string().contains("a and b share memory"), "{error}");
                assert_eq!(io.weights, vec![1.0; 20]);
            }
        }
    }
}

#[test]
fn changed_weights_of_a_split_master_are_refused_until_they_are_taken() {
    let sizes = [100usize, 200_000];
    let split = Options { precision: Some(StatePrecision::SplitMaster), ..Options::default() };
    let (mut optimizer, mut model) = small(DType::BF16, &sizes, split);
    let step = |optimizer: &mut Optimizer, model: &mut Model, seed| {
        model.set_gradients(&gradients(DType::BF16, &sizes, seed));
        optimizer.step(model)
    };
    step(&mut optimizer, &mut model, 1).unwrap();
    let Tensor::Half(_, raw) = &mut model.weights[1] else { unreachable!() };
    raw[199_999] ^= 1;
    let before = model.weights.clone();
    let error = step(&mut optimizer, &mut model, 2).unwrap_err();
    assert!(matches!(&error, Error::WeightsChanged { param } if param == "p200000"), "{error}");
    assert_eq!(model.weights, before);
    // Taken as they are, the master is the weight itself.
    optimizer.refresh_master(1).unwrap();
    let mut master = vec![0.0; 200_000];
    optimizer.read_master(1, 0..200_000, model.weights[1].input(0..200_000), &mut master).unwrap();
    assert_eq!(Tensor::new(DType::BF16, &master), model.weights[1]);
    step(&mut optimizer, &mut model, 2).unwrap();
    step(&mut optimizer, &mut model, 3).unwrap();
    // Moments went on: as a run that had these weights as fp32 masters all along has them.
    let mut v = vec![0.0; 200_000];
    optimizer.read_plane(1, Plane::V, 0..200_000, &mut v).unwrap();
    assert!(v.iter().all(|v| v.is_sign_positive()));
    assert_eq!(optimizer.updates(1), Some(3));
}

#[test]
fn a_step_that_needs_all_gradients_or_finite_ones_refuses_others_unchanged() {
    let sizes = [100usize, 70_000];
    let (mut optimizer, mut model) = small(DType::F32, &sizes, Options::default());
    let mut given = gradients(DType::F32, &sizes, 1);
    let before = model.weights.clone();
    given[0] = None;
    model.set_gradients(&given);
    let all = StepOptions { require_all: true, ..StepOptions::default() };
    let error = optimizer.step_with(&mut model, &all).unwrap_err();
    assert!(matches!(&error, Error::MissingGradient { param } if param == "p100"), "{error}");
    let Some(Tensor::F32(raw)) = &mut given[1] else { unreachable!() };
    raw[69_999] = f32::NAN;
    model.set_gradients(&given);
    let raise = StepOptions { non_finite: NonFinite::Raise, ..StepOptions::default() };
    let error = optimizer.step_with(&mut model, &raise).unwrap_err();
    assert!(
        matches!(&error, Error::NonFinite { param: Some(param) } if param == "p70000"),
        "{error}"
    );
    // Another rank may have one that is not finite.
    model.set_gradients(&gradients(DType::F32, &sizes, 1));
    let outside = Some(tensortier_optimizer::Norm { sum_of_squares: 1.0, finite: false });
    let error =
        optimizer.step_with(&mut model, &StepOptions { norm: outside, ..raise }).unwrap_err();
    assert!(error.to_string().contains("another rank"), "{error}");
    assert_eq!(model.weights, before);
    assert_eq!((optimizer.steps(), optimizer.updates(1)), (0, Some(0)));
    // Asked to apply whatever comes, it does.
    let Some(Tensor::F32(raw)) = &mut model.gradients[1] else { unreachable!() };
    raw[0] = f32::INFINITY;
    optimizer.step(&mut model).unwrap();
    assert_eq!(optimizer.updates(1), Some(1));
}

#[test]
fn the_norm_of_ranks_adds_up() {
    let sizes = [100usize, 200_000];
    let (mut optimizer, mut model) = small(DType::BF16, &sizes, Options::default());
    model.set_gradients(&gradients(DType::BF16, &sizes, 1));
    let own = optimizer.gradient_norm(&mut model).unwrap();
    let whole = tensortier_optimizer::Norm::from(own.sum_of_squares * 4.0);
    let options = StepOptions { max_norm: Some(1.0), norm: Some(whole), ..StepOptions::default() };
    let report = optimizer.step_with(&mut model, &options).unwrap();
    assert_eq!(report.norm, Some(whole));
    assert_eq!(report.gradient_factor, 1.0 / (2.0 * own.value() + 1e-6));
}

#[test]
fn an_optimizer_takes_its_objects_with_it_and_nobody_elses() {
    let params = || vec![Param::new("w", [200_000], DType::F32)];
    let options = Options { subgroup_elems: Some(65_536), ..Options::default() };
    let plan = |name: &str| {
        let options = Options { name: name.into(), ..options.clone() };
        Plan::new(params(), options, 2 << 20).unwrap()
    };
    let store = store(4 << 20, 1);
    let one = Optimizer::open(store.clone(), plan("one")).unwrap();
    let two = Optimizer::open(store.clone(), plan("two")).unwrap();
    assert!(Optimizer::open(store.clone(), plan("one")).is_err());
    assert_eq!(store.list("one/").len(), 4);
    drop(one);
    assert_eq!((store.list("one/").len(), store.list("two/").len()), (0, 4));
    // One that cannot be made whole leaves nothing.
    store.create("one/subgroup/000002", DType::U8, &[1]).unwrap();
    assert!(Optimizer::open(store.clone(), plan("one")).is_err());
    assert_eq!(store.list("one/").len(), 1);
    drop(two);
}
