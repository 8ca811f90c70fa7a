//! The split master: what it leaves is what the update with an fp32 master leaves, bit for bit.

#[path = "common/values.rs"]
mod values;

use proptest::prelude::*;
use tensortier_optimizer::hyper::{Hyper, Subnormals};
use tensortier_optimizer::kernel::round::f32_to_bf16;
use tensortier_optimizer::kernel::{
    Input, Isa, KernelError, Output, Planes, Scalars, SplitPlanes, split, update, update_split,
};
use values::{Random, canonical, canonical_all, variants};

/// One parameter's state both ways.
#[derive(Clone)]
struct Twins {
    p: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    vmax: Vec<f32>,
    weights: Vec<u16>,
    lo: Vec<u16>,
    split_m: Vec<f32>,
    marked_v: Vec<f32>,
    split_vmax: Vec<f32>,
    hi: Vec<u16>,
}

impl Twins {
    fn new(p: Vec<f32>, m: Vec<f32>, v: Vec<f32>, vmax: Vec<f32>) -> Self {
        let n = p.len();
        let (mut lo, mut hi, mut marked_v) = (vec![0; n], vec![0; n], v.clone());
        split::split_all(&p, &mut hi, &mut lo, &mut marked_v).expect("equal lengths");
        let weights = p.iter().map(|&p| f32_to_bf16(p)).collect();
        let (split_m, split_vmax) = (m.clone(), vmax.clone());
        Twins { p, m, v, vmax, weights, lo, split_m, marked_v, split_vmax, hi }
    }

    fn random(random: &mut Random, n: usize) -> Self {
        let mut moments = || random.plane(n).into_iter().map(f32::abs).collect::<Vec<_>>();
        let (v, vmax) = (moments(), moments());
        Twins::new(random.plane(n), random.plane(n), v, vmax)
    }

    fn step(&mut self, isa: Isa, k: &Scalars, grad: Input<'_>) {
        let vmax = k.amsgrad.then_some(&mut self.vmax[..]);
        let planes = Planes { p: &mut self.p, m: &mut self.m, v: &mut self.v, vmax };
        update(isa, k, planes, grad, Output::Bf16(&mut self.weights)).expect("equal lengths");
        let planes = SplitPlanes {
            lo: &mut self.lo,
            m: &mut self.split_m,
            v: &mut self.marked_v,
            vmax: k.amsgrad.then_some(&mut self.split_vmax[..]),
            hi: &mut self.hi,
        };
        update_split(isa, k, planes, grad).expect("equal lengths");
    }

    /// Demands that the twins are equal.
    fn check(&self, what: &dyn std::fmt::Debug) {
        let n = self.p.len();
        let (mut p, mut v) = (vec![0.0; n], vec![0.0; n]);
        split::join_all(&self.hi, &self.lo, &self.marked_v, &mut p).expect("equal lengths");
        split::unmark_all(&self.marked_v, &mut v).expect("equal lengths");
        assert_eq!(canonical_all(&p), canonical_all(&self.p), "p: {what:?}");
        assert_eq!(canonical_all(&self.split_m), canonical_all(&self.m), "m: {what:?}");
        assert_eq!(canonical_all(&v), canonical_all(&self.v), "v: {what:?}");
        assert_eq!(canonical_all(&self.split_vmax), canonical_all(&self.vmax), "vmax: {what:?}");
        assert_eq!(self.hi, self.weights, "weights: {what:?}");
    }

    /// All bits of the split form, every NaN of a moment being the same one of its sign.
    fn split_bits(&self) -> Vec<u32> {
        let mut bits = canonical_all(&self.split_m);
        bits.extend(canonical_all(&self.split_vmax));
        let plain: Vec<f32> = self.marked_v.iter().map(|v| v.abs()).collect();
        bits.extend(canonical_all(&plain));
        // Of a NaN in the master only that it is one is fixed, so the mark beside it is not.
        let elements = self.hi.iter().zip(&self.lo).zip(&self.marked_v);
        bits.extend(elements.flat_map(|((&hi, &lo), &v)| {
            let p = split::join(hi, lo, v);
            [canonical(p), if p.is_nan() { 0 } else { v.to_bits() >> 31 }]
        }));
        bits.extend(self.hi.iter().copied().map(u32::from));
        bits
    }
}

#[test]
fn every_variant_equals_the_fp32_master_on_every_instruction_set() {
    for (seed, hyper) in variants().enumerate() {
        let mut random = Random(seed as u64 + 7);
        let start = Twins::random(&mut random, 333);
        let gradients: Vec<_> = (0..4).map(|_| random.plane(333)).collect();
        let mut bits = Vec::new();
        for isa in Isa::available() {
            let mut twins = start.clone();
            for (t, gradient) in (1..).zip(&gradients) {
                let half: Vec<u16> = gradient.iter().map(|&g| f32_to_bf16(g)).collect();
                let input = match t % 3 {
                    0 => Input::Bf16(&half),
                    1 => Input::F32(gradient),
                    _ => Input::F16(&half),
                };
                twins.step(isa, &Scalars::at(&hyper, t, 1.0), input);
                twins.check(&(isa, &hyper, t));
            }
            bits.push(twins.split_bits());
        }
        assert!(bits.windows(2).all(|pair| pair[0] == pair[1]), "{hyper:?}");
    }
}

