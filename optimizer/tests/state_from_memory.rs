//! State that is read out of one optimizer and restored into another, tensor by tensor, gives the bits
//! of state that grew by itself, whatever the precision, the cut and what the other held before.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::ops::Range;

use common::{Model, Reference, Tensor, compare, step, store, values};
use proptest::prelude::*;
use tensortier_optimizer::{
    Error, Hyper, Optimizer, Options, Param, Plan, Plane, Rounding, StatePrecision, StateSource,
    StepOptions,
};
use tensortier_storage::dtype::DType;

/// State in memory: p, m, v, vmax of each parameter.
#[derive(Debug, Clone)]
struct Saved {
    updates: Vec<u64>,
    masters: Vec<bool>,
    planes: Vec<[Vec<f32>; 4]>,
    /// Fails once so many reads were answered.
    fails_after: Option<usize>,
}

impl Saved {
    fn of(optimizer: &Optimizer, model: &Model) -> Self {
        let params = &optimizer.plan().params;
        let mut planes = Vec::new();
        for (index, param) in params.iter().enumerate() {
            let n = param.elements().unwrap();
            let mut all = [(); 4].map(|()| vec![0.0; n as usize]);
            let weights = model.row_major(index);
            let input = weights.input(0..n as usize);
            optimizer.read_master(index, 0..n, input, &mut all[0]).unwrap();
            for (out, plane) in all[1..].iter_mut().zip([Plane::M, Plane::V, Plane::VMax]) {
                let _ = optimizer.read_plane(index, plane, 0..n, out);
            }
            planes.push(all);
        }
        let updates = (0..params.len()).map(|i| optimizer.updates(i).unwrap()).collect();
        let half = |(i, param): (usize, &Param)| {
            param.weight_dtype != DType::F32 && optimizer.updates(i) > Some(0)
        };
        let masters = params.iter().enumerate().map(half).collect();
        Saved { updates, masters, planes, fails_after: None }
    }
}

impl StateSource for Saved {
    fn updates(&self, param: usize) -> u64 {
        self.updates[param]
    }

    fn has_master(&self, param: usize) -> bool {
        self.masters[param]
    }

    fn read(
        &mut self,
        param: usize,
        plane: Plane,
        range: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), Error> {
        match &mut self.fails_after {
            Some(0) => {
                let (what, why) = (String::from("a test"), String::from("ends here"));
                return Err(Error::Checkpoint { what, why });
            }
            Some(left) => *left -= 1,
            None => {}
        }
        let index = [Plane::P, Plane::M, Plane::V, Plane::VMax].iter().position(|p| *p == plane);
        let range = range.start as usize..range.end as usize;
        out.copy_from_slice(&self.planes[param][index.unwrap()][range]);
        Ok(())
    }
}

fn open(params: &[Param], hyper: Hyper, precision: Option<StatePrecision>, cut: u64) -> Optimizer {
    let options = Options {
        groups: vec![hyper],
        precision,
        subgroup_elems: Some(cut * 65_536),
        threads: Some(2),
        ..Options::default()
    };
    let all = Plan::new(params.to_vec(), options.clone(), u64::MAX).unwrap();
    let host = all.reserve_bytes / 2 * 4 + (1 << 16);
    Optimizer::open(store(host, 2), Plan::new(params.to_vec(), options, host).unwrap()).unwrap()
}

fn gradients(params: &[Param], t: u64) -> Vec<Option<Tensor>> {
    let of = |(i, param): (usize, &Param)| {
        let n = param.elements().unwrap() as usize;
        // One is frozen in the first steps: it has no state yet.
        let given = !(i == 1 && t < 2);
        given.then(|| Tensor::new(DType::BF16, &values(t * 100 + i as u64, n, 1e-2)))
    };
    params.iter().enumerate().map(of).collect()
}

fn advance(optimizer: &mut Optimizer, model: &mut Model, given: &[Option<Tensor>]) {
    model.set_gradients(given);
    step(optimizer, model, &StepOptions::default());
}

