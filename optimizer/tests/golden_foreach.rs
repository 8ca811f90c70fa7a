//! Torch's foreach Adam and `AdamW` on a CPU: its moments to the bit, and its weights, whose square root is
//! not correctly rounded there, within four units of the last place of each step.
//!
//! `golden/foreach.txt` was written by the script of that name, which describes it: every weight of 200
//! steps that the fused step would have left otherwise is in it.

mod common;

use common::golden::{COUNT, Case, Gradient, cases, fnv};
use tensortier_optimizer::kernel::{Isa, Output, Planes, Scalars, update};

const GOLDEN: &str = include_str!("golden/foreach.txt");

/// How far two numbers are apart, in units of the last place of `of`.
fn units(a: f32, b: f32, of: f32) -> f64 {
    let unit = f32::from_bits(of.to_bits() + 1) - of;
    (f64::from(a) - f64::from(b)).abs() / f64::from(unit)
}

/// The weights of one step that are recorded: index, before, and after.
fn weights(case: &Case, step: u64) -> Vec<(usize, f32, f32)> {
    let bits = |word: &str| f32::from_bits(u32::from_str_radix(word, 16).expect("bits"));
    let own = case.others.iter().filter_map(|words| match &words[..] {
        [at, index, before, after] if at.parse() == Ok(step) => {
            Some((index.parse().expect("an index"), bits(before), bits(after)))
        }
        _ => None,
    });
    own.collect()
}

/// Returns how many weights differ.
fn replay(case: &Case, isa: Isa) -> usize {
    let (mut m, mut v, mut maximum) = (vec![0.0; COUNT], vec![0.0; COUNT], vec![0.0; COUNT]);
    let (mut seen, mut different) = (0, 0);
    for step in 1..=200 {
        let hyper = case.hyper(step);
        let k = Scalars::at(&hyper, step, case.get("scale"));
        let gradient = Gradient::new(&case.setup["grad"], step);
        let recorded = weights(case, step);
        let mut p = vec![1.0_f32; COUNT];
        recorded.iter().for_each(|(index, before, _)| p[*index] = *before);
        let vmax = hyper.amsgrad.then_some(&mut maximum[..]);
        let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax };
        update(isa, &k, planes, gradient.input(), Output::None).expect("valid input");
        for (index, before, after) in recorded {
            let largest = before.abs().max(after.abs());
            let off = units(p[index], after, largest);
            assert!(off <= 4.0, "{}, {isa}, step {step}, element {index}: {off} units", case.name);
            different += usize::from(p[index].to_bits() != after.to_bits());
        }
        let Some((_, hashes)) = case.recorded.iter().find(|(at, _)| *at == step) else { continue };
        seen += 1;
        let plane = |values: &[f32]| fnv(values.iter().map(|value| value.to_bits()));
        let maximum = if hyper.amsgrad { &maximum[..] } else { &[] };
        for (name, actual) in [("m", plane(&m)), ("v", plane(&v)), ("x", plane(maximum))] {
            assert_eq!(actual, hashes[name], "{}, {isa}: {name} at step {step}", case.name);
        }
    }
    assert_eq!(seen, case.recorded.len());
    different
}

#[test]
fn torch_foreach_adam_is_within_four_units_of_each_step() {
    let cases = cases(GOLDEN);
    assert!(cases.len() >= 5);
    for case in &cases {
        for isa in Isa::available() {
            assert!(replay(case, isa) > 0, "it is the foreach one: the fused one differs nowhere");
        }
    }
}
