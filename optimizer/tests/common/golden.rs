//! The golden vectors of torch: their files, and the inputs that scripts/golden_adam.py repeats.

#![allow(clippy::panic, reason = "a bad file fails the test")]

use std::collections::HashMap;
use std::str::FromStr;

use tensortier_optimizer::hyper::{Algorithm, Hyper};
use tensortier_optimizer::kernel::Input;

/// Elements of each case.
pub(crate) const COUNT: usize = 4096;

/// One case: how it is set up, and the hashes recorded at some steps.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) setup: HashMap<String, String>,
    pub(crate) recorded: Vec<(u64, HashMap<String, String>)>,
    /// Lines of other kinds, in words.
    pub(crate) others: Vec<Vec<String>>,
}

impl Case {
    pub(crate) fn get<T: FromStr>(&self, key: &str) -> T {
        self.setup[key].parse().ok().unwrap_or_else(|| panic!("{}: bad {key}", self.name))
    }

    pub(crate) fn hyper(&self, step: u64) -> Hyper {
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

/// Reads a file of cases.
pub(crate) fn cases(golden: &str) -> Vec<Case> {
    let pairs = |words: &[&str]| -> HashMap<String, String> {
        let split = words.iter().filter_map(|word| word.split_once('='));
        split.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let mut cases: Vec<Case> = Vec::new();
    for line in golden.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "case" => cases.push(Case {
                name: words[1].to_owned(),
                setup: pairs(&words[2..]),
                recorded: Vec::new(),
                others: Vec::new(),
            }),
            "at" => {
                let step = words[1].parse().expect("a step");
                cases.last_mut().expect("a case first").recorded.push((step, pairs(&words[2..])));
            }
            _ if line.starts_with('#') => {}
            _ => {
                let words = words.into_iter().map(str::to_owned).collect();
                cases.last_mut().expect("a case first").others.push(words);
            }
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

/// The first weights.
pub(crate) fn start() -> Vec<f32> {
    let bits = |w: u64| ((w >> 63) << 31) | ((119 + (w >> 40) % 9) << 23) | (w & 0x007F_FFFF);
    words(1).map(|w| f32::from_bits(bits(w) as u32)).collect()
}

/// A gradient in its own type.
#[derive(Debug)]
pub(crate) enum Gradient {
    Bf16(Vec<u16>),
    F16(Vec<u16>),
    F32(Vec<f32>),
}

impl Gradient {
    pub(crate) fn new(kind: &str, step: u64) -> Self {
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

    pub(crate) fn input(&self) -> Input<'_> {
        match self {
            Gradient::Bf16(raw) => Input::Bf16(raw),
            Gradient::F16(raw) => Input::F16(raw),
            Gradient::F32(raw) => Input::F32(raw),
        }
    }
}

/// FNV-1a over whole elements, in 16 digits.
pub(crate) fn fnv(elements: impl IntoIterator<Item = u32>) -> String {
    let step = |h: u64, element: u32| (h ^ u64::from(element)).wrapping_mul(0x0100_0000_01B3);
    format!("{:016x}", elements.into_iter().fold(0xCBF2_9CE4_8422_2325, step))
}
