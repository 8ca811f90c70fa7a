//! Every instruction set against the element-wise reference (`Isa::Scalar`): the same bits, whatever
//! the variant, the types, the length, the alignment and the values.

#[path = "common/values.rs"]
mod values;

use proptest::prelude::*;
use tensortier_optimizer::hyper::{Algorithm, Hyper, Subnormals};
use tensortier_optimizer::kernel::round::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use tensortier_optimizer::kernel::{
    Input, Isa, KernelError, Output, Planes, Scalars, update, widen,
};
use values::{Random, canonical, variants};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    None,
    Bf16,
    F16,
    F32,
}

/// All that one update reads and writes. Its slices start `skip` elements into their allocations.
#[derive(Clone)]
struct State {
    skip: usize,
    p: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    vmax: Vec<f32>,
    out16: Vec<u16>,
    out32: Vec<f32>,
}

impl State {
    fn new(random: &mut Random, n: usize, skip: usize) -> Self {
        let total = n + skip;
        State {
            skip,
            p: random.plane(total),
            m: random.plane(total),
            // Ordinary second moments are not negative; sometimes let them be, all the same.
            v: (0..total)
                .map(|_| random.f32())
                .map(|x| if x.to_bits() & 7 == 0 { x } else { x.abs() })
                .collect(),
            vmax: random.plane(total).into_iter().map(f32::abs).collect(),
            out16: vec![0xDEAD; total],
            out32: vec![0.25; total],
        }
    }

    fn update(&mut self, isa: Isa, k: &Scalars, gradient: &[f32], input: Type, output: Type) {
        let at = self.skip;
        let half: Vec<u16> = gradient
            .iter()
            .map(|&g| if input == Type::F16 { f32_to_f16(g) } else { f32_to_bf16(g) })
            .collect();
        let grad = match input {
            Type::Bf16 => Input::Bf16(&half[at..]),
            Type::F16 => Input::F16(&half[at..]),
            _ => Input::F32(&gradient[at..]),
        };
        let out = match output {
            Type::None => Output::None,
            Type::Bf16 => Output::Bf16(&mut self.out16[at..]),
            Type::F16 => Output::F16(&mut self.out16[at..]),
            Type::F32 => Output::F32(&mut self.out32[at..]),
        };
        let vmax = k.amsgrad.then_some(&mut self.vmax[at..]);
        let planes =
            Planes { p: &mut self.p[at..], m: &mut self.m[at..], v: &mut self.v[at..], vmax };
        update(isa, k, planes, grad, out).expect("consistent slices");
    }

    /// The state as integers, every NaN being the same one.
    fn bits(&self) -> Vec<u32> {
        let planes = [&self.p, &self.m, &self.v, &self.vmax, &self.out32];
        let wide = planes.into_iter().flatten().copied().map(canonical);
        wide.chain(self.out16.iter().copied().map(u32::from)).collect()
    }
}

/// Runs a few steps of every instruction set from one start and demands equal bits after each.
fn compare(hyper: &Hyper, seed: u64, n: usize, skip: usize, input: Type, output: Type, scale: f64) {
    let mut random = Random(seed | 1);
    let start = State::new(&mut random, n, skip);
    let gradients: Vec<_> = (0..3).map(|_| random.plane(n + skip)).collect();
    let steps = |isa: Isa| {
        let mut state = start.clone();
        let step = |(t, gradient): (usize, &Vec<f32>)| {
            let k = Scalars::at(hyper, 1 + 10 * t as u64, scale);
            state.update(isa, &k, gradient, input, output);
            state.bits()
        };
        gradients.iter().enumerate().map(step).collect::<Vec<_>>()
    };
    let expected = steps(Isa::Scalar);
    for isa in Isa::available() {
        assert!(
            steps(isa) == expected,
            "{isa}: {hyper:?}, {n} elements from {skip}, {input:?} to {output:?}"
        );
    }
}

