//! Updates during the backward pass: whatever comes ready in whatever order, the bits are those of a
//! step alone, and what such a step cannot do is refused.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::ops::Range;

use common::{Model, Reference, Tensor, compare, store, values};
use proptest::prelude::*;
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Error, Hyper, Optimizer, Options, Order, Param, Plan, Rounding, Segment, StatePrecision,
    StepIo, StepOptions,
};
use tensortier_storage::dtype::DType;

fn gradients(sizes: &[usize], seed: u64) -> Vec<Option<Tensor>> {
    let one =
        |(i, n): (usize, &usize)| Some(Tensor::new(DType::BF16, &values(seed + i as u64, *n, 0.1)));
    sizes.iter().enumerate().map(one).collect()
}

fn optimizer(sizes: &[usize], options: Options) -> (Optimizer, Model) {
    let params: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(i, n)| Param::new(format!("p{i}"), [*n as u64], DType::BF16))
        .collect();
    let model = Model::new(&params, 3);
    let host = 8 << 20;
    let plan = Plan::new(params, options, host).unwrap();
    (Optimizer::open(store(host, 2), plan).unwrap(), model)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_order_of_readiness_gives_the_bits_of_a_step(
        sizes in prop::collection::vec(prop_oneof![0usize..200, 50_000usize..200_000], 1..8),
        split in any::<bool>(),
        steps in prop::collection::vec(
            (any::<u64>(), 0usize..9, 0usize..9, prop::option::of(0u64..5)),
            1..5,
        ),
    ) {
        let options = Options {
            precision: split.then_some(StatePrecision::SplitMaster),
            subgroup_elems: Some(65_536),
            order: Order::Descending,
            ..Options::default()
        };
        let (mut optimizer, mut model) = optimizer(&sizes, options);
        let params = optimizer.plan().params.clone();
        let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
        for (t, (seed, missing, never_ready, stop)) in steps.into_iter().enumerate() {
            let mut given = gradients(&sizes, t as u64 * 100);
            if let Some(gradient) = given.get_mut(missing) {
                *gradient = None;
            }
            model.set_gradients(&given);
            reference.step(&vec![Hyper::default(); sizes.len()], 1.0, &given);
            let mut order: Vec<usize> = (0..sizes.len())
                .filter(|param| given[*param].is_some() && *param != never_ready)
                .collect();
            order.sort_by_key(|param| (seed >> (param * 7)) & 0x7F);
            model.stop_after = stop;
            // An earlier micro-batch changes nothing.
            optimizer.update_ready(&mut model, &order, false).unwrap();
            for ready in order.chunks(2) {
                match optimizer.update_ready(&mut model, ready, true) {
                    Ok(()) | Err(Error::Interrupted { cause: None, .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            // What came in time is updated; gradients that are used up may be gone by now.
            let (report, _) = common::step(&mut optimizer, &mut model, &StepOptions::default());
            prop_assert_eq!(report.step, t as u64 + 1);
        }
        compare(&optimizer, &model, &reference);
    }
}

#[test]
fn a_gradient_may_go_once_it_is_applied_and_not_before() {
    // Two subgroups of one parameter each, and one that two share.
    let sizes = [65_536, 100, 200];
    let options = Options { subgroup_elems: Some(65_536), ..Options::default() };
    let (mut optimizer, mut model) = optimizer(&sizes, options);
    let params = optimizer.plan().params.clone();
    let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
    let given = gradients(&sizes, 1);
    reference.step(&[Hyper::default(); 3], 1.0, &given);
    model.set_gradients(&given);
    optimizer.update_ready(&mut model, &[0, 1], true).unwrap();
    // Read during the backward pass, the state is neither that of the step before nor of this one.
    assert!(optimizer.read_plane(0, tensortier_optimizer::Plane::M, 0..0, &mut []).is_err());
    model.gradients[0] = None;
    let early = model.gradients[1].take();
    let text = optimizer.step(&mut model).unwrap_err().to_string();
    assert!(text.contains("p1") && text.contains("gone before"), "{text}");
    model.gradients[1] = early;
    optimizer.step(&mut model).unwrap();
    compare(&optimizer, &model, &reference);
}

#[test]
fn what_such_a_step_cannot_do_is_refused() {
    let sizes = [65_536, 100];
    let (mut optimizer, mut model) = optimizer(&sizes, Options::default());
    model.set_gradients(&gradients(&sizes, 1));
    optimizer.update_ready(&mut model, &[1], true).unwrap();
    let clipped = StepOptions { max_norm: Some(1.0), ..StepOptions::default() };
    let text = optimizer.step_with(&mut model, &clipped).unwrap_err().to_string();
    assert!(text.contains("exclude clipping"), "{text}");
    let text = optimizer.update_ready(&mut model, &[2], true).unwrap_err().to_string();
    assert!(text.contains("parameter number 2"), "{text}");
    optimizer.step(&mut model).unwrap();
    // A step under way by itself takes no more gradients in between.
    model.set_gradients(&gradients(&sizes, 2));
    model.stop_after = Some(0);
    let subgroups = optimizer.plan().subgroups.len();
    match optimizer.step(&mut model) {
        Err(Error::Interrupted { .. }) => {
            let text = optimizer.update_ready(&mut model, &[0], true).unwrap_err().to_string();
            assert!(text.contains("under way already"), "{text}");
        }
        result => assert!(subgroups == 1 && result.is_ok()),
    }
}

/// Hands over good segments, but for a parameter that it is told to spoil: then only at first sight.
struct Spoiled {
    model: Model,
    bad: Option<usize>,
    seen: bool,
}

impl StepIo for Spoiled {
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let mut segment = self.model.segment(param, range);
        // Looked at once before anything is changed, then handed over.
        if self.bad == Some(param) && std::mem::replace(&mut self.seen, true) {
            segment.gradient = Input::F32(&[]).into();
        }
        segment
    }
}

#[test]
fn subgroups_that_failed_half_way_are_taken_up_where_they_were() {
    // Each two share a subgroup, and the later ones come first.
    let sizes = [100, 65_300, 300, 65_200];
    let options =
        Options { subgroup_elems: Some(65_536), order: Order::Descending, ..Options::default() };
    for failing in [&[1][..], &[1, 3]] {
        let (mut optimizer, mut model) = optimizer(&sizes, options.clone());
        assert_eq!(optimizer.plan().subgroups.len(), 2);
        let params = optimizer.plan().params.clone();
        let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
        let given = gradients(&sizes, 1);
        reference.step(&[Hyper::default(); 4], 1.0, &given);
        model.set_gradients(&given);
        let mut spoiled = Spoiled { model, bad: None, seen: false };
        for (ready, last) in [([0, 1], 1), ([2, 3], 3)] {
            (spoiled.bad, spoiled.seen) = (failing.contains(&last).then_some(last), false);
            let outcome = optimizer.update_ready(&mut spoiled, &ready, true);
            let stopped = matches!(outcome, Err(Error::Interrupted { cause: Some(_), .. }));
            assert_eq!(stopped, spoiled.bad.is_some(), "{outcome:?}");
        }
        optimizer.step(&mut spoiled.model).unwrap();
        compare(&optimizer, &spoiled.model, &reference);
    }
}
