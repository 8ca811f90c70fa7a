//! Stochastic rounding through whole steps: its mean is the exact update, where rounding to the
//! nearest stands still, and chance depends on nothing but seed, step, name and place in the tensor.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Tensor, store, values};
use tensortier_optimizer::{Hyper, Optimizer, Options, Param, Plan, Rounding, StatePrecision};
use tensortier_storage::dtype::DType;

const ELEMS: usize = 200_000;

/// Weights of one, a gradient of zero: only weight decay moves them, by 2^-12 of themselves a step.
fn decayed(dtype: DType, name: &str, seed: Option<u64>, steps: usize, stop: bool) -> Vec<f32> {
    let hyper = Hyper { lr: 1.0, weight_decay: 1.0 / 4096.0, ..Hyper::default() };
    let options = Options {
        rounding: seed.map_or(Rounding::Nearest, |seed| Rounding::Stochastic { seed }),
        precision: None,
        subgroup_elems: Some(65_536),
        ..Options::from(hyper)
    };
    let params = vec![Param::new(name, [ELEMS as u64], dtype)];
    let mut model = Model::new(&params, 0);
    model.weights[0] = Tensor::new(dtype, &vec![1.0; ELEMS]);
    let plan = Plan::new(params, options, 4 << 20).unwrap();
    let expect = if seed.is_some() { StatePrecision::Weights } else { StatePrecision::Fp32 };
    assert_eq!(plan.forms[0].precision, expect);
    let mut optimizer = Optimizer::open(store(4 << 20, 1), plan).unwrap();
    for _ in 0..steps {
        model.set_gradients(&[Some(Tensor::new(DType::BF16, &vec![0.0; ELEMS]))]);
        model.stop_after = stop.then_some(1);
        common::step(&mut optimizer, &mut model, &Default::default());
    }
    model.weights[0].wide()
}

fn mean(weights: &[f32]) -> f64 {
    weights.iter().map(|w| f64::from(*w)).sum::<f64>() / weights.len() as f64
}

#[test]
fn the_mean_of_many_steps_is_exact() {
    // Units just below one; a weight deviates by at most half of one a step, each on its own.
    for (dtype, unit) in [(DType::BF16, 2f64.powi(-8)), (DType::F16, 2f64.powi(-11))] {
        for seed in [0, 1, u64::MAX] {
            for steps in [1, 8, 40] {
                let weights = decayed(dtype, "w", Some(seed), steps, false);
                let exact = (1.0 - 1.0 / 4096.0_f64).powi(steps as i32);
                let deviation = unit / 2.0 * (steps as f64 / ELEMS as f64).sqrt();
                let off = (mean(&weights) - exact).abs();
                assert!(off < 5.0 * deviation, "{dtype}, seed {seed}, {steps} steps: {off}");
            }
        }
    }
}

#[test]
fn a_master_does_the_same_without_chance() {
    // Beside an fp32 master the weight is the exact one, rounded: one for eight steps, as 8 / 4096 is
    // half a unit of bf16 below one.
    let near = decayed(DType::BF16, "w", None, 7, false);
    assert!(near.iter().all(|w| *w == 1.0));
    let near = decayed(DType::BF16, "w", None, 9, false);
    assert!(near.iter().all(|w| *w == 1.0 - 1.0 / 256.0));
}

#[test]
fn chance_is_reproducible_and_different_for_each_seed_name_and_element() {
    let base = decayed(DType::BF16, "w", Some(7), 3, false);
    assert_eq!(base, decayed(DType::BF16, "w", Some(7), 3, true), "interrupted or not");
    let alike = |other: &[f32]| {
        let same = base.iter().zip(other).filter(|(a, b)| a == b).count();
        same as f64 / ELEMS as f64
    };
    // After three steps of a chance of 1 in 16, about three quarters agree by accident.
    for (what, other) in [
        ("seed", decayed(DType::BF16, "w", Some(8), 3, false)),
        ("name", decayed(DType::BF16, "other", Some(7), 3, false)),
        ("element", base[1..].iter().chain(&base[..1]).copied().collect()),
    ] {
        assert!((0.6..0.85).contains(&alike(&other)), "{what}: {}", alike(&other));
    }
}

#[test]
fn a_frozen_step_draws_no_chance() {
    // Chance follows a parameter's own count, as everything else of its update does.
    let run = |frozen_steps: u64| {
        let options = Options { rounding: Rounding::Stochastic { seed: 5 }, ..Options::default() };
        let params = vec![Param::new("w", [5000], DType::BF16)];
        let mut model = Model::new(&params, 1);
        let plan = Plan::new(params, options, 2 << 20).unwrap();
        let mut optimizer = Optimizer::open(store(2 << 20, 1), plan).unwrap();
        for _ in 0..frozen_steps {
            model.set_gradients(&[None]);
            optimizer.step(&mut model).unwrap();
        }
        for t in 0..3 {
            model.set_gradients(&[Some(Tensor::new(DType::F32, &values(t, 5000, 0.1)))]);
            optimizer.step(&mut model).unwrap();
        }
        model.weights
    };
    assert_eq!(run(0), run(4));
}
