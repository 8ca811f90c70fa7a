//! Groups that are added to a running optimizer: the bits are those of an optimizer that had them from
//! the beginning, and a group that is refused changes nothing.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Reference, Tensor, compare, step, store, values};
use proptest::prelude::*;
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Accumulation, Error, GradientPlace, Hyper, Optimizer, Options, Param, Plan, Rounding,
    StatePrecision, StepOptions,
};
use tensortier_storage::dtype::DType;

fn params(tensors: &[(usize, bool)], first: usize, group: usize) -> Vec<Param> {
    let param = |(i, (n, half)): (usize, &(usize, bool))| {
        let dtype = if *half { DType::BF16 } else { DType::F32 };
        Param::new(format!("w{}", first + i), [*n as u64], dtype).in_group(group)
    };
    tensors.iter().enumerate().map(param).collect()
}

fn gradients(params: &[Param], t: u64, known: usize) -> Vec<Option<Tensor>> {
    let of = |(i, param): (usize, &Param)| {
        let n = param.elements().unwrap() as usize;
        (i < known).then(|| Tensor::new(DType::BF16, &values(t * 100 + i as u64, n, 1e-2)))
    };
    params.iter().enumerate().map(of).collect()
}

fn open(params: &[Param], hyper: Hyper, cut: u64, host: u64) -> Optimizer {
    let options = Options {
        groups: vec![hyper],
        precision: Some(StatePrecision::SplitMaster),
        subgroup_elems: Some(cut * 65_536),
        threads: Some(2),
        ..Options::default()
    };
    let plan = Plan::new(params.to_vec(), options, host).unwrap();
    Optimizer::open(store(host, 2), plan).unwrap()
}

fn tensors() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((prop_oneof![0usize..200, 60_000usize..200_000], any::<bool>()), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_group_that_joins_has_the_bits_of_one_that_was_there(
        (old, new) in (tensors(), tensors()),
        hypers in (common::hyper(), common::hyper()),
        cut in 1u64..4,
        begun in any::<bool>(),
    ) {
        let (old, new) = (params(&old, 0, 0), params(&new, old.len(), 1));
        let all: Vec<Param> = old.iter().chain(&new).cloned().collect();
        let mut model = Model::new(&all, 5);
        let start: Vec<_> = (0..all.len()).map(|i| model.row_major(i)).collect();
        let mut reference = Reference::new(&all, &start, Rounding::Nearest);
        let each: Vec<_> = all.iter().map(|p| [hypers.0, hypers.1][p.group]).collect();
        let mut optimizer = open(&old, hypers.0, cut, 6 * (cut * 65_536 * 16 + (1 << 16)));
        for t in 0..5 {
            if t == 2 {
                if begun {
                    optimizer.begin_step().unwrap();
                }
                // What group they claim to be of does not count.
                let new = new.iter().map(|p| p.clone().in_group(7)).collect();
                optimizer.add_group(hypers.1, new).unwrap();
                prop_assert_eq!(optimizer.plan().params.clone(), all.clone());
            }
            let given = gradients(&all, t, if t < 2 { old.len() } else { all.len() });
            model.set_gradients(&given);
            step(&mut optimizer, &mut model, &StepOptions::default());
            reference.step(&each, 1.0, &given);
        }
        compare(&optimizer, &model, &reference);
    }
}

#[test]
fn a_group_that_is_refused_changes_nothing() {
    let old = vec![Param::new("a", [100_000], DType::F32)];
    // Room for a pipeline of subgroups of fp32 weights with 8 bytes each, and for no wider ones.
    let host = 3 * 8 * 65_536;
    let mut optimizer = open(&old, Hyper::default(), 1, host);
    let more = |name: &str, dtype| vec![Param::new(name, [100_000], dtype)];
    let before = format!("{:?}", optimizer.plan());
    let keys = optimizer.store().list("").len();
    for (hyper, params, part) in [
        (Hyper::default(), more("a", DType::F32), "names must differ"),
        (Hyper { lr: -1.0, ..Hyper::default() }, more("b", DType::F32), "lr"),
        (Hyper::default(), more("b", DType::BF16), "too small"),
        (Hyper::default(), more("b", DType::F16), "use fp32"),
    ] {
        let text = optimizer.add_group(hyper, params).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
    // The name of its next object is taken.
    let taken = optimizer.store().create("optimizer/subgroup/000003", DType::U8, &[1]).unwrap();
    let two = vec![Param::new("b", [65_536], DType::F32), Param::new("c", [9], DType::F32)];
    assert!(optimizer.add_group(Hyper::default(), two.clone()).is_err());
    optimizer.store().delete(&taken).unwrap();
    assert_eq!(format!("{:?}", optimizer.plan()), before);
    assert_eq!(optimizer.store().list("").len(), keys);
    optimizer.add_group(Hyper::default(), two).unwrap();
    assert_eq!(optimizer.store().list("").len(), keys + 2);
}

#[test]
fn how_gradients_are_kept_changes_between_steps_only() {
    let all = vec![Param::new("a", [70_000], DType::F32), Param::new("b", [70_000], DType::F32)];
    let mut optimizer = open(&all[..1], Hyper::default(), 1, 1 << 22);
    let full = Accumulation { dtype: DType::F32, place: GradientPlace::Store };
    optimizer.set_accumulation(full).unwrap();
    let gradient = values(3, 70_000, 1e-2);
    let given = Input::F32(&gradient);
    optimizer.accumulate(0, 0..70_000, given.into(), false).unwrap();
    let refused = optimizer.set_accumulation(Accumulation::default());
    assert!(matches!(refused, Err(Error::Config { .. })));
    // What was handed over stays while parameters join.
    optimizer.add_group(Hyper::default(), vec![all[1].clone()]).unwrap();
    optimizer.accumulate(1, 0..70_000, given.into(), false).unwrap();
    assert!(optimizer.has_accumulated(0) && optimizer.has_accumulated(1));

    let mut model = Model::new(&all, 5);
    let start: Vec<_> = (0..2).map(|i| model.row_major(i)).collect();
    let mut reference = Reference::new(&all, &start, Rounding::Nearest);
    let sum = Some(Tensor::new(DType::F32, &gradient));
    model.set_gradients(&[sum.clone(), sum.clone()]);
    step_handed(&mut optimizer, &mut model);
    reference.step(&[Hyper::default(); 2], 1.0, &[sum.clone(), sum]);
    compare(&optimizer, &model, &reference);
    optimizer.set_accumulation(Accumulation::default()).unwrap();
}

fn step_handed(optimizer: &mut Optimizer, model: &mut Model) {
    optimizer.step(&mut common::Handed(model)).unwrap();
}
