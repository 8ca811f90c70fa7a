//! Steps over paths that fail: reads that succeed later, writes that go elsewhere, paths that fill up.
//! Whatever stops a step, calling it again ends it with the bits of a run in memory.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::sync::Arc;

use common::{Handed, Model, Reference, Tensor, compare, values};
use proptest::prelude::*;
use tensortier_optimizer::{
    Accumulation, Error, Eviction, GradientPlace, Hyper, NonFinite, Optimizer, Options, Order,
    Outcome, Param, Plan, Rounding, Shard, StatePrecision, StepIo, StepOptions,
};
use tensortier_storage::dtype::DType;
use tensortier_storage::path::PathStore;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::store::Store;

#[derive(Debug, Clone)]
struct Tensors {
    params: Vec<Param>,
    precision: Option<StatePrecision>,
    rounding: Rounding,
}

/// A tensor of which this rank has all, the upper rows, some columns, or a flat range.
fn param() -> impl Strategy<Value = (Param, DType)> {
    let shape = prop_oneof![1 => (1u64..20, 1u64..20), 3 => (200u64..400, 300u64..500)];
    let dtype = prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F16)];
    (shape, dtype, 0usize..2, 0u8..4).prop_map(|((rows, columns), dtype, group, kind)| {
        let shard = match kind {
            0 => Shard::Whole,
            1 => Shard::Box { offset: vec![rows / 3, 0], shape: vec![rows - rows / 3, columns] },
            2 => Shard::Box { offset: vec![0, columns / 4], shape: vec![rows, columns / 2] },
            _ => Shard::Flat { range: rows..rows * columns },
        };
        (Param::new("", [rows, columns], dtype).with_shard(shard).in_group(group), dtype)
    })
}

fn tensors() -> impl Strategy<Value = Tensors> {
    (prop::collection::vec(param(), 3..8), 0u8..4, any::<u64>()).prop_map(|(params, kind, seed)| {
        let mut params: Vec<Param> = params.into_iter().map(|(param, _)| param).collect();
        for (i, param) in params.iter_mut().enumerate() {
            param.name = format!("p{i}");
            if kind == 1 && param.weight_dtype == DType::F16 {
                param.weight_dtype = DType::BF16;
            }
            // The reference draws chance by place in the shard, which is right for whole ones only.
            if kind == 2 {
                param.shard = Shard::Whole;
            }
        }
        let precision = [None, Some(StatePrecision::SplitMaster), None, Some(StatePrecision::Fp32)];
        let rounding = if kind == 2 { Rounding::Stochastic { seed } } else { Rounding::Nearest };
        Tensors { params, precision: precision[kind as usize], rounding }
    })
}

/// What happens in one step.
#[derive(Debug, Clone)]
struct Event {
    /// Of each path: every how many-th read and write fails, and how many subgroups it still takes;
    /// three are no limit.
    faults: Vec<(u64, u64, u64)>,
    /// After how many failures the paths are well again.
    patience: u32,
    missing: usize,
    stop: u64,
    infinite: bool,
    clip: bool,
    /// Which parameters are ready during the backward pass, one after the other; then the step can
    /// neither be clipped nor skipped.
    ready: Option<Vec<usize>>,
}

fn event() -> impl Strategy<Value = Event> {
    let every = || prop_oneof![2 => Just(0), 1 => Just(1), 3 => 2u64..5];
    let faults = prop_oneof![
        2 => prop::collection::vec((every(), every(), 0u64..4), 3),
        1 => Just(vec![(1, 0, 3); 3]),
        1 => Just(vec![(0, 0, 0); 3]),
        1 => Just(vec![(0, 1, 3); 3]),
    ];
    let ready = prop::option::weighted(0.3, prop::collection::vec(0usize..6, 1..6));
    let switches = (prop::bool::weighted(0.15), any::<bool>());
    (faults, 0u32..4, 0usize..9, 0u64..12, switches, ready).prop_map(
        |(faults, patience, missing, stop, (infinite, clip), ready)| {
            let whole = ready.is_none();
            let (infinite, clip) = (infinite && whole, clip && whole);
            Event { faults, patience, missing, stop, infinite, clip, ready }
        },
    )
}

