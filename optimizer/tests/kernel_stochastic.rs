//! Stochastic rounding: unbiased, and the same bits for any instruction set and cut.

#[path = "common/values.rs"]
mod values;

use proptest::prelude::*;
use tensortier_optimizer::hyper::Hyper;
use tensortier_optimizer::kernel::round::{
    BF16_NAN, F16_NAN, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16,
};
use tensortier_optimizer::kernel::{
    HalfWeights, Input, Isa, KernelError, Output, Planes, Scalars, Stochastic, WeightPlanes,
    update, update_stochastic, widen,
};
use values::{Random, canonical_all, variants};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bf16,
    F16,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Bf16, Kind::F16];

    fn read(self, bits: u16) -> f32 {
        match self {
            Kind::Bf16 => bf16_to_f32(bits),
            Kind::F16 => f16_to_f32(bits),
        }
    }

    fn nearest(self, value: f32) -> u16 {
        match self {
            Kind::Bf16 => f32_to_bf16(value),
            Kind::F16 => f32_to_f16(value),
        }
    }

    fn weights(self, raw: &mut [u16]) -> HalfWeights<'_> {
        match self {
            Kind::Bf16 => HalfWeights::Bf16(raw),
            Kind::F16 => HalfWeights::F16(raw),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct State {
    weights: Vec<u16>,
    m: Vec<f32>,
    v: Vec<f32>,
    vmax: Vec<f32>,
}

impl State {
    fn random(random: &mut Random, n: usize) -> Self {
        let weights = (0..n).map(|_| random.word() as u16).collect();
        let mut moments = || random.plane(n).into_iter().map(f32::abs).collect::<Vec<_>>();
        let (v, vmax) = (moments(), moments());
        State { weights, m: random.plane(n), v, vmax }
    }

    fn still(weights: Vec<u16>) -> Self {
        let zeros = vec![0.0; weights.len()];
        State { weights, m: zeros.clone(), v: zeros.clone(), vmax: zeros }
    }

    fn step(&mut self, isa: Isa, kind: Kind, k: &Scalars, grad: Input<'_>, rounding: Stochastic) {
        let planes = WeightPlanes {
            weights: kind.weights(&mut self.weights),
            m: &mut self.m,
            v: &mut self.v,
            vmax: k.amsgrad.then_some(&mut self.vmax[..]),
        };
        update_stochastic(isa, k, planes, grad, rounding).expect("equal lengths");
    }

    fn bits(&self) -> Vec<u32> {
        let mut bits = canonical_all(&self.m);
        bits.extend(canonical_all(&self.v));
        bits.extend(canonical_all(&self.vmax));
        bits.extend(self.weights.iter().copied().map(u32::from));
        bits
    }
}

/// Scalars of a step that only multiplies the weight by `factor`: without gradient `m` stays zero.
fn only_decay(factor: f32) -> Scalars {
    Scalars { dec: factor, ..Scalars::at(&Hyper::default(), 10, 1.0) }
}

/// `weight` times `factor` rounded `n` times, by `n` different noises.
fn rounded(kind: Kind, weight: u16, factor: f32, n: usize, key: u64) -> Vec<u16> {
    let isa = Isa::available().last().expect("one at least");
    let mut state = State::still(vec![weight; n]);
    let rounding = Stochastic { key, first: 0 };
    state.step(isa, kind, &only_decay(factor), Input::Bf16(&vec![0; n]), rounding);
    state.weights
}

#[test]
fn every_variant_is_the_canonical_update_then_a_neighbour() {
    for (seed, hyper) in variants().enumerate() {
        let mut random = Random(seed as u64 + 7);
        let start = State::random(&mut random, 222);
        let gradients: Vec<_> = (0..3).map(|_| random.plane(222)).collect();
        for kind in Kind::ALL {
            let mut all = Vec::new();
            for isa in Isa::available() {
                let mut state = start.clone();
                for (t, gradient) in (1..).zip(&gradients) {
                    let k = Scalars::at(&hyper, t, 1.0);
                    let (mut p, mut wide) = (vec![0.0; 222], state.clone());
                    let raw = &state.weights[..];
                    let from = if kind == Kind::Bf16 { Input::Bf16(raw) } else { Input::F16(raw) };
                    widen(from, &mut p).expect("equal lengths");
                    let vmax = k.amsgrad.then_some(&mut wide.vmax[..]);
                    let planes = Planes { p: &mut p, m: &mut wide.m, v: &mut wide.v, vmax };
                    update(isa, &k, planes, Input::F32(gradient), Output::None).expect("fits");
                    let rounding = Stochastic { key: Stochastic::key(1, t, 2), first: 1 << 40 };
                    state.step(isa, kind, &k, Input::F32(gradient), rounding);
                    wide.weights.clone_from(&state.weights);
                    assert_eq!(state.bits(), wide.bits(), "{isa}, {hyper:?}");
                    for (&p, &weight) in p.iter().zip(&state.weights) {
                        assert!(is_neighbour(kind, p, weight), "{isa}: {p:e} became {weight:#x}");
                    }
                }
                all.push(state.bits());
            }
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{hyper:?}");
        }
    }
}

/// Whether `weight` is one of the two numbers of the type beside `p`, or `p` itself.
fn is_neighbour(kind: Kind, p: f32, weight: u16) -> bool {
    if p.is_nan() {
        return weight == if kind == Kind::Bf16 { BF16_NAN } else { F16_NAN };
    }
    let nearest = kind.nearest(p);
    if kind.read(nearest) == p {
        return weight == nearest || (p == 0.0 && weight & 0x7FFF == 0);
    }
    // Truncated toward zero, and one more.
    let beyond = kind.read(nearest).abs() > p.abs();
    let low = if beyond { nearest - 1 } else { nearest };
    weight == low || weight == low + 1
}

/// A weight and a factor whose product lies at `fraction` between two numbers of the type.
struct Between {
    kind: Kind,
    weight: u16,
    factor: f32,
}

#[test]
fn a_number_is_rounded_up_with_the_probability_of_its_fraction() {
    const N: usize = 1 << 16;
    let bf16 = |weight, factor| Between { kind: Kind::Bf16, weight, factor };
    let f16 = |weight, factor| Between { kind: Kind::F16, weight, factor };
    let cases = [
        bf16(0x3F80, 1.0 - 1e-4), // one
        bf16(0xBF80, 1.0 - 1e-3), // negative
        bf16(0x4248, 1.0 + 1e-3), // up
        bf16(0x0003, 0.4),        // subnormal
        bf16(0x7F7F, 1.0 + 1e-3), // between the largest and infinity
        f16(0x3C00, 1.0 - 1e-4),  // one
        f16(0xBD55, 1.0 - 2e-4),  // negative
        f16(0x0401, 0.7),         // from normal to subnormal
        f16(0x0003, 0.4),         // subnormal
        f16(0x8001, 0.11),        // below the smallest
        f16(0x0001, 1.0 / 512.0), // far below it
        f16(0x7BFF, 1.0 + 1e-4),  // between the largest and infinity
    ];
    for Between { kind, weight, factor } in cases {
        let p = kind.read(weight) * factor;
        for key in [1, 2, 3] {
            let weights = rounded(kind, weight, factor, N, key);
            // Infinity stands for the next number of the grid.
            let value = |bits: u16| match kind.read(bits) {
                x if x.is_infinite() && kind == Kind::F16 => 65536.0_f64.copysign(x.into()),
                x if x.is_infinite() => 2.0_f64.powi(128).copysign(x.into()),
                x => x.into(),
            };
            let (low, high) =
                weights.iter().fold((u16::MAX, 0), |(low, high), &w| (low.min(w), high.max(w)));
            let mean = weights.iter().map(|&w| value(w)).sum::<f64>() / N as f64;
            let unit = (value(high) - value(low)).abs();
            assert_eq!(high, low + 1, "{kind:?} {p:e} lies between two numbers");
            // A mean of N draws from two points a unit apart has a standard deviation of at most
            // sqrt(f (1 - f) / N) units; five of them are passed once in 1.7 million times.
            let fraction = ((f64::from(p) - value(low)) / unit).abs();
            let deviation = (fraction * (1.0 - fraction) / N as f64).sqrt();
            let off = (mean - f64::from(p)).abs() / unit;
            assert!(
                off <= 5.0 * deviation,
                "{kind:?} {p:e}: {off} units off, {deviation} expected"
            );
        }
    }
}

#[test]
fn what_the_type_holds_stays_and_nan_is_one_pattern() {
    let isa = Isa::available().last().expect("one at least");
    for kind in Kind::ALL {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for key in 0..8 {
            let mut state = State::still(all.clone());
            let none = Input::Bf16(&[0; 1 << 16]);
            let k = only_decay(1.0);
            state.step(
                isa,
                kind,
                &k,
                none,
                Stochastic { key: Stochastic::key(key, 1, 1), first: 0 },
            );
            for (&old, &new) in all.iter().zip(&state.weights) {
                let value = kind.read(old);
                // p + h turns a negative zero into a positive one.
                let expected = if value == 0.0 { 0.0 } else { value };
                assert_eq!(
                    new & if value == 0.0 { 0x7FFF } else { 0xFFFF },
                    kind.nearest(expected)
                );
            }
        }
    }
}

#[test]
fn decay_alone_arrives_where_nearest_rounding_stands_still() {
    const N: usize = 1 << 14;
    const STEPS: i32 = 1000;
    // A quarter of a thousandth is less than half a unit of bf16 and about half one of fp16.
    let k = only_decay(1.0 - 2.5e-4);
    let isa = Isa::available().last().expect("one at least");
    let grad = vec![0; N];
    let expected = f64::from(k.dec).powi(STEPS);
    for (kind, one, unit) in
        [(Kind::Bf16, 0x3F80, 2.0_f64.powi(-8)), (Kind::F16, 0x3C00, 2.0_f64.powi(-11))]
    {
        let mut state = State::still(vec![one; N]);
        for t in 1..=STEPS as u64 {
            let rounding = Stochastic { key: Stochastic::key(42, t, 7), first: 0 };
            state.step(isa, kind, &k, Input::Bf16(&grad), rounding);
        }
        let mean = state.weights.iter().map(|&w| f64::from(kind.read(w))).sum::<f64>() / N as f64;
        // Each step adds at most a unit's half of deviation to each element, independently.
        let deviation = unit / 2.0 * f64::from(STEPS).sqrt() / (N as f64).sqrt();
        assert!((mean - expected).abs() < 5.0 * deviation, "{kind:?}: {mean}, {expected} expected");
        assert!(state.weights.iter().any(|&w| w != state.weights[0]), "weights spread");
    }
    assert_eq!(f32_to_bf16(k.dec), 0x3F80, "rounded to nearest nothing would happen");
}

#[test]
fn noises_of_steps_parameters_and_elements_are_unlike() {
    // One bit of rounding each: two noises agree in half of N cases, give or take 5 * sqrt(N) / 2.
    const N: usize = 1 << 15;
    let half = |key, first: u64| {
        let isa = Isa::available().last().expect("one at least");
        // 1.5 units of the smallest fp16.
        let mut state = State::still(vec![3; N]);
        let rounding = Stochastic { key, first };
        state.step(isa, Kind::F16, &only_decay(0.5), Input::Bf16(&vec![0; N]), rounding);
        state.weights
    };
    let key = Stochastic::key(1, 2, 3);
    let base = half(key, 0);
    for (what, other) in [
        ("seed", half(Stochastic::key(2, 2, 3), 0)),
        ("step", half(Stochastic::key(1, 3, 3), 0)),
        ("parameter", half(Stochastic::key(1, 2, 4), 0)),
        ("swapped", half(Stochastic::key(2, 1, 3), 0)),
        ("element", half(key, 1)),
        ("the counter's end", half(key, 1 << 22)),
        ("upper half of the index", half(key, 1 << 32)),
        ("a power of two", half(key, 1 << 15)),
        ("half a counter", half(key, 1 << 21)),
    ] {
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        let off = same.abs_diff(N / 2) as f64;
        assert!(off < 2.5 * (N as f64).sqrt(), "{what}: {same} of {N} agree");
    }
}

#[test]
fn the_noise_is_the_documented_one() {
    // Computed from the module's documentation by hand, in 64-bit arithmetic.
    let mix = |mut z: u64| {
        z ^= z >> 30;
        z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z ^= z >> 27;
        z = z.wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let golden = 0x9E37_79B9_7F4A_7C15_u64;
    let key = [5_u64, 6, 7].iter().fold(0_u64, |key, part| mix(key.wrapping_add(part + golden)));
    assert_eq!(Stochastic::key(5, 6, 7), key);
    let first = (3 << 22) - 1000;
    let noise = |index: u64| {
        let inner = mix(key.wrapping_add((index >> 22).wrapping_mul(golden)));
        let low = 0xFFFF_FFFF_u64;
        let mut x = ((index & 0x003F_FFFF) + (inner & low)) & low;
        x = (x * 0x21F0_AAAD) & low;
        x ^= (x >> 15) ^ (inner >> 32);
        (x * 0x735A_2D97) & low
    };
    let k = only_decay(0.9);
    let p = bf16_to_f32(0x3F81) * k.dec;
    for isa in Isa::available() {
        let mut state = State::still(vec![0x3F81; 2000]);
        let rounding = Stochastic { key, first };
        state.step(isa, Kind::Bf16, &k, Input::Bf16(&[0; 2000]), rounding);
        for (index, &weight) in (first..).zip(&state.weights) {
            let expected = (u64::from(p.to_bits()) + (noise(index) >> 16)) >> 16;
            assert_eq!(u64::from(weight), expected, "{isa}, element {index}");
        }
    }
}

proptest! {
    #[test]
    fn any_cut_gives_the_same(
        seed in any::<u64>(),
        n in 0..200_usize,
        cut in 0..200_usize,
        near in 0..300_u64,
        amsgrad in any::<bool>(),
    ) {
        let hyper = Hyper { amsgrad, ..Hyper::default() };
        let k = Scalars::at(&hyper, 5, 1.0);
        let mut random = Random(seed | 1);
        let start = State::random(&mut random, n);
        let gradient = random.plane(n);
        let cut = cut.min(n);
        // Around a border of the noise's counter.
        let first = (1 << 22) - 150 + near;
        for kind in Kind::ALL {
            let mut all = Vec::new();
            for isa in Isa::available() {
                let mut whole = start.clone();
                whole.step(isa, kind, &k, Input::F32(&gradient), Stochastic { key: seed, first });
                let mut parts = start.clone();
                for range in [0..cut, cut..n] {
                    let rounding = Stochastic { key: seed, first: first + range.start as u64 };
                    let planes = WeightPlanes {
                        weights: kind.weights(&mut parts.weights[range.clone()]),
                        m: &mut parts.m[range.clone()],
                        v: &mut parts.v[range.clone()],
                        vmax: amsgrad.then_some(&mut parts.vmax[range.clone()]),
                    };
                    let grad = Input::F32(&gradient[range]);
                    update_stochastic(isa, &k, planes, grad, rounding).expect("equal lengths");
                }
                prop_assert_eq!(whole.bits(), parts.bits());
                all.push(whole.bits());
            }
            prop_assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}

#[test]
fn slices_that_do_not_fit_are_refused() {
    let k = Scalars::at(&Hyper::default(), 1, 1.0);
    let call = |n: usize, lengths: [usize; 2], amsgrad: bool| {
        let (mut weights, mut m, mut v) = (vec![1; n], vec![0.0; 4], vec![0.0; lengths[0]]);
        let weights = HalfWeights::F16(&mut weights);
        let planes = WeightPlanes { weights, m: &mut m, v: &mut v, vmax: None };
        let grad = vec![0; lengths[1]];
        let rounding = Stochastic { key: 0, first: 0 };
        update_stochastic(
            Isa::Scalar,
            &Scalars { amsgrad, ..k },
            planes,
            Input::Bf16(&grad),
            rounding,
        )
    };
    let length = |what, actual| Err(KernelError::Length { what, expected: 4, actual });
    assert_eq!(call(4, [4, 4], false), Ok(()));
    assert_eq!(call(3, [4, 4], false), length("the weights", 3));
    assert_eq!(call(4, [3, 4], false), length("v", 3));
    assert_eq!(call(4, [4, 5], false), length("the gradient", 5));
    assert_eq!(call(4, [4, 4], true), Err(KernelError::MissingMaximum));
}
