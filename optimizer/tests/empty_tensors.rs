//! Parameters without elements, beside others and alone: they count their steps as any other, and
//! nothing else comes of them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Handed, Model, Reference, Tensor, compare, store, values};
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Accumulation, GradientPlace, Hyper, NonFinite, Norm, Optimizer, Options, Outcome, Param, Plan,
    Plane, Rounding, Shard, StatePrecision, StepOptions, StepReport,
};
use tensortier_storage::dtype::DType;

/// Empty in every way, first, last and between others; group 1 has nothing else.
fn params() -> Vec<Param> {
    let empty_box = Shard::Box { offset: vec![4, 1], shape: vec![0, 2] };
    vec![
        Param::new("nothing", [0], DType::BF16).in_group(1),
        Param::new("long", [70_000], DType::BF16),
        Param::new("no columns", [3, 0], DType::BF16),
        Param::new("empty box", [4, 3], DType::BF16).with_shard(empty_box),
        Param::new("scalar", [], DType::BF16),
        Param::new("empty range", [9], DType::BF16).with_shard(Shard::Flat { range: 4..4 }),
    ]
}

fn gradients(params: &[Param], seed: u64) -> Vec<Option<Tensor>> {
    let one = |(i, param): (usize, &Param)| {
        let n = param.elements().unwrap() as usize;
        Some(Tensor::new(DType::BF16, &values(seed + i as u64, n, 0.1)))
    };
    params.iter().enumerate().map(one).collect()
}

fn options() -> [Options; 3] {
    let base = Options {
        groups: vec![Hyper::default(), Hyper { amsgrad: true, ..Hyper::default() }],
        subgroup_elems: Some(65_536),
        ..Options::default()
    };
    [
        base.clone(),
        Options { precision: Some(StatePrecision::SplitMaster), ..base.clone() },
        Options { rounding: Rounding::Stochastic { seed: 4 }, ..base },
    ]
}

#[test]
fn beside_others_they_count_and_nothing_else() {
    for options in options() {
        let (params, rounding) = (params(), options.rounding);
        let hypers: Vec<_> = params.iter().map(|param| options.groups[param.group]).collect();
        let plan = Plan::new(params.clone(), options, 4 << 20).unwrap();
        assert_eq!(plan.elements(), 70_001);
        let mut optimizer = Optimizer::open(store(4 << 20, 1), plan).unwrap();
        let mut model = Model::new(&params, 1);
        let mut reference = Reference::new(&params, &model.weights, rounding);
        for seed in 0..4 {
            let mut given = gradients(&params, seed * 100);
            if seed == 2 {
                given[2] = None;
            }
            model.set_gradients(&given);
            let clip = StepOptions { max_norm: Some(0.1), ..StepOptions::default() };
            let report = optimizer.step_with(&mut model, &clip).unwrap();
            reference.step(&hypers, report.gradient_factor, &given);
            assert_eq!(report.elements, 70_001);
        }
        compare(&optimizer, &model, &reference);
        let counts: Vec<_> = (0..params.len()).map(|i| optimizer.updates(i).unwrap()).collect();
        assert_eq!(counts, [4, 4, 3, 4, 4, 4]);
        optimizer.read_plane(0, Plane::M, 0..0, &mut []).unwrap();
        assert!(optimizer.read_plane(0, Plane::M, 0..1, &mut [0.0]).is_err());
    }
}

/// A rank that holds nothing of the model's tensors.
fn nothing() -> (Optimizer, Model) {
    let shard = |at: u64| Shard::Flat { range: at..at };
    let params = vec![
        Param::new("a", [10, 10], DType::F32).with_shard(shard(100)),
        Param::new("b", [7], DType::BF16).with_shard(shard(3)),
    ];
    let mut model = Model::new(&params, 1);
    model.set_gradients(&gradients(&params, 1));
    let plan = Plan::new(params, Options::default(), 1 << 20).unwrap();
    assert_eq!((plan.subgroups.len(), plan.state_bytes(), plan.kept_after(3).bytes), (0, 0, 0));
    (Optimizer::open(store(1 << 20, 1), plan).unwrap(), model)
}