/// A store with memory for a plan and some more for gradients.
fn open(plan: Plan, beside: u64, paths: usize) -> (Optimizer, Vec<Arc<MemoryPath>>) {
    let path = |i: usize| Arc::new(MemoryPath::new(&format!("memory {i}"), 1e9 + 4e8 * i as f64));
    let paths: Vec<_> = (0..paths).map(path).collect();
    let mut builder = Store::builder().host_budget(plan.host_bytes + beside);
    for path in &paths {
        builder = builder.path_store(Arc::clone(path) as Arc<dyn PathStore>);
    }
    (Optimizer::open(builder.open().unwrap(), plan).unwrap(), paths)
}

fn spoil(paths: &[Arc<MemoryPath>], event: &Event, largest: u64) {
    for (i, (path, (reads, writes, room))) in paths.iter().zip(&event.faults).enumerate() {
        path.set_mischief(Mischief {
            fail_read_every: *reads,
            fail_write_every: *writes,
            // 0 would be no limit.
            quota_bytes: match room {
                3 => 0,
                room => (path.counters().used_bytes + room * largest).max(1),
            },
            reorder: i,
            ..Mischief::default()
        });
    }
}

/// Makes the paths well; one that refused writes is left alone for a while, unless all is flushed.
fn mend(optimizer: &Optimizer, paths: &[Arc<MemoryPath>]) {
    paths.iter().for_each(|path| path.set_mischief(Mischief::default()));
    optimizer.store().flush().unwrap();
}

/// Calls something again after each failure of the store; the paths are well after some.
fn persist<T>(
    optimizer: &mut Optimizer,
    (paths, patience): (&[Arc<MemoryPath>], u32),
    mut call: impl FnMut(&mut Optimizer) -> Result<T, Error>,
) -> T {
    let mut failures = 0;
    loop {
        match call(optimizer) {
            Err(Error::Interrupted { cause: None, .. }) => {}
            Err(error) => {
                let cause = match &error {
                    Error::Interrupted { cause: Some(cause), .. } => cause,
                    error => error,
                };
                assert!(matches!(cause, Error::Storage(_)), "{error}");
                failures += 1;
                assert!(failures < 50, "well again and still failing: {error}");
                if failures > patience {
                    mend(optimizer, paths);
                }
            }
            Ok(done) => return done,
        }
    }
}

