//! Gradients that are handed over before their step, over micro-batches, in any order, in memory or as
//! objects of the store: the sums are those of plain arithmetic, and the bits those of a step that is
//! given the sums.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::sync::Arc;

use common::{Handed, Model, Reference, Tensor, compare, store, values};
use proptest::prelude::*;
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Accumulation, Error, Gradient, GradientPlace, Hyper, NonFinite, Optimizer, Options, Outcome,
    Param, Plan, Rounding, StatePrecision, StepOptions, Strides,
};
use tensortier_storage::dtype::DType;
use tensortier_storage::path::PathStore;
use tensortier_storage::path::memory::MemoryPath;
use tensortier_storage::store::Store;

/// The sum of micro-batches, rounded to `dtype` after each.
fn summed(dtype: DType, batches: &[Tensor]) -> Tensor {
    let mut sum = Tensor::new(dtype, &batches[0].wide());
    for batch in &batches[1..] {
        let added: Vec<f32> =
            sum.wide().iter().zip(batch.wide()).map(|(sum, gradient)| sum + gradient).collect();
        sum = Tensor::new(dtype, &added);
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sums_in_any_order_and_place_are_those_of_plain_arithmetic(
        sizes in prop::collection::vec(prop_oneof![0usize..200, 50_000usize..300_000], 1..6),
        types in (0usize..3, 0usize..3),
        in_store in any::<bool>(),
        split in any::<bool>(),
        batches in prop::collection::vec(1usize..4, 1..4),
        seed in any::<u64>(),
        stop in prop::option::of(0u64..4),
        clip in any::<bool>(),
    ) {
        let dtypes = [DType::BF16, DType::F16, DType::F32];
        let (given, dtype) = (dtypes[types.0], dtypes[types.1]);
        let place = if in_store { GradientPlace::Store } else { GradientPlace::Memory };
        let options = Options {
            precision: split.then_some(StatePrecision::SplitMaster),
            subgroup_elems: Some(65_536),
            gradients: Accumulation { dtype, place },
            ..Options::default()
        };
        let params: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, n)| Param::new(format!("p{i}"), [*n as u64], DType::BF16))
            .collect();
        let mut model = Model::new(&params, seed);
        let (host, beside) = (3 << 20, 600 << 10);
        let plan = Plan::new(params.clone(), options, host).unwrap();
        // Little more memory than the plan's: gradients in the store have to leave, too.
        let mut optimizer = Optimizer::open(store(host + beside, 2), plan).unwrap();
        let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
        for (t, micro_batches) in batches.into_iter().enumerate() {
            let gradient = |i: usize, batch: usize| {
                let seed = seed.wrapping_add((t * 100 + batch * 10 + i) as u64);
                Tensor::new(given, &values(seed, sizes[i], 0.1))
            };
            let all: Vec<Vec<Tensor>> = (0..micro_batches)
                .map(|batch| (0..sizes.len()).map(|i| gradient(i, batch)).collect())
                .collect();
            for (batch, own) in all.iter().enumerate() {
                let mut order: Vec<usize> = (0..sizes.len()).collect();
                order.sort_by_key(|i| (seed >> (i * 9 + batch)) & 0xFF);
                for i in order {
                    let n = sizes[i];
                    // In two ranges, now and then.
                    let cut = if i % 2 == 0 { (n / 2) / 65_536 * 65_536 } else { n };
                    for range in [0..cut, cut..n] {
                        let part = own[i].input(range.clone());
                        let range = range.start as u64..range.end as u64;
                        optimizer.accumulate(i, range, part.into(), batch + 1 == micro_batches).unwrap();
                    }
                }
            }
            let of = |i: usize| all.iter().map(|batch| batch[i].clone()).collect::<Vec<_>>();
            let sums: Vec<_> = (0..sizes.len()).map(|i| Some(summed(dtype, &of(i)))).collect();
            model.set_gradients(&sums);
            model.stop_after = stop;
            let options = StepOptions { max_norm: clip.then_some(0.5), ..StepOptions::default() };
            let norm = optimizer.gradient_norm(&mut model).unwrap();
            let report = loop {
                match optimizer.step_with(&mut Handed(&mut model), &options) {
                    Err(Error::Interrupted { cause: None, .. }) => {}
                    result => break result.unwrap(),
                }
            };
            prop_assert_eq!(report.norm, clip.then_some(norm));
            reference.step(&vec![Hyper::default(); sizes.len()], report.gradient_factor, &sums);
            prop_assert!((0..sizes.len()).all(|i| sizes[i] == 0 || !optimizer.has_accumulated(i)));
            prop_assert!(optimizer.store().list("optimizer/gradient").is_empty());
        }
        compare(&optimizer, &model, &reference);
    }
}