fn moved(report: &StepReport) -> u64 {
    report.elements + report.updated.bytes + report.reads.bytes + report.writes.bytes
}

#[test]
fn a_rank_with_nothing_goes_along() {
    let (mut optimizer, mut model) = nothing();
    optimizer.begin_step().unwrap();
    let own = optimizer.gradient_norm(&mut model).unwrap();
    assert_eq!(own, Norm { sum_of_squares: 0.0, finite: true });
    let clip = StepOptions { max_norm: Some(1.0), ..StepOptions::default() };
    let report = optimizer.step_with(&mut model, &clip).unwrap();
    assert_eq!((report.step, report.gradient_factor, moved(&report)), (1, 1.0, 0));
    // The other ranks have a norm to clip, and then something that is not finite.
    let outside = StepOptions { norm: Some(Norm::from(16.0)), ..clip };
    let report = optimizer.step_with(&mut model, &outside).unwrap();
    assert_eq!((report.step, report.gradient_factor), (2, 1.0 / (4.0 + 1e-6)));
    let bad = Some(Norm { sum_of_squares: f64::NAN, finite: false });
    let skip = StepOptions { norm: bad, non_finite: NonFinite::Skip, ..clip };
    let report = optimizer.step_with(&mut model, &skip).unwrap();
    assert_eq!(report.outcome, Outcome::Skipped { param: None });
    model.gradients[1] = None;
    optimizer.step(&mut model).unwrap();
    assert_eq!(
        (optimizer.steps(), optimizer.updates(0), optimizer.updates(1)),
        (3, Some(3), Some(2))
    );
    let all = StepOptions { require_all: true, ..StepOptions::default() };
    let text = optimizer.step_with(&mut model, &all).unwrap_err().to_string();
    assert!(text.contains("parameter b"), "{text}");
}

#[test]
fn a_rank_with_nothing_updates_during_backward() {
    let (mut optimizer, mut model) = nothing();
    optimizer.update_ready(&mut model, &[1], true).unwrap();
    optimizer.update_ready(&mut model, &[0], true).unwrap();
    let report = optimizer.step(&mut model).unwrap();
    assert_eq!((report.step, moved(&report), optimizer.updates(1)), (1, 0, Some(1)));
}

#[test]
fn empty_gradients_may_be_handed_over_or_not() {
    for place in [GradientPlace::Memory, GradientPlace::Store] {
        for hand_over_empty in [true, false] {
            let params = params();
            let gradients_kept = Accumulation { place, ..Accumulation::default() };
            let options = Options { gradients: gradients_kept, ..options()[0].clone() };
            let hypers: Vec<_> = params.iter().map(|param| options.groups[param.group]).collect();
            let plan = Plan::new(params.clone(), options, 4 << 20).unwrap();
            let mut optimizer = Optimizer::open(store(5 << 20, 1), plan).unwrap();
            let mut model = Model::new(&params, 1);
            let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
            let given = gradients(&params, 5);
            for (i, gradient) in given.iter().enumerate() {
                let gradient = gradient.as_ref().unwrap();
                let n = gradient.len();
                if n > 0 || hand_over_empty {
                    let all = gradient.input(0..n).into();
                    optimizer.accumulate(i, 0..n as u64, all, true).unwrap();
                }
            }
            // An empty part of one that is not is nothing either, and takes away nothing.
            let none = Input::F32(&[]).into();
            optimizer.accumulate(1, 65_536..65_536, none, true).unwrap();
            model.set_gradients(&given);
            let report = optimizer.step(&mut Handed(&mut model)).unwrap();
            assert_eq!(report.elements, 70_001);
            reference.step(&hypers, 1.0, &given);
            compare(&optimizer, &model, &reference);
        }
    }
}
