//! Losses that are scaled, as `torch.amp.GradScaler` does: the scale grows, a step that overflows is
//! skipped and halves it, and with powers of two the bits are those of the unscaled run.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Reference, Tensor, compare, store, values};
use tensortier_optimizer::{
    Hyper, NonFinite, Optimizer, Options, Outcome, Param, Plan, Rounding, StepOptions,
};
use tensortier_storage::dtype::DType;

const SIZES: [usize; 2] = [300, 70_000];

/// `GradScaler`'s rule: half after an overflow, twice after `interval` steps without.
struct Scaler {
    scale: f64,
    good: u32,
    interval: u32,
}

impl Scaler {
    fn update(&mut self, skipped: bool) {
        self.good = if skipped { 0 } else { self.good + 1 };
        if skipped {
            self.scale /= 2.0;
        } else if self.good == self.interval {
            (self.scale, self.good) = (self.scale * 2.0, 0);
        }
    }
}

fn optimizer() -> (Optimizer, Model) {
    let param = |(i, n): (usize, &usize)| Param::new(format!("p{i}"), [*n as u64], DType::F16);
    let params: Vec<_> = SIZES.iter().enumerate().map(param).collect();
    let model = Model::new(&params, 8);
    let options = Options { subgroup_elems: Some(65_536), ..Options::default() };
    let plan = Plan::new(params, options, 3 << 20).unwrap();
    (Optimizer::open(store(3 << 20, 1), plan).unwrap(), model)
}

/// fp16 gradients of a loss times `scale`: exact but for those that overflow. The unscaled ones are
/// well above the smallest normal fp16.
fn scaled(t: u64, scale: f64) -> Vec<Option<Tensor>> {
    let one = |(i, n): (usize, &usize)| {
        let small = values(10 * t + i as u64, *n, 0.1).into_iter().map(|v| v + v.signum() * 0.01);
        let wide = Tensor::new(DType::F16, &small.collect::<Vec<_>>()).wide();
        let scaled: Vec<_> = wide.iter().map(|v| (f64::from(*v) * scale) as f32).collect();
        Some(Tensor::new(DType::F16, &scaled))
    };
    SIZES.iter().enumerate().map(one).collect()
}

#[test]
fn a_scaled_run_with_skips_and_growth_gives_the_bits_of_the_unscaled_one() {
    for max_norm in [None, Some(0.5)] {
        let (mut optimizer, mut model) = optimizer();
        let (mut plain, mut plain_model) = self::optimizer();
        let params = optimizer.plan().params.clone();
        let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
        let mut scaler = Scaler { scale: 65_536.0, good: 0, interval: 2 };
        let (mut skipped, mut t, mut scales) = (0, 0, std::collections::BTreeSet::new());
        while t < 12 {
            // Unscaled gradients reach 0.11: from 2^20 on they overflow.
            let given = scaled(t, scaler.scale);
            model.set_gradients(&given);
            let options = StepOptions {
                max_norm,
                loss_scale: scaler.scale,
                non_finite: NonFinite::Skip,
                ..StepOptions::default()
            };
            let report = optimizer.step_with(&mut model, &options).unwrap();
            let overflowed = report.outcome != Outcome::Applied;
            assert_eq!(overflowed, scaler.scale >= f64::from(1 << 20));
            scales.insert(scaler.scale as u64);
            scaler.update(overflowed);
            if overflowed {
                skipped += 1;
                continue;
            }
            reference.step(&[Hyper::default(); 2], report.gradient_factor, &given);
            plain_model.set_gradients(&scaled(t, 1.0));
            let options = StepOptions { loss_scale: 1.0, ..options };
            let unscaled = plain.step_with(&mut plain_model, &options).unwrap();
            // Of the same value before the loss scale, the norm only if it was asked for.
            let scale = options.loss_scale * unscaled.gradient_factor / report.gradient_factor;
            assert_eq!(report.norm.unwrap().value(), unscaled.norm.unwrap().value() * scale);
            t += 1;
        }
        assert!(skipped >= 2 && scales.len() >= 4, "{skipped} {scales:?}");
        assert_eq!((optimizer.steps(), plain.steps()), (12, 12));
        compare(&optimizer, &model, &reference);
        assert_eq!(model.weights, plain_model.weights);
        compare(&plain, &model, &reference);
    }
}

#[test]
fn scales_that_are_no_power_of_two_round_each_gradient_once() {
    let (mut optimizer, mut model) = optimizer();
    let params = optimizer.plan().params.clone();
    let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
    for (t, loss_scale) in [1000.0, 3.0, 0.1].into_iter().enumerate() {
        let given = scaled(t as u64, loss_scale);
        model.set_gradients(&given);
        let options = StepOptions { loss_scale, ..StepOptions::default() };
        let report = optimizer.step_with(&mut model, &options).unwrap();
        assert_eq!(report.gradient_factor, 1.0 / loss_scale);
        reference.step(&[Hyper::default(); 2], 1.0 / loss_scale, &given);
    }
    compare(&optimizer, &model, &reference);
}

#[test]
fn a_scale_whose_inverse_no_kernel_can_hold_is_refused() {
    let (mut optimizer, mut model) = optimizer();
    model.set_gradients(&scaled(0, 1.0));
    for loss_scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
        let options = StepOptions { loss_scale, ..StepOptions::default() };
        let text = optimizer.step_with(&mut model, &options).unwrap_err().to_string();
        assert!(text.contains("loss scale"), "{text}");
    }
    // The largest that torch has, as an fp32 tensor.
    let options = StepOptions { loss_scale: 2f64.powi(127), ..StepOptions::default() };
    optimizer.step_with(&mut model, &options).unwrap();
    assert_eq!(optimizer.steps(), 1);
}
