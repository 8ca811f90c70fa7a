//! Replays what torch's fused CPU Adam and `AdamW` computed, and its `.grad += g`, and demands the same
//! bits.
//!
//! `golden/adam.txt` and `golden/accumulate.txt` hold hashes only; the scripts of these names wrote them
//! and describe the formats. The generator of the inputs below must stay in step with them.

use std::collections::HashMap;
use std::str::FromStr;

use tensortier_optimizer::hyper::{Algorithm, Hyper};
use tensortier_optimizer::kernel::round::{f32_to_bf16, f32_to_f16};
use tensortier_optimizer::kernel::{
    Accumulator, Input, Isa, Output, Planes, Scalars, accumulate, store, update,
};

const ACCUMULATED: &str = include_str!("golden/accumulate.txt");
const GOLDEN: &str = include_str!("golden/adam.txt");
const COUNT: usize = 4096;

/// One case: how it is set up, and the hashes recorded at some steps.
struct Case {
    name: String,
    setup: HashMap<String, String>,
    recorded: Vec<(u64, HashMap<String, String>)>,
}

impl Case {
    fn get<T: FromStr>(&self, key: &str) -> T {
        self.setup[key].parse().ok().unwrap_or_else(|| panic!("{}: bad {key}", self.name))
    }

    fn hyper(&self, step: u64) -> Hyper {
        let base: f64 = self.get("lr");
        let lr = match self.setup["schedule"].as_str() {
            "constant" => base,
            "sawtooth" => base * (1.0 - (step % 7) as f64 * 0.125),
            other => panic!("unknown schedule {other}"),
        };
        Hyper {
            algorithm: match self.setup["algorithm"].as_str() {
                "adam" => Algorithm::Adam,
                "adamw" => Algorithm::AdamW,
                other => panic!("unknown algorithm {other}"),
            },
            lr,
            beta1: self.get("beta1"),
            beta2: self.get("beta2"),
            eps: self.get("eps"),
            weight_decay: self.get("weight_decay"),
            amsgrad: self.get::<u8>("amsgrad") != 0,
            maximize: self.get::<u8>("maximize") != 0,
            ..Hyper::default()
        }
    }
}

fn cases() -> Vec<Case> {
    let pairs = |words: &[&str]| -> HashMap<String, String> {
        let split = words.iter().filter_map(|word| word.split_once('='));
        split.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let mut cases: Vec<Case> = Vec::new();
    for line in GOLDEN.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "case" => cases.push(Case {
                name: words[1].to_owned(),
                setup: pairs(&words[2..]),
                recorded: Vec::new(),
            }),
            "at" => {
                let step = words[1].parse().expect("a step");
                cases.last_mut().expect("a case first").recorded.push((step, pairs(&words[2..])));
            }
            _ => assert!(line.starts_with('#'), "unknown line {line}"),
        }
    }
    cases
}

/// The first `COUNT` outputs of `SplitMix64` from `seed`.
fn words(seed: u64) -> impl Iterator<Item = u64> {
    (1..=COUNT as u64).map(move |index| {
        let z = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

fn start() -> Vec<f32> {
    let bits = |w: u64| ((w >> 63) << 31) | ((119 + (w >> 40) % 9) << 23) | (w & 0x007F_FFFF);
    words(1).map(|w| f32::from_bits(bits(w) as u32)).collect()
}

/// A gradient in its own type.
enum Gradient {
    Bf16(Vec<u16>),
    F16(Vec<u16>),
    F32(Vec<f32>),
}

impl Gradient {
    fn new(kind: &str, step: u64) -> Self {
        let parts =
            words(1_000_003 * step).map(|w| (w, w >> 63, (w >> 40) % 15, (w >> 56) & 15 == 0));
        let wide = |(w, sign, scale, zero): (u64, u64, u64, bool)| {
            let bits = (sign << 31) | ((113 + scale) << 23) | (w & 0x007F_FFFF);
            if zero { 0 } else { bits as u32 }
        };
        match kind {
            "bf16" => Gradient::Bf16(parts.map(|part| (wide(part) >> 16) as u16).collect()),
            "f32" => Gradient::F32(parts.map(|part| f32::from_bits(wide(part))).collect()),
            "f16" => Gradient::F16(
                parts
                    .map(|(w, sign, scale, zero)| {
                        let bits = (sign << 15) | ((1 + scale) << 10) | (w & 0x03FF);
                        if zero { 0 } else { bits as u16 }
                    })
                    .collect(),
            ),
            other => panic!("unknown gradient {other}"),
        }
    }

    fn input(&self) -> Input<'_> {
        match self {
            Gradient::Bf16(raw) => Input::Bf16(raw),
            Gradient::F16(raw) => Input::F16(raw),
            Gradient::F32(raw) => Input::F32(raw),
        }
    }
}

fn fnv(elements: impl IntoIterator<Item = u32>) -> String {
    let step = |h: u64, element: u32| (h ^ u64::from(element)).wrapping_mul(0x0100_0000_01B3);
    format!("{:016x}", elements.into_iter().fold(0xCBF2_9CE4_8422_2325, step))
}

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
    let cases = cases();
    assert!(cases.len() >= 18);
    for case in &cases {
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
