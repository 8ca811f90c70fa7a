//! Half of the steps, a checkpoint, another optimizer and the other half give the bits of all steps in
//! one run: for random models, groups, layouts, and whatever else the second optimizer is opened with.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Reference, Tensor, compare, step, store, values};
use proptest::prelude::*;
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Error, Eviction, Hyper, NonFinite, Optimizer, Options, Order, Outcome, Param, Plan, Rounding,
    StatePrecision, StepOptions,
};
use tensortier_storage::dtype::DType;

/// What an optimizer is opened with and may be opened otherwise the second time.
#[derive(Debug, Clone)]
struct Opening {
    precision: Option<StatePrecision>,
    blocks: u64,
    extra_chunks: u64,
    resident: f64,
    order: Order,
    eviction: Eviction,
    paths: usize,
}

fn opening() -> impl Strategy<Value = Opening> {
    let precision = prop_oneof![
        1 => Just(None),
        1 => Just(Some(StatePrecision::Fp32)),
        2 => Just(Some(StatePrecision::SplitMaster)),
    ];
    let order = prop_oneof![2 => Just(Order::Alternate), 1 => Just(Order::Ascending), 1 => Just(Order::Descending)];
    let eviction = prop_oneof![Just(Eviction::Schedule), Just(Eviction::Lru)];
    let resident = prop_oneof![2 => Just(0.0), 1 => 0.0f64..1.0];
    (precision, 1u64..4, 0u64..8, resident, order, eviction, 1usize..4).prop_map(
        |(precision, blocks, extra_chunks, resident, order, eviction, paths)| Opening {
            precision,
            blocks,
            extra_chunks,
            resident,
            order,
            eviction,
            paths,
        },
    )
}

fn open(params: &[Param], groups: &[Hyper], rounding: Rounding, opening: &Opening) -> Optimizer {
    let options = Options {
        groups: groups.to_vec(),
        precision: opening.precision.filter(|_| rounding == Rounding::Nearest),
        rounding,
        subgroup_elems: Some(opening.blocks * 65_536),
        order: opening.order,
        eviction: opening.eviction,
        resident: opening.resident,
        threads: Some(2),
        ..Options::default()
    };
    let widest = Plan::new(params.to_vec(), options.clone(), u64::MAX).unwrap();
    let host = widest.reserve_bytes / 2 * (3 + opening.extra_chunks)
        + widest.resident_memory().max(1 << 16);
    let plan = Plan::new(params.to_vec(), options, host).unwrap();
    Optimizer::open(store(host, opening.paths), plan).unwrap()
}

fn hyper() -> impl Strategy<Value = Hyper> {
    (common::hyper(), 1e-4f64..1e-1).prop_map(|(hyper, lr)| Hyper { lr, ..hyper })
}

/// One step: who has no gradient, whether one is infinite, after how many subgroups it is stopped,
/// whether it is announced before it.
#[derive(Debug, Clone)]
struct Event {
    missing: usize,
    infinite: bool,
    stop: u64,
    begun: bool,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = (0usize..9, 0u32..6, 0u64..9, any::<bool>()).prop_map(
        |(missing, infinite, stop, begun)| Event { missing, infinite: infinite == 0, stop, begun },
    );
    prop::collection::vec(event, 0..5)
}

/// Makes the gradients of step `t`; the parameter `frozen` never has one.
fn gradients(sizes: &[usize], frozen: usize, event: &Event, t: usize) -> Vec<Option<Tensor>> {
    let of = |(i, n): (usize, &usize)| {
        let mut values = values((t * 1000 + i) as u64, *n, 1e-2);
        if event.infinite
            && let Some(last) = values.last_mut()
        {
            *last = f32::INFINITY;
        }
        (i != frozen && i != event.missing).then(|| Tensor::new(DType::BF16, &values))
    };
    sizes.iter().enumerate().map(of).collect()
}

