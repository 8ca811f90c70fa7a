//! Groups of parameters with hyper-parameters of their own, which schedulers change from step to
//! step: each parameter follows its group's, and what cannot be changed is refused.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Reference, Tensor, compare, step, store, values};
use tensortier_optimizer::hyper::{Algorithm, Subnormals};
use tensortier_optimizer::{
    Error, Hyper, Optimizer, Options, Order, Param, Plan, Rounding, StatePrecision, StepOptions,
};
use tensortier_storage::dtype::DType;

const STEPS: u64 = 24;

/// The learning rates of `torch.optim.lr_scheduler`, and what else changes in a training.
const SCHEDULES: [fn(u64, &mut Hyper); 9] = [
    // StepLR, MultiStepLR
    |t, hyper| hyper.lr = 1e-2 * 0.1_f64.powi((t / 10) as i32),
    // ExponentialLR
    |t, hyper| hyper.lr = 1e-2 * 0.9_f64.powi(t as i32),
    // LinearLR, LambdaLR: a warm-up from nothing
    |t, hyper| hyper.lr = 1e-2 * (t as f64 / 8.0).min(1.0),
    // CosineAnnealingWarmRestarts
    |t, hyper| {
        hyper.lr = 5e-3 * (1.0 + (std::f64::consts::PI * (t % 8) as f64 / 8.0).cos());
    },
    // OneCycleLR, CyclicLR: the first beta goes the other way
    |t, hyper| {
        let part = (t as f64 / STEPS as f64 * 2.0 - 1.0).abs();
        (hyper.lr, hyper.beta1) = (1e-2 * (1.0 - part), 0.85 + 0.1 * part);
    },
    // PolynomialLR down to zero, with decay and the second beta
    |t, hyper| {
        hyper.lr = 1e-2 * (1.0 - t as f64 / STEPS as f64).powi(2);
        (hyper.weight_decay, hyper.beta2) = (0.1 / (t + 1) as f64, 0.999 - 0.01 * (t % 3) as f64);
    },
    // ReduceLROnPlateau
    |t, hyper| hyper.lr = if t == 7 || t == 9 { hyper.lr * 0.1 } else { hyper.lr },
    // Everything else that a group has, now and then
    |t, hyper| {
        hyper.algorithm = if t % 3 == 0 { Algorithm::Adam } else { Algorithm::AdamW };
        hyper.maximize = t % 4 == 1;
        hyper.eps = if t % 2 == 0 { 1e-8 } else { 1e-3 };
        hyper.subnormals = if t % 5 < 2 { Subnormals::Flush } else { Subnormals::Keep };
    },
    // ConstantLR
    |_, _| {},
];

/// Some with amsgrad and some without, so that neighbours differ in what they store.
fn groups() -> Vec<Hyper> {
    let group = |i: usize| Hyper { lr: 1e-2, amsgrad: i % 3 == 1, ..Hyper::default() };
    (0..SCHEDULES.len()).map(group).collect()
}

fn optimizer(precision: Option<StatePrecision>) -> (Optimizer, Model) {
    let options = Options {
        groups: groups(),
        precision,
        subgroup_elems: Some(65_536),
        order: Order::Alternate,
        ..Options::default()
    };
    let sizes = [900, 66_000, 1, 40_000];
    let param = |i: usize| {
        let dtype = if i % 4 == 3 { DType::F32 } else { DType::BF16 };
        // Neighbours are of different groups, and each group has several.
        Param::new(format!("p{i}"), [sizes[i % 4]], dtype).in_group(i % SCHEDULES.len())
    };
    let params: Vec<_> = (0..2 * SCHEDULES.len()).map(param).collect();
    let model = Model::new(&params, 2);
    let plan = Plan::new(params, options, 5 << 20).unwrap();
    (Optimizer::open(store(5 << 20, 2), plan).unwrap(), model)
}

fn gradients(params: &[Param], t: u64) -> Vec<Option<Tensor>> {
    let one = |(i, param): (usize, &Param)| {
        let n = param.elements().unwrap() as usize;
        let has = !(t as usize + i).is_multiple_of(5);
        has.then(|| Tensor::new(DType::F16, &values(100 * t + i as u64, n, 0.1)))
    };
    params.iter().enumerate().map(one).collect()
}

#[test]
fn each_parameter_follows_the_schedule_of_its_group() {
    for precision in [None, Some(StatePrecision::SplitMaster)] {
        let (mut optimizer, mut model) = optimizer(precision);
        let params = optimizer.plan().params.clone();
        let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
        let mut hypers = groups();
        for t in 0..STEPS {
            for (group, schedule) in SCHEDULES.iter().enumerate() {
                schedule(t, &mut hypers[group]);
                optimizer.set_hyper(group, hypers[group]).unwrap();
                assert_eq!(optimizer.hyper(group), Some(&hypers[group]));
            }
            let given = gradients(&params, t);
            model.set_gradients(&given);
            model.stop_after = (t % 3 == 0).then_some(t % 5);
            step(&mut optimizer, &mut model, &StepOptions::default());
            let own: Vec<_> = params.iter().map(|param| hypers[param.group]).collect();
            reference.step(&own, 1.0, &given);
        }
        compare(&optimizer, &model, &reference);
    }
}

#[test]
fn what_cannot_be_changed_is_refused_and_changes_nothing() {
    let (mut optimizer, mut model) = optimizer(None);
    let known = *optimizer.hyper(0).unwrap();
    let mut refused = |group, hyper, part: &str| {
        let text = optimizer.set_hyper(group, hyper).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
        assert_eq!(optimizer.hyper(0), Some(&known));
    };
    refused(0, Hyper { amsgrad: true, ..known }, "amsgrad is fixed");
    refused(1, Hyper { amsgrad: false, ..known }, "amsgrad is fixed");
    refused(9, known, "there are 9 groups");
    refused(0, Hyper { beta1: 1.0, ..known }, "beta1");
    refused(0, Hyper { lr: f64::NAN, ..known }, "lr");
    let params = optimizer.plan().params.clone();
    model.set_gradients(&gradients(&params, 1));
    model.stop_after = Some(1);
    assert!(matches!(optimizer.step(&mut model), Err(Error::Interrupted { cause: None, .. })));
    let text = optimizer.set_hyper(0, Hyper { lr: 1.0, ..known }).unwrap_err().to_string();
    assert!(text.contains("unfinished step"), "{text}");
    optimizer.step(&mut model).unwrap();
    optimizer.set_hyper(0, Hyper { lr: 1.0, ..known }).unwrap();
}