/// Hands all gradients over.
fn hand_over(optimizer: &mut Optimizer, model: &Model, well: (&[Arc<MemoryPath>], u32)) {
    for (i, gradient) in model.gradients.iter().enumerate() {
        let Some(gradient) = gradient else { continue };
        let n = gradient.len();
        persist(optimizer, well, |optimizer| {
            optimizer.accumulate(i, 0..n as u64, gradient.input(0..n).into(), true)
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
    ))]

    #[test]
    fn twenty_steps_over_failing_paths_give_the_bits_of_a_run_in_memory(
        tensors in tensors(),
        amsgrad in any::<bool>(),
        shape in (1u64..3, 0u64..3, 0usize..3, any::<bool>(), 0.0f64..0.4),
        gradients_in in prop::option::of(prop_oneof![
            Just(GradientPlace::Memory), Just(GradientPlace::Store)
        ]),
        paths in 1usize..4,
        threads in 1usize..3,
        seed in any::<u64>(),
        events in prop::collection::vec(event(), 20),
    ) {
        let (blocks, extra, order, scheduled, resident) = shape;
        let Tensors { params, precision, rounding } = tensors;
        let hyper = Hyper { lr: 1e-2, ..Hyper::default() };
        let options = Options {
            groups: vec![hyper, Hyper { amsgrad, weight_decay: 0.2, ..hyper }],
            precision,
            rounding,
            subgroup_elems: Some(blocks * 65_536),
            order: [Order::Alternate, Order::Ascending, Order::Descending][order],
            eviction: if scheduled { Eviction::Schedule } else { Eviction::Lru },
            threads: Some(threads),
            resident,
            gradients: Accumulation {
                place: gradients_in.unwrap_or_default(),
                ..Accumulation::default()
            },
            ..Options::default()
        };
        let hypers: Vec<_> = params.iter().map(|param| options.groups[param.group]).collect();
        let widest = Plan::new(params.clone(), options.clone(), u64::MAX).unwrap();
        let largest = widest.reserve_bytes / 2;
        let host = (largest * (3 + extra) + widest.resident_memory()).max(1 << 16);
        let plan = Plan::new(params.clone(), options, host).unwrap();
        let (mut optimizer, paths) = open(plan, 600 << 10, paths);
        let mut model = Model::new(&params, seed);
        let mut reference = Reference::new(&params, &model.weights, rounding);
        for (t, event) in events.iter().enumerate() {
            let gradient = |i: usize| {
                let n = params[i].elements().unwrap() as usize;
                let mut values = values(seed.wrapping_add((t * 100 + i) as u64), n, 0.1);
                if event.infinite && let Some(last) = values.last_mut() {
                    *last = f32::NEG_INFINITY;
                }
                (event.missing != i).then(|| Tensor::new(DType::BF16, &values))
            };
            let gradients: Vec<_> = (0..params.len()).map(gradient).collect();
            model.set_gradients(&gradients);
            model.stop_after = Some(event.stop).filter(|stop| *stop < 6);
            let options = StepOptions {
                max_norm: event.clip.then_some(0.3),
                non_finite: match event.ready {
                    Some(_) => NonFinite::Apply,
                    None => NonFinite::Skip,
                },
                ..StepOptions::default()
            };
            spoil(&paths, event, largest);
            let well = (&paths[..], event.patience);
            if gradients_in.is_some() {
                hand_over(&mut optimizer, &model, well);
            }
            let mut handed = Handed(&mut model);
            let io: &mut dyn StepIo = match gradients_in {
                Some(_) => &mut handed,
                None => &mut *handed.0,
            };
            for param in event.ready.iter().flatten() {
                if gradients.get(*param).is_some_and(Option::is_some) {
                    // Whoever fails or is stopped here is updated by a later call.
                    match optimizer.update_ready(io, &[*param], true) {
                        Ok(()) | Err(Error::Interrupted { .. } | Error::Storage(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            let report =
                persist(&mut optimizer, well, |optimizer| optimizer.step_with(io, &options));
            if event.infinite && gradients.iter().flatten().any(|gradient| gradient.len() > 0) {
                prop_assert!(report.outcome != Outcome::Applied);
            } else {
                prop_assert_eq!(report.outcome, Outcome::Applied);
                reference.step(&hypers, report.gradient_factor, &gradients);
            }
        }
        mend(&optimizer, &paths);
        compare(&optimizer, &model, &reference);
    }
}

#[test]
fn a_failed_read_stops_the_step_by_name_and_the_next_call_goes_on() {
    let params: Vec<_> =
        (0..6).map(|i| Param::new(format!("p{i}"), [65_536], DType::F32)).collect();
    let options = Options { subgroup_elems: Some(65_536), ..Options::default() };
    let largest = 8 * 65_536;
    let plan = Plan::new(params.clone(), options, 3 * largest).unwrap();
    let (mut optimizer, paths) = open(plan, 0, 1);
    let mut model = Model::new(&params, 1);
    let mut reference = Reference::new(&params, &model.weights, Rounding::Nearest);
    let mut interrupted = 0;
    for t in 0..4 {
        let given: Vec<_> = (0..6)
            .map(|i| Some(Tensor::new(DType::F32, &values(t * 10 + i, 65_536, 0.1))))
            .collect();
        model.set_gradients(&given);
        reference.step(&[Hyper::default(); 6], 1.0, &given);
        paths[0].set_mischief(Mischief { fail_read_every: 1, ..Mischief::default() });
        let (mut last_done, mut tries) = (0, 0);
        loop {
            match optimizer.step(&mut model) {
                Ok(report) => break assert_eq!(report.step, t + 1),
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    let text = error.to_string();
                    assert!(
                        text.contains("nothing is lost") && text.contains("memory 0"),
                        "{text}"
                    );
                    let Error::Interrupted { step, done, subgroups: 6, cause: Some(_) } = error
                    else {
                        panic!("{text}");
                    };
                    assert!(step == t + 1 && done >= last_done);
                    last_done = done;
                    interrupted += 1;
                    tries += 1;
                    // Some come through, until the paths are well.
                    let every = [0, 4, 0][tries.min(2)];
                    let left = Mischief { fail_read_every: every, ..Mischief::default() };
                    paths[0].set_mischief(left);
                }
            }
        }
    }
    assert!(interrupted > 2);
    paths[0].set_mischief(Mischief::default());
    compare(&optimizer, &model, &reference);
}