fn advance(
    optimizer: &mut Optimizer,
    model: &mut Model,
    event: &Event,
    given: &[Option<Tensor>],
) -> bool {
    model.set_gradients(given);
    model.stop_after = Some(event.stop).filter(|stop| *stop < 4);
    if event.begun {
        optimizer.begin_step().unwrap();
    }
    let options = StepOptions { non_finite: NonFinite::Skip, ..StepOptions::default() };
    let (report, _) = step(optimizer, model, &options);
    model.stop_after = None;
    report.outcome == Outcome::Applied
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(16)
    ))]

    #[test]
    fn a_resumed_run_goes_on_with_the_same_bits(
        tensors in prop::collection::vec(
            (
                prop_oneof![0usize..200, 60_000usize..300_000],
                prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F16)],
                0usize..3,
                any::<bool>(),
            ),
            1..7,
        ),
        groups in prop::collection::vec(hyper(), 3),
        stochastic in prop::option::weighted(0.25, any::<u64>()),
        openings in (opening(), opening()),
        frozen in 0usize..9,
        refreshed in 0usize..9,
        halves in (events(), events()),
        used in prop::option::of(0u64..3),
    ) {
        let rounding = stochastic.map_or(Rounding::Nearest, |seed| Rounding::Stochastic { seed });
        let splits = |o: &Opening| o.precision == Some(StatePrecision::SplitMaster);
        let no_f16 = stochastic.is_none() && (splits(&openings.0) || splits(&openings.1));
        let params: Vec<_> = tensors.iter().enumerate().map(|(i, (n, dtype, group, column))| {
            let dtype = if no_f16 && *dtype == DType::F16 { DType::BF16 } else { *dtype };
            let shape = if *column && n % 2 == 0 { vec![*n as u64 / 2, 2] } else { vec![*n as u64] };
            Param::new(format!("layer/{i}.\u{e9}"), shape, dtype).in_group(*group)
        }).collect();
        let sizes: Vec<usize> = tensors.iter().map(|tensor| tensor.0).collect();
        let mut model = Model::new(&params, 11);
        let mut other = Model::new(&params, 12);
        for (i, param) in params.iter().enumerate().filter(|(_, p)| p.global_shape.len() == 2) {
            // Layouts are the caller's own.
            if i % 2 == 0 { model.transpose(i, 2) } else { other.transpose(i, 2) }
            prop_assert_eq!(param.global_shape[1], 2);
        }
        let start: Vec<_> = (0..params.len()).map(|i| model.row_major(i)).collect();
        let mut reference = Reference::new(&params, &start, rounding);
        let mut first = open(&params, &groups, rounding, &openings.0);
        let mut hypers: Vec<Hyper> = params.iter().map(|param| groups[param.group]).collect();
        let mut applied = 0;
        for (t, event) in halves.0.iter().enumerate() {
            let given = gradients(&sizes, frozen, event, t);
            if advance(&mut first, &mut model, event, &given) {
                reference.step(&hypers, 1.0, &given);
                applied += 1;
            }
        }
        // The learning rate that a schedule has come to is part of a checkpoint.
        let lr = 1.0 / 3.0e2;
        first.set_hyper(0, Hyper { lr, ..groups[0] }).unwrap();
        hypers.iter_mut().zip(&params).filter(|(_, p)| p.group == 0).for_each(|(h, _)| h.lr = lr);
        if refreshed < params.len() && rounding == Rounding::Nearest {
            first.refresh_master(refreshed).unwrap();
            let weights = model.row_major(refreshed);
            let p = &mut reference.planes[refreshed][0];
            tensortier_optimizer::kernel::widen(weights.input(0..weights.len()), p).unwrap();
        }
        if refreshed % 2 == 0 {
            // What was read ahead for the next step is in no one's way.
            first.begin_step().unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rank-0.safetensors");
        first.export(&file, &mut model).unwrap();
        compare(&first, &model, &reference);

        // The second optimizer was perhaps used before, and a step of it stopped on its way.
        let other_rounding = match rounding {
            Rounding::Stochastic { seed } => Rounding::Stochastic { seed: !seed },
            rounding => rounding,
        };
        let mut second = open(&params, &groups, other_rounding, &openings.1);
        if let Some(stop) = used {
            let event = Event { missing: 9, infinite: false, stop: 9, begun: false };
            let given = gradients(&sizes, 9, &event, 77);
            advance(&mut second, &mut other, &event, &given);
            other.stop_after = Some(stop);
            match second.step(&mut other) {
                Ok(_) | Err(Error::Interrupted { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            other.stop_after = None;
        }
        if refreshed % 3 == 0 {
            second.begin_step().unwrap();
        }
        second.import(&[&file], &mut other).unwrap();
        prop_assert_eq!(second.steps(), applied);
        prop_assert_eq!(second.hyper(0).unwrap().lr.to_bits(), lr.to_bits());
        compare(&second, &other, &reference);

        for (t, event) in halves.1.iter().enumerate() {
            let given = gradients(&sizes, frozen, event, 100 + t);
            let went_on = advance(&mut first, &mut model, event, &given);
            prop_assert_eq!(advance(&mut second, &mut other, event, &given), went_on);
            if went_on {
                reference.step(&hypers, 1.0, &given);
            }
        }
        prop_assert_eq!(first.steps(), second.steps());
        compare(&first, &model, &reference);
        compare(&second, &other, &reference);
        // The same state gives the same file, whoever wrote it.
        if splits(&openings.0) == splits(&openings.1) && openings.0.precision == openings.1.precision {
            let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
            first.export(&a, &mut model).unwrap();
            second.export(&b, &mut other).unwrap();
            prop_assert_eq!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), true);
        }
    }
}

#[test]
fn after_an_import_there_stays_in_memory_what_the_step_before_would_have_left() {
    let params = vec![Param::new("w", [1_000_000], DType::BF16)];
    let opening = Opening {
        precision: None,
        blocks: 1,
        extra_chunks: 5,
        resident: 0.0,
        order: Order::Alternate,
        eviction: Eviction::Schedule,
        paths: 2,
    };
    let event = Event { missing: 9, infinite: false, stop: 9, begun: false };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    for steps in 1..4 {
        let mut model = Model::new(&params, 1);
        let mut first = open(&params, &[Hyper::default()], Rounding::Nearest, &opening);
        for t in 0..steps {
            let given = gradients(&[1_000_000], 9, &event, t);
            advance(&mut first, &mut model, &event, &given);
        }
        first.export(&file, &mut model).unwrap();
        let mut second = open(&params, &[Hyper::default()], Rounding::Nearest, &opening);
        second.import(&[&file], &mut model).unwrap();
        model.set_gradients(&gradients(&[1_000_000], 9, &event, steps));
        let report = second.step(&mut model).unwrap();
        let kept = second.plan().kept_after(steps as u64);
        assert!(kept.subgroups > 0);
        assert_eq!(report.hits.subgroups, kept.subgroups, "after {steps} steps");
    }
}

#[test]
fn what_was_never_stepped_is_saved_and_taken_without_moving_state() {
    let params = vec![Param::new("w", [300_000], DType::BF16), Param::new("e", [0, 3], DType::F32)];
    let opening = Opening {
        precision: Some(StatePrecision::SplitMaster),
        blocks: 1,
        extra_chunks: 0,
        resident: 0.0,
        order: Order::Alternate,
        eviction: Eviction::Schedule,
        paths: 1,
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("never stepped");
    let mut model = Model::new(&params, 1);
    let first = open(&params, &[Hyper::default()], Rounding::Nearest, &opening);
    first.export(&file, &mut model).unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() < 300_000 * 2 + 4096);
    let mut other = Model::new(&params, 2);
    let mut second = open(&params, &[Hyper::default()], Rounding::Nearest, &opening);
    let gradient = vec![0x3C00; 300_000];
    second.accumulate(0, 0..300_000, Input::Bf16(&gradient).into(), true).unwrap();
    second.import(&[&file], &mut other).unwrap();
    assert_eq!(second.store().stats().host.in_use, 0);
    assert!(!second.has_accumulated(0), "gradients were for another model");
    let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
    compare(&second, &other, &reference);
    let given = [Some(Tensor::new(DType::BF16, &values(5, 300_000, 1e-2))), None];
    other.set_gradients(&given);
    second.step(&mut other).unwrap();
    reference.step(&[Hyper::default(); 2], 1.0, &given);
    compare(&second, &other, &reference);
}
