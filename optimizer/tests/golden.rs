//! Replays what torch's fused CPU Adam and `AdamW` computed, and its `.grad += g`, and demands the same
//! bits.
//!
//! `golden/adam.txt` and `golden/accumulate.txt` hold hashes only; the scripts of these names wrote them
//! and describe the formats. The generator of the inputs in `common/golden.rs` must stay in step with them.

mod common;

use common::golden::{COUNT, Case, Gradient, cases, fnv, start};
use tensortier_optimizer::kernel::round::{f32_to_bf16, f32_to_f16};
use tensortier_optimizer::kernel::{
    Accumulator, Isa, Output, Planes, Scalars, accumulate, store, update,
};

const ACCUMULATED: &str = include_str!("golden/accumulate.txt");
const GOLDEN: &str = include_str!("golden/adam.txt");

fn replay(case: &Case, isa: Isa) {
    let (mut p, mut m, mut v) = (start(), vec![0.0; COUNT], vec![0.0; COUNT]);
    let mut maximum = vec![0.0; COUNT];
    let mut weights = vec![0; COUNT];
    let last = case.recorded.last().expect("a recorded step").0;
    let mut recorded = case.recorded.iter();
    let mut next = recorded.next();
    for step in 1..=last {
        let hyper = case.hyper(step);
        let k = Scalars::at(&hyper, step, case.get("scale"));
        let gradient = Gradient::new(&case.setup["grad"], step);
        let vmax = hyper.amsgrad.then_some(&mut maximum[..]);
        let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax };
        update(isa, &k, planes, gradient.input(), Output::Bf16(&mut weights)).expect("valid input");
        let Some((_, hashes)) = next.filter(|(at, _)| *at == step) else {
            continue;
        };
        next = recorded.next();

        let plane = |values: &[f32]| fnv(values.iter().map(|value| value.to_bits()));
        let maximum = if hyper.amsgrad { &maximum[..] } else { &[] };
        for (name, actual) in [
            ("m", plane(&m)),
            ("v", plane(&v)),
            ("x", plane(maximum)),
            ("p", plane(&p)),
            ("bf16", fnv(weights.iter().copied().map(u32::from))),
            ("bf16", fnv(p.iter().map(|&value| f32_to_bf16(value).into()))),
            ("f16", fnv(p.iter().map(|&value| f32_to_f16(value).into()))),
        ] {
            assert_eq!(actual, hashes[name], "{}, {isa}: {name} at step {step}", case.name);
        }
    }
    assert!(next.is_none(), "{}: every recorded step was reached", case.name);
}

#[test]
fn torch_fused_adam_is_reproduced_bit_for_bit() {
    let cases = cases(GOLDEN);
    assert!(cases.len() >= 18);
    for case in &cases {
        assert!(case.others.is_empty(), "unknown lines in {}", case.name);
        for isa in Isa::available() {
            replay(case, isa);
        }
    }
}

/// The sums of the first `count` gradients of one type, in that type, as patterns.
fn accumulated(kind: &str, count: u64, isa: Isa) -> Vec<u32> {
    let (mut half, mut full) = (vec![0_u16; COUNT], vec![0.0_f32; COUNT]);
    for step in 1..=count {
        let gradient = Gradient::new(kind, step);
        let into = match kind {
            "bf16" => Accumulator::Bf16(&mut half),
            "f16" => Accumulator::F16(&mut half),
            _ => Accumulator::F32(&mut full),
        };
        let add = if step == 1 { store } else { accumulate };
        add(isa, into, gradient.input()).expect("equal lengths");
    }
    match kind {
        "f32" => full.iter().map(|x| x.to_bits()).collect(),
        _ => half.iter().copied().map(u32::from).collect(),
    }
}

#[test]
fn torch_gradient_accumulation_is_reproduced_bit_for_bit() {
    let lines = ACCUMULATED.lines().filter(|line| !line.starts_with('#'));
    let mut seen = 0;
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let count = words[1].parse().expect("a count");
        for isa in Isa::available() {
            let hash = fnv(accumulated(words[0], count, isa));
            assert_eq!(hash, words[2], "{isa}: {count} gradients in {}", words[0]);
        }
        seen += 1;
    }
    assert!(seen >= 12);
}
