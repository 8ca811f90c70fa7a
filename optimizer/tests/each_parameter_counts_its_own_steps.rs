//! Gradients that come now and then: a parameter without one is left as it is and does not count, so
//! that what it does later depends on its own steps alone.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Reference, Tensor, compare, step, store, values};
use tensortier_optimizer::{
    Hyper, NonFinite, Optimizer, Options, Outcome, Param, Plan, Plane, Rounding, StatePrecision,
    StepOptions,
};
use tensortier_storage::dtype::DType;

/// Two that share a subgroup, and one over three.
const SIZES: [usize; 3] = [100, 300, 150_000];

fn optimizer(precision: StatePrecision) -> (Optimizer, Model) {
    let options = Options {
        precision: Some(precision),
        subgroup_elems: Some(65_536),
        ..Options::from(Hyper { lr: 1e-2, weight_decay: 0.1, ..Hyper::default() })
    };
    let param = |(i, n): (usize, &usize)| Param::new(format!("p{i}"), [*n as u64], DType::BF16);
    let params: Vec<_> = SIZES.iter().enumerate().map(param).collect();
    let model = Model::new(&params, 3);
    // Memory for a pipeline and little more: subgroups leave and come back.
    let plan = Plan::new(params, options, 3 << 20).unwrap();
    (Optimizer::open(store(3 << 20, 2), plan).unwrap(), model)
}

/// The gradient of a parameter's `t`-th step of its own.
fn gradient(param: usize, t: u64) -> Tensor {
    Tensor::new(DType::BF16, &values(1000 * t + param as u64, SIZES[param], 0.1))
}

/// Makes the steps of which each says who has a gradient and after how many subgroups it is stopped.
fn run(
    precision: StatePrecision,
    steps: &[([bool; 3], Option<u64>)],
) -> (Optimizer, Model, Reference) {
    let (mut optimizer, mut model) = optimizer(precision);
    let hyper = *optimizer.hyper(0).unwrap();
    let params = optimizer.plan().params.clone();
    let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
    for (has, stop) in steps {
        let own = |i: usize| has[i].then(|| gradient(i, reference.counts[i]));
        let given: Vec<_> = (0..3).map(own).collect();
        let before = model.weights.clone();
        model.set_gradients(&given);
        model.stop_after = *stop;
        let (report, _) = step(&mut optimizer, &mut model, &StepOptions::default());
        assert_eq!(report.outcome, Outcome::Applied);
        reference.step(&[hyper; 3], 1.0, &given);
        let elements: u64 = (0..3).filter(|i| has[*i]).map(|i| SIZES[i] as u64).sum();
        assert_eq!(report.elements, elements, "{has:?}");
        for (i, _) in has.iter().enumerate().filter(|(_, has)| !**has) {
            assert_eq!(model.weights[i], before[i], "no decay without a gradient");
        }
    }
    compare(&optimizer, &model, &reference);
    (optimizer, model, reference)
}

const EVERY: [bool; 3] = [true; 3];
const SPLIT: StatePrecision = StatePrecision::SplitMaster;

#[test]
fn intermittent_gradients_skip_their_parameter() {
    let steps = [
        (EVERY, None),
        ([true, false, false], Some(0)),
        ([false, false, true], Some(1)),
        ([false; 3], Some(0)),
        ([false, true, true], Some(0)),
        ([true, false, true], Some(1)),
        (EVERY, Some(2)),
    ];
    for precision in [StatePrecision::Fp32, SPLIT] {
        let (optimizer, ..) = run(precision, &steps);
        let counts: Vec<_> = (0..3).map(|i| optimizer.updates(i).unwrap()).collect();
        assert_eq!((optimizer.steps(), &counts[..]), (7, &[4, 3, 5][..]));
    }
}

#[test]
fn frozen_then_unfrozen_is_as_if_it_had_just_begun() {
    for precision in [StatePrecision::Fp32, SPLIT] {
        for (frozen, stop) in [(2, None), (2, Some(1)), (0, Some(0)), (1, None)] {
            let mut has = EVERY;
            has[frozen] = false;
            let late: Vec<_> =
                [(has, None), (has, stop), (has, None), (EVERY, stop), (EVERY, None)].into();
            let mut only = [false; 3];
            only[frozen] = true;
            let (a, model_a, _) = run(precision, &late);
            let (b, model_b, _) = run(precision, &[(only, None), (only, None)]);
            assert_eq!(a.updates(frozen), Some(2));
            assert_eq!(model_a.weights[frozen], model_b.weights[frozen]);
            let n = SIZES[frozen];
            for plane in [Plane::M, Plane::V] {
                let read = |optimizer: &Optimizer| {
                    let mut out = vec![0.0_f32; n];
                    optimizer.read_plane(frozen, plane, 0..n as u64, &mut out).unwrap();
                    out
                };
                assert_eq!(read(&a), read(&b), "{plane}");
            }
        }
    }
}

#[test]
fn skipped_steps_and_steps_of_nobody_count_for_no_parameter() {
    let (mut optimizer, mut model) = optimizer(SPLIT);
    let before = model.weights.clone();
    let report = optimizer.step(&mut model).unwrap();
    assert_eq!((report.step, report.outcome, report.elements), (1, Outcome::Applied, 0));
    assert_eq!((report.reads.bytes, report.writes.bytes), (0, 0));
    let mut bad = values(1, SIZES[0], 0.1);
    bad[99] = f32::NAN;
    model.set_gradients(&[Some(Tensor::new(DType::F32, &bad)), Some(gradient(1, 1)), None]);
    let skip = StepOptions { non_finite: NonFinite::Skip, ..StepOptions::default() };
    let report = optimizer.step_with(&mut model, &skip).unwrap();
    assert_eq!(report.step, 2);
    assert_eq!(
        (optimizer.steps(), optimizer.updates(0), optimizer.updates(1)),
        (1, Some(0), Some(0))
    );
    assert_eq!(model.weights, before);
}
