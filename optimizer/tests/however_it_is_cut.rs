//! One model, cut into 1, 2, 7 or 64 subgroups, in every order, on any number of threads and with
//! every instruction set: one result, to the bit.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::process::Command;

use common::{Model, Tensor, store, values};
use tensortier_optimizer::kernel::{ISA_VARIABLE, Isa};
use tensortier_optimizer::{
    Hyper, Optimizer, Options, Order, Param, Plan, Plane, StatePrecision, StepOptions,
};
use tensortier_storage::dtype::DType;
use twox_hash::XxHash3_64;

/// Elements that make 64 subgroups of the smallest size, with an odd end.
const ELEMS: [usize; 3] = [3_000_000, 999_999, 135_537];

/// What a child process prints before its fingerprint.
const MARK: &str = "fingerprint:";

fn fingerprint(blocks: u64, order: Order, threads: usize, host: u64) -> (usize, u64) {
    let hyper = Hyper { amsgrad: true, lr: 1e-2, ..Hyper::default() };
    let options = Options {
        precision: Some(StatePrecision::SplitMaster),
        subgroup_elems: Some(blocks * 65_536),
        threads: Some(threads),
        order,
        ..Options::from(hyper)
    };
    let param = |(i, n): (usize, &usize)| Param::new(format!("p{i}"), [*n as u64], DType::BF16);
    let params: Vec<_> = ELEMS.iter().enumerate().map(param).collect();
    let mut model = Model::new(&params, 11);
    let plan = Plan::new(params, options, host).unwrap();
    let subgroups = plan.subgroups.len();
    let mut optimizer = Optimizer::open(store(host, 2), plan).unwrap();
    let clip = StepOptions { max_norm: Some(1.0), ..StepOptions::default() };
    for t in 0..2 {
        let gradient = |(i, n): (usize, &usize)| {
            Some(Tensor::new(DType::BF16, &values(t * 10 + i as u64, *n, 0.1)))
        };
        model.set_gradients(&ELEMS.iter().enumerate().map(gradient).collect::<Vec<_>>());
        optimizer.step_with(&mut model, &clip).unwrap();
    }
    let mut all: Vec<u32> = Vec::new();
    for (i, n) in ELEMS.iter().enumerate() {
        all.extend(model.weights[i].bits());
        let mut plane = vec![0.0; *n];
        let weights = model.weights[i].input(0..*n);
        optimizer.read_master(i, 0..*n as u64, weights, &mut plane).unwrap();
        all.extend(plane.iter().map(|value| value.to_bits()));
        for which in [Plane::M, Plane::V, Plane::VMax] {
            optimizer.read_plane(i, which, 0..*n as u64, &mut plane).unwrap();
            all.extend(plane.iter().map(|value| value.to_bits()));
        }
    }
    (subgroups, XxHash3_64::oneshot(bytemuck::cast_slice(&all)))
}

#[test]
fn sizes_orders_and_threads_do_not_show() {
    let orders = [Order::Alternate, Order::Ascending, Order::Descending];
    // Asked for one instruction set, each size in one order is enough.
    let all = std::env::var_os(ISA_VARIABLE).is_none();
    let mut first = None;
    for (i, (blocks, subgroups)) in [(64, 1), (32, 2), (10, 7), (1, 64)].into_iter().enumerate() {
        for (j, order) in orders.into_iter().enumerate().filter(|(j, _)| all || *j == i % 3) {
            // From everything in memory to a pipeline alone.
            let largest = blocks.min(63) * 65_536 * 14 + (1 << 20);
            let host = [largest * 3, largest * 4, 192 << 20][(i + j) % 3];
            let (found, bits) = fingerprint(blocks, order, 1 + (i * 3 + j) % 5, host);
            assert_eq!(found, subgroups);
            assert_eq!(bits, *first.get_or_insert(bits), "{subgroups} subgroups, {order}");
        }
    }
    // For the process that started this one, if any.
    println!("{MARK}{:016x}", first.unwrap());
}

#[test]
fn chunks_of_uneven_tensors_take_each_others_place_in_memory() {
    let sizes: Vec<usize> = (1..=40).map(|i| 2 * 65_536 + 1_000 * (i % 7)).collect();
    let options = Options {
        precision: Some(StatePrecision::Fp32),
        subgroup_elems: Some(2 * 65_536),
        ..Options::from(Hyper::default())
    };
    let param = |(i, n): (usize, &usize)| Param::new(format!("p{i}"), [*n as u64], DType::BF16);
    let params: Vec<_> = sizes.iter().enumerate().map(param).collect();
    let mut model = Model::new(&params, 12);
    // Ten subgroups and a half: no other chunk fits.
    let host = 21 * 65_536 * 12;
    let plan = Plan::new(params, options, host).unwrap();
    let mut optimizer = Optimizer::open(store(host, 1), plan).unwrap();
    for t in 0..4 {
        let gradient = |(i, n): (usize, &usize)| {
            Some(Tensor::new(DType::BF16, &values(t * 50 + i as u64, *n, 0.1)))
        };
        model.set_gradients(&sizes.iter().enumerate().map(gradient).collect::<Vec<_>>());
        optimizer.step(&mut model).unwrap();
    }
    let counters = optimizer.store().stats().counters;
    assert!(counters.loads > 80, "{counters:?}");
    // The odd chunk at the end of the model may have to make room once in each step.
    assert!(counters.moves <= 4, "{counters:?}");
}

#[test]
fn instruction_sets_do_not_show() {
    let mut found = Vec::new();
    for isa in Isa::available() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sizes_orders_and_threads_do_not_show", "--nocapture"])
            .env(ISA_VARIABLE, isa.name())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{isa}: {text}");
        let at = text.find(MARK).unwrap() + MARK.len();
        found.push((isa, text[at..at + 16].to_owned()));
    }
    assert!(found.iter().all(|(_, bits)| *bits == found[0].1), "{found:?}");
}

#[test]
fn an_instruction_set_that_is_not_there_is_refused_by_name() {
    if std::env::var_os(ISA_VARIABLE).is_some_and(|isa| isa == "none such") {
        let plan =
            Plan::new(vec![Param::new("w", [9], DType::F32)], Options::default(), 1 << 20).unwrap();
        let text = Optimizer::open(store(1 << 20, 1), plan).unwrap_err().to_string();
        assert!(text.contains("none such") && text.contains(ISA_VARIABLE), "{text}");
        println!("{MARK}refused");
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_instruction_set_that_is_not_there_is_refused_by_name", "--nocapture"])
        .env(ISA_VARIABLE, "none such")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("refused"), "{text}");
}
