//! One element that is infinite or not a number, the very last: skipped, refused or applied as asked,
//! and a step that was not applied leaves no trace.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Reference, Tensor, compare, store, values};
use tensortier_optimizer::{
    Error, Hyper, NonFinite, Norm, Optimizer, Options, Outcome, Param, Plan, Plane, Rounding,
    StatePrecision, StepOptions, StepReport,
};
use tensortier_storage::dtype::DType;

/// The last lies in the last of four subgroups, which do not all fit in memory.
const SIZES: [usize; 3] = [500, 150_000, 66_000];
const TYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];
const BAD: [f32; 3] = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

fn optimizer(precision: StatePrecision) -> (Optimizer, Model) {
    let options = Options {
        precision: Some(precision),
        subgroup_elems: Some(65_536),
        ..Options::from(Hyper { lr: 1e-2, ..Hyper::default() })
    };
    let param = |(i, n): (usize, &usize)| Param::new(format!("p{i}"), [*n as u64], DType::BF16);
    let params: Vec<_> = SIZES.iter().enumerate().map(param).collect();
    let model = Model::new(&params, 3);
    let host = 3 << 20;
    let plan = Plan::new(params, options, host).unwrap();
    assert!(plan.kept_after(1).subgroups < plan.subgroups.len() as u64);
    (Optimizer::open(store(host, 2), plan).unwrap(), model)
}

fn gradients(dtype: DType, t: u64, bad: Option<f32>) -> Vec<Option<Tensor>> {
    let one = |(i, n): (usize, &usize)| {
        let mut values = values(10 * t + i as u64, *n, 0.1);
        if let Some(bad) = bad.filter(|_| i + 1 == SIZES.len()) {
            *values.last_mut().unwrap() = bad;
        }
        Some(Tensor::new(dtype, &values))
    };
    SIZES.iter().enumerate().map(one).collect()
}

fn with(non_finite: NonFinite) -> StepOptions {
    StepOptions { non_finite, max_norm: Some(1.0), ..StepOptions::default() }
}

/// What of a report does not depend on time.
fn counted(report: &StepReport) -> impl PartialEq + std::fmt::Debug {
    (
        report.step,
        report.norm,
        report.gradient_factor,
        report.updated,
        report.reads,
        report.writes,
        report.hits,
    )
}

fn planes(optimizer: &Optimizer) -> Vec<u32> {
    let mut all = Vec::new();
    for (i, n) in SIZES.iter().enumerate() {
        for plane in [Plane::M, Plane::V] {
            let mut out = vec![0.0_f32; *n];
            optimizer.read_plane(i, plane, 0..*n as u64, &mut out).unwrap();
            all.extend(out.iter().map(|value| value.to_bits()));
        }
    }
    all
}

#[test]
fn a_step_that_is_not_applied_leaves_no_trace() {
    let kinds = TYPES.into_iter().flat_map(|dtype| BAD.into_iter().map(move |bad| (dtype, bad)));
    for (case, (dtype, bad)) in kinds.enumerate() {
        let split = [StatePrecision::Fp32, StatePrecision::SplitMaster][case % 2];
        let (mut optimizer, mut model) = optimizer(split);
        let (mut twin, mut twin_model) = self::optimizer(split);
        let how = [NonFinite::Skip, NonFinite::Raise];
        for t in 0..4 {
            for non_finite in &how[..t as usize % 3] {
                let (weights, updates) = (model.weights.clone(), optimizer.updates(2));
                model.set_gradients(&gradients(dtype, 99, Some(bad)));
                match optimizer.step_with(&mut model, &with(*non_finite)) {
                    Ok(report) => {
                        assert_eq!(*non_finite, NonFinite::Skip);
                        let param = Some(String::from("p2"));
                        assert_eq!(report.outcome, Outcome::Skipped { param });
                        assert!(report.norm.is_some_and(|norm| !norm.finite));
                        assert_eq!((report.step, report.elements), (t + 1, 0));
                        assert_eq!((report.updated.bytes, report.writes.bytes), (0, 0));
                    }
                    Err(error) => {
                        assert_eq!(*non_finite, NonFinite::Raise);
                        let named =
                            matches!(&error, Error::NonFinite { param: Some(p) } if p == "p2");
                        assert!(named && error.to_string().contains("p2"), "{error}");
                    }
                }
                assert_eq!(model.weights, weights);
                assert_eq!((optimizer.steps(), optimizer.updates(2)), (t, updates));
            }
            let good = gradients(dtype, t, None);
            model.set_gradients(&good);
            twin_model.set_gradients(&good);
            let report = optimizer.step_with(&mut model, &with(NonFinite::Skip)).unwrap();
            let expect = twin.step_with(&mut twin_model, &with(NonFinite::Skip)).unwrap();
            // The order and what was in memory are as they were, too.
            assert_eq!(counted(&report), counted(&expect), "{dtype} {bad}");
        }
        assert_eq!(model.weights, twin_model.weights);
        assert_eq!(planes(&optimizer), planes(&twin));
    }
}

#[test]
fn applied_as_asked_it_spoils_what_it_touches() {
    for (dtype, bad) in [(DType::BF16, f32::INFINITY), (DType::F16, f32::NAN)] {
        let (mut optimizer, mut model) = optimizer(StatePrecision::SplitMaster);
        let params = optimizer.plan().params.clone();
        let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
        let hyper = *optimizer.hyper(0).unwrap();
        for t in 0..3 {
            let given = gradients(dtype, t, (t == 1).then_some(bad));
            model.set_gradients(&given);
            let report = optimizer.step(&mut model).unwrap();
            assert_eq!((report.step, report.norm), (t + 1, None), "nobody looked");
            reference.step(&[hyper; 3], 1.0, &given);
        }
        compare(&optimizer, &model, &reference);
        let Tensor::Half(_, raw) = &model.weights[2] else { unreachable!() };
        assert_eq!((raw[65_999], raw[65_998] & 0x7F80 == 0x7F80), (0x7FC0, false));
    }
}

#[test]
fn a_flag_from_outside_decides_for_all_ranks() {
    let (mut optimizer, mut model) = optimizer(StatePrecision::Fp32);
    let before = model.weights.clone();
    model.set_gradients(&gradients(DType::F32, 1, None));
    let bad = Norm { sum_of_squares: 1.0, finite: false };
    let outside = |non_finite| StepOptions { norm: Some(bad), ..with(non_finite) };
    let report = optimizer.step_with(&mut model, &outside(NonFinite::Skip)).unwrap();
    assert_eq!(report.outcome, Outcome::Skipped { param: None });
    assert_eq!(report.norm, Some(bad));
    let error = optimizer.step_with(&mut model, &outside(NonFinite::Raise)).unwrap_err();
    assert!(matches!(error, Error::NonFinite { param: None }), "{error}");
    assert_eq!((&model.weights, optimizer.steps()), (&before, 0));
    // What a rank finds by itself is what it says to the others.
    model.set_gradients(&gradients(DType::BF16, 1, Some(f32::NAN)));
    assert!(!optimizer.gradient_norm(&mut model).unwrap().finite);
    model.set_gradients(&gradients(DType::F32, 1, None));
    let own = optimizer.gradient_norm(&mut model).unwrap();
    let whole = Norm { sum_of_squares: own.sum_of_squares + 1.0, finite: own.finite };
    let options = StepOptions { norm: Some(whole), ..with(NonFinite::Raise) };
    let report = optimizer.step_with(&mut model, &options).unwrap();
    assert_eq!((report.step, report.norm), (1, Some(whole)));
}