const INPUTS: [Type; 3] = [Type::Bf16, Type::F16, Type::F32];
const OUTPUTS: [Type; 4] = [Type::None, Type::Bf16, Type::F16, Type::F32];

#[test]
fn every_variant_and_type_gives_the_bits_of_the_reference() {
    for (seed, hyper) in variants().enumerate() {
        for input in INPUTS {
            for output in OUTPUTS {
                compare(&hyper, seed as u64, 203, seed % 4, input, output, 1.0);
            }
        }
    }
}

#[test]
fn every_short_length_gives_the_bits_of_the_reference() {
    for n in 0..=70 {
        for skip in 0..4 {
            for amsgrad in [false, true] {
                let hyper = Hyper { amsgrad, ..Hyper::default() };
                for output in OUTPUTS {
                    compare(&hyper, n as u64 + 99, n, skip, Type::Bf16, output, 0.5);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_hyper_parameters_give_the_bits_of_the_reference(
        seed in any::<u64>(),
        n in 0..400_usize,
        skip in 0..17_usize,
        (input, output) in (0..3_usize, 0..4_usize),
        (lr, beta1, beta2) in (0.0..10.0_f64, 0.0..1.0_f64, 0.0..1.0_f64),
        (eps, weight_decay, scale) in (0.0..0.1_f64, 0.0..1.0_f64, 0.0..2.0_f64),
        flags in 0..16_u32,
    ) {
        let hyper = Hyper {
            algorithm: if flags & 1 == 0 { Algorithm::AdamW } else { Algorithm::Adam },
            amsgrad: flags & 2 != 0,
            maximize: flags & 4 != 0,
            subnormals: if flags & 8 == 0 { Subnormals::Keep } else { Subnormals::Flush },
            lr, beta1, beta2, eps, weight_decay,
        };
        compare(&hyper, seed, n, skip, INPUTS[input], OUTPUTS[output], scale);
    }

    #[test]
    fn a_parameter_may_be_cut_anywhere(seed in any::<u64>(), n in 0..300_usize, cut in 0..300_usize) {
        let k = Scalars::at(&Hyper::default(), 5, 1.0);
        let mut random = Random(seed | 1);
        let start = State::new(&mut random, n, 0);
        let gradient = random.plane(n);
        let cut = cut.min(n);
        for isa in Isa::available() {
            let mut whole = start.clone();
            whole.update(isa, &k, &gradient, Type::F32, Type::Bf16);
            let mut parts = start.clone();
            for range in [0..cut, cut..n] {
                let planes = Planes {
                    p: &mut parts.p[range.clone()],
                    m: &mut parts.m[range.clone()],
                    v: &mut parts.v[range.clone()],
                    vmax: None,
                };
                let out = Output::Bf16(&mut parts.out16[range.clone()]);
                update(isa, &k, planes, Input::F32(&gradient[range]), out).expect("equal lengths");
            }
            prop_assert_eq!(whole.bits(), parts.bits());
        }
    }
}

#[test]
fn flushing_leaves_no_subnormal_moment_and_keeping_does() {
    for (subnormals, expected) in [(Subnormals::Keep, true), (Subnormals::Flush, false)] {
        let k = Scalars::at(&Hyper { subnormals, ..Hyper::default() }, 100, 1.0);
        for isa in Isa::available() {
            let mut p = [1.0_f32; 40];
            let mut m = [1e-38_f32; 40];
            let mut v = [-0.0_f32; 40];
            v[..20].fill(1e-39);
            let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax: None };
            update(isa, &k, planes, Input::Bf16(&[0; 40]), Output::None).expect("equal lengths");
            assert_eq!(m.iter().any(|x| x.is_subnormal()), expected, "{isa}");
            assert_eq!(v.iter().any(|x| x.is_subnormal()), expected, "{isa}");
            assert!(v.iter().all(|x| x.is_sign_positive()), "{isa}");
        }
    }
}

#[test]
fn the_smallest_normal_moments_are_not_flushed() {
    // With betas of zero the moments are the gradient and its square.
    let hyper = Hyper { beta1: 0.0, beta2: 0.0, subnormals: Subnormals::Flush, ..Hyper::default() };
    let k = Scalars::at(&hyper, 1, 1.0);
    for isa in Isa::available() {
        for (bits, m_kept, v_kept) in [
            (0x2000_0000, true, true),  // 2^-63, squared 2^-126
            (0x1FFF_FFFF, true, false), // just below
            (0x0080_0000, true, false), // 2^-126
            (0x807F_FFFF, false, false),
        ] {
            let g = f32::from_bits(bits);
            let (mut p, mut m, mut v) = ([0.0; 40], [0.0; 40], [0.0; 40]);
            let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax: None };
            update(isa, &k, planes, Input::F32(&[g; 40]), Output::None).expect("equal lengths");
            assert!(m.iter().all(|x| x.to_bits() == if m_kept { bits } else { 0 }), "{isa}: {g}");
            assert!(
                v.iter().all(|x| x.to_bits() == if v_kept { 0x0080_0000 } else { 0 }),
                "{isa}: {g}"
            );
        }
    }
}

#[test]
fn slices_that_do_not_fit_are_refused_and_left_alone() {
    let plain = Scalars::at(&Hyper::default(), 1, 1.0);
    let amsgrad = Scalars::at(&Hyper { amsgrad: true, ..Hyper::default() }, 1, 1.0);
    let call = |k: &Scalars, lengths: [usize; 5], vmax: bool| {
        let [mut p, mut m, mut v, mut x, g] = lengths.map(|n| vec![1.0_f32; n]);
        let mut out = vec![7_u16; 4];
        let vmax = vmax.then_some(&mut x[..]);
        let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax };
        let result = update(Isa::Scalar, k, planes, Input::F32(&g), Output::Bf16(&mut out));
        let untouched = [p, m, v, x].iter().flatten().all(|&value| value == 1.0);
        assert_eq!(result.is_err(), untouched && out == [7; 4]);
        result
    };
    let length = |what, expected, actual| Err(KernelError::Length { what, expected, actual });
    assert_eq!(call(&plain, [4; 5], false), Ok(()));
    assert_eq!(call(&amsgrad, [4; 5], true), Ok(()));
    assert_eq!(call(&plain, [4, 3, 4, 4, 4], false), length("m", 4, 3));
    assert_eq!(call(&plain, [4, 4, 5, 4, 4], false), length("v", 4, 5));
    assert_eq!(call(&plain, [4, 4, 4, 4, 0], false), length("the gradient", 4, 0));
    assert_eq!(call(&plain, [3, 3, 3, 3, 3], false), length("the weight output", 3, 4));
    assert_eq!(call(&amsgrad, [4, 4, 4, 1, 4], true), length("vmax", 4, 1));
    assert_eq!(call(&amsgrad, [4; 5], false), Err(KernelError::MissingMaximum));
    assert_eq!(call(&plain, [4; 5], true), Err(KernelError::UnexpectedMaximum));
}

#[test]
fn widening_is_exact_for_every_pattern() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let mut wide = vec![0.0; all.len()];
    let same = |wide: &[f32], one: fn(u16) -> f32| {
        wide.iter().zip(&all).all(|(wide, &raw)| wide.to_bits() == one(raw).to_bits())
    };
    widen(Input::Bf16(&all), &mut wide).expect("equal lengths");
    assert!(same(&wide, bf16_to_f32));
    widen(Input::F16(&all), &mut wide).expect("equal lengths");
    assert!(same(&wide, f16_to_f32));
    let copy = wide.clone();
    widen(Input::F32(&copy), &mut wide).expect("equal lengths");
    assert!(copy.iter().zip(&wide).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert!(widen(Input::F32(&copy), &mut wide[1..]).is_err());
}