#[test]
fn a_long_run_stays_equal() {
    let hyper = Hyper { lr: 1e-2, subnormals: Subnormals::Flush, ..Hyper::default() };
    for isa in Isa::available().filter(|isa| *isa != Isa::Scalar) {
        let mut random = Random(3);
        let p = (0..4096).map(|i| (i as f32 - 2048.0) * 1e-3).collect();
        let mut twins = Twins::new(p, vec![0.0; 4096], vec![0.0; 4096], vec![0.0; 4096]);
        for t in 1..=1000 {
            let gradient: Vec<u16> =
                (0..4096).map(|_| random.word() as u16 & 0x83FF | 0x3800).collect();
            twins.step(isa, &Scalars::at(&hyper, t, 1.0), Input::Bf16(&gradient));
            if t % 100 == 0 || t < 4 {
                twins.check(&(isa, t));
            }
        }
    }
}

#[test]
fn masters_at_ties_and_edges_survive_a_step_that_changes_nothing() {
    // Without gradient, decay and first moments the master must come back as it was.
    let hyper = Hyper { weight_decay: 0.0, ..Hyper::default() };
    let patterns = (0..=u16::MAX).flat_map(|high| {
        [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF].map(|low| u32::from(high) << 16 | low)
    });
    let p: Vec<f32> = patterns.map(f32::from_bits).collect();
    let zeros = vec![0.0; p.len()];
    let start = Twins::new(p.clone(), zeros.clone(), zeros.clone(), zeros);
    for isa in Isa::available() {
        let mut twins = start.clone();
        twins.step(isa, &Scalars::at(&hyper, 1, 1.0), Input::Bf16(&vec![0; p.len()]));
        twins.check(&isa);
        // The sum with a zero turns -0 into +0 at most.
        assert!(twins.p.iter().zip(&p).all(|(new, old)| new == old || old.is_nan()));
        assert!(twins.lo == start.lo, "{isa}");
    }
}

#[test]
fn a_flushed_moment_still_carries_its_mark() {
    // 0x3F7F_8000 rounds up to even; no gradient; v is subnormal and flushed.
    let hyper = Hyper { weight_decay: 0.0, subnormals: Subnormals::Flush, ..Hyper::default() };
    let p = f32::from_bits(0x3F7F_8000);
    for isa in Isa::available() {
        let mut twins = Twins::new(vec![p; 40], vec![0.0; 40], vec![1e-39; 40], vec![0.0; 40]);
        twins.step(isa, &Scalars::at(&hyper, 9, 1.0), Input::Bf16(&[0; 40]));
        twins.check(&isa);
        assert!(twins.marked_v.iter().all(|v| v.to_bits() == 1 << 31), "{isa}");
    }
}

proptest! {
    #[test]
    fn any_length_and_cut_gives_the_same(seed in any::<u64>(), n in 0..200_usize, cut in 0..200_usize) {
        let k = Scalars::at(&Hyper::default(), 5, 1.0);
        let mut random = Random(seed | 1);
        let start = Twins::random(&mut random, n);
        let gradient = random.plane(n);
        let cut = cut.min(n);
        for isa in Isa::available() {
            let mut whole = start.clone();
            whole.step(isa, &k, Input::F32(&gradient));
            let mut parts = start.clone();
            for range in [0..cut, cut..n] {
                let planes = SplitPlanes {
                    lo: &mut parts.lo[range.clone()],
                    m: &mut parts.split_m[range.clone()],
                    v: &mut parts.marked_v[range.clone()],
                    vmax: None,
                    hi: &mut parts.hi[range.clone()],
                };
                update_split(isa, &k, planes, Input::F32(&gradient[range])).expect("equal lengths");
            }
            prop_assert_eq!(whole.split_bits(), parts.split_bits());
        }
    }
}

#[test]
fn slices_that_do_not_fit_are_refused_and_left_alone() {
    let k = Scalars::at(&Hyper::default(), 1, 1.0);
    let call = |lengths: [usize; 5], amsgrad: bool, vmax: bool| {
        let k = Scalars { amsgrad, ..k };
        let (mut lo, mut hi) = (vec![7_u16; lengths[0]], vec![0x3F80_u16; lengths[3]]);
        let (mut m, mut v, mut x) = (vec![1.0; lengths[1]], vec![1.0; lengths[2]], [1.0; 4]);
        let vmax = vmax.then_some(&mut x[..]);
        let planes = SplitPlanes { lo: &mut lo, m: &mut m, v: &mut v, vmax, hi: &mut hi };
        let result = update_split(Isa::Scalar, &k, planes, Input::F32(&vec![1.0; lengths[4]]));
        let untouched = lo.iter().all(|&lo| lo == 7)
            && hi.iter().all(|&hi| hi == 0x3F80)
            && [m, v, x.to_vec()].iter().flatten().all(|&value| value == 1.0);
        assert_eq!(result.is_err(), untouched);
        result
    };
    let length = |what, actual| Err(KernelError::Length { what, expected: 4, actual });
    assert_eq!(call([4; 5], false, false), Ok(()));
    assert_eq!(call([4, 3, 4, 4, 4], false, false), length("m", 3));
    assert_eq!(call([4, 4, 3, 4, 4], false, false), length("v", 3));
    assert_eq!(call([4, 4, 4, 5, 4], false, false), length("the weights", 5));
    assert_eq!(call([4, 4, 4, 4, 0], false, false), length("the gradient", 0));
    assert_eq!(call([4; 5], true, false), Err(KernelError::MissingMaximum));
    assert_eq!(call([4; 5], false, true), Err(KernelError::UnexpectedMaximum));
}