fn precision() -> impl Strategy<Value = Option<StatePrecision>> {
    prop_oneof![
        Just(None),
        Just(Some(StatePrecision::Fp32)),
        Just(Some(StatePrecision::SplitMaster))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn restored_state_goes_on_as_state_that_grew(
        tensors in prop::collection::vec(
            (prop_oneof![0usize..200, 60_000usize..200_000], any::<bool>()), 1..5,
        ),
        hyper in common::hyper(),
        precisions in (precision(), precision()),
        cuts in (1u64..4, 1u64..4),
        used in any::<bool>(),
        stopped in prop::option::of(0usize..6),
    ) {
        let params: Vec<_> = tensors.iter().enumerate().map(|(i, (n, half))| {
            let dtype = if *half { DType::BF16 } else { DType::F32 };
            Param::new(format!("w{i}"), [*n as u64 / 2, 2], dtype)
        }).collect();
        let mut model = Model::new(&params, 5);
        let start: Vec<_> = (0..params.len()).map(|i| model.row_major(i)).collect();
        let mut reference = Reference::new(&params, &start, Rounding::Nearest);
        let mut first = open(&params, hyper, precisions.0, cuts.0);
        let hypers = vec![hyper; params.len()];
        for t in 0..2 {
            let given = gradients(&params, t);
            advance(&mut first, &mut model, &given);
            reference.step(&hypers, 1.0, &given);
        }
        let mut saved = Saved::of(&first, &model);

        // The other has weights in another layout, perhaps other state, and weights of its own where
        // there is no master: those a state_dict leaves to the model.
        let mut other = Model::new(&params, 6);
        for (i, dtype) in params.iter().map(|param| param.weight_dtype).enumerate() {
            if !saved.masters[i] {
                other.weights[i] = model.weights[i].clone();
                prop_assert!(dtype == DType::F32 || saved.updates[i] == 0);
            }
            if i % 2 == 0 { other.transpose(i, 2); }
        }
        let mut second = open(&params, hyper, precisions.1, cuts.1);
        if used {
            let mut given = gradients(&params, 77);
            // Their weights are not to change.
            given.iter_mut().zip(&saved.masters).for_each(|(g, master)| if !master { *g = None });
            advance(&mut second, &mut other, &given);
        }
        if let Some(reads) = stopped {
            let mut stops = Saved { fails_after: Some(reads), ..saved.clone() };
            let outcome = second.restore(&mut stops, &mut other);
            if stops.fails_after == Some(0) && outcome.is_err() {
                let half = matches!(outcome, Err(Error::HalfImported { .. }));
                prop_assert_eq!(second.step(&mut other).is_err(), half);
            }
        }
        if !used || stopped.is_none() {
            second.restore(&mut saved, &mut other).unwrap();
            compare(&second, &other, &reference);
            for t in 2..4 {
                let given = gradients(&params, t);
                advance(&mut first, &mut model, &given);
                advance(&mut second, &mut other, &given);
                reference.step(&hypers, 1.0, &given);
            }
            compare(&first, &model, &reference);
            compare(&second, &other, &reference);
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_changed() {
    let params = vec![Param::new("a", [70_000], DType::BF16), Param::new("b", [10], DType::F32)];
    for precision in [StatePrecision::Fp32, StatePrecision::SplitMaster] {
        let hyper = Hyper { amsgrad: true, ..Hyper::default() };
        let mut model = Model::new(&params, 5);
        let start: Vec<_> = (0..params.len()).map(|i| model.row_major(i)).collect();
        let mut reference = Reference::new(&params, &start, Rounding::Nearest);
        let mut optimizer = open(&params, hyper, Some(precision), 1);
        let given = gradients(&params, 3);
        advance(&mut optimizer, &mut model, &given);
        reference.step(&[hyper; 2], 1.0, &given);
        let good = Saved::of(&optimizer, &model);
        let mut negative = good.clone();
        negative.planes[0][2][66_000] = -1e-9;
        let mut zero = good.clone();
        zero.planes[0][3][3] = -0.0;
        let mut never = good.clone();
        never.updates[0] = 0;
        for (bad, part) in [
            (&mut negative, "exp_avg_sq of element 66000 is negative"),
            (&mut zero, "max_exp_avg_sq of element 3 is negative"),
            (&mut never, "\"a\": has a master and was never updated"),
        ] {
            let text = optimizer.restore(bad, &mut model).unwrap_err().to_string();
            assert!(text.contains(part) && text.contains("nothing was changed"), "{text}");
            compare(&optimizer, &model, &reference);
        }
        let given = gradients(&params, 4);
        advance(&mut optimizer, &mut model, &given);
        reference.step(&[hyper; 2], 1.0, &given);
        compare(&optimizer, &model, &reference);
    }
}