fn small(dtype: DType, place: GradientPlace, path: MemoryPath) -> (Optimizer, Model) {
    let params =
        vec![Param::new("a", [300, 500], DType::F32), Param::new("b", [70_000], DType::F32)];
    let model = Model::new(&params, 5);
    let gradients = Accumulation { dtype, place };
    let options = Options { gradients, subgroup_elems: Some(65_536), ..Options::default() };
    let plan = Plan::new(params, options, 2 << 20).unwrap();
    let path: Arc<dyn PathStore> = Arc::new(path);
    let store = Store::builder().host_budget(5 << 19).path_store(path).open().unwrap();
    (Optimizer::open(store, plan).unwrap(), model)
}

#[test]
fn a_strided_gradient_is_taken_in_row_major_order() {
    let (mut optimizer, mut model) =
        small(DType::F32, GradientPlace::Memory, MemoryPath::new("memory", 1e9));
    let rows = Tensor::new(DType::F32, &values(1, 150_000, 0.1));
    let Tensor::F32(raw) = &rows else { unreachable!() };
    let columns: Vec<f32> = (0..150_000).map(|i| raw[i % 300 * 500 + i / 300]).collect();
    let strides = Strides { shape: &[300, 500], strides: &[1, 300] };
    let gradient = Gradient::Strided(Input::F32(&columns), strides);
    optimizer.accumulate(0, 0..150_000, gradient, true).unwrap();
    model.set_gradients(&[Some(rows.clone()), None]);
    let mut reference = Reference::new(&optimizer.plan().params, &model.weights, Rounding::Nearest);
    reference.step(&[Hyper::default(); 2], 1.0, &[Some(rows), None]);
    optimizer.step(&mut Handed(&mut model)).unwrap();
    compare(&optimizer, &model, &reference);
    assert_eq!(optimizer.gradient_memory(), 600_000);
}

#[test]
fn what_does_not_fit_or_did_not_come_is_refused_by_name() {
    let (mut optimizer, mut model) =
        small(DType::BF16, GradientPlace::Memory, MemoryPath::new("memory", 1e9));
    let zeros = vec![0.0; 150_000];
    let mut refused = |param, range, n: usize, part: &str| {
        let gradient = Input::F32(&zeros[..n]).into();
        let text = optimizer.accumulate(param, range, gradient, true).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    };
    refused(2, 0..1, 1, "parameter number 2");
    refused(1, 0..70_001, 70_001, "it has 70000");
    refused(1, 0..70_000, 69_999, "gradient of 69999");
    refused(1, 0..60_000, 60_000, "blocks of 65536");
    refused(1, 100..70_000, 69_900, "blocks of 65536");
    let text = optimizer.accumulate(1, 0..70_000, Gradient::None, true).unwrap_err().to_string();
    assert!(text.contains("no gradient"), "{text}");
    // A part is missing, and then a part of the second micro-batch.
    for range in [0..65_536u64, 65_536..70_000, 0..65_536] {
        let elems = (range.end - range.start) as usize;
        model.set_gradients(&[None, Some(Tensor::F32(zeros[..70_000].to_vec()))]);
        let gradient = Input::F32(&zeros[..elems]).into();
        optimizer.accumulate(1, range.clone(), gradient, true).unwrap();
        let outcome = optimizer.has_accumulated(1);
        assert_eq!(outcome, range.start == 65_536);
    }
    let text = optimizer.step(&mut Handed(&mut model)).unwrap_err().to_string();
    assert!(text.contains("parameter b") && text.contains("from element 65536"), "{text}");
    optimizer.clear_gradients().unwrap();
    assert_eq!((optimizer.steps(), optimizer.has_accumulated(1)), (0, false));
}

#[test]
fn a_skipped_step_forgets_its_gradients() {
    for place in [GradientPlace::Memory, GradientPlace::Store] {
        let (mut optimizer, mut model) = small(DType::F32, place, MemoryPath::new("memory", 1e9));
        let bad = vec![f32::NAN; 70_000];
        optimizer.accumulate(1, 0..70_000, Input::F32(&bad).into(), false).unwrap();
        model.set_gradients(&[None, Some(Tensor::F32(bad))]);
        let before = model.weights.clone();
        let skip = StepOptions { non_finite: NonFinite::Skip, ..StepOptions::default() };
        let report = optimizer.step_with(&mut Handed(&mut model), &skip).unwrap();
        assert_eq!(report.outcome, Outcome::Skipped { param: Some(String::from("b")) });
        assert_eq!(model.weights, before);
        assert!(!optimizer.has_accumulated(1));
        assert!(optimizer.store().list("optimizer/gradient").is_empty());
    }
}
