//! Tests: whatever floating-point environment a caller is in, a kernel computes the same bits and puts
//! it back.

use super::fpenv::{Control, DEFAULT, read, write};
use super::norm::{block_sum, sum_of};
use super::{
    Accumulator, Input, Isa, Output, Planes, Scalars, SplitPlanes, accumulate, update, update_split,
};
use crate::hyper::Hyper;

/// Flush-to-zero, denormals-are-zero, and rounding toward zero besides.
const HOSTILE: [Control; 4] =
    [DEFAULT | 0x8000, DEFAULT | 0x0040, DEFAULT | 0x8040, DEFAULT | 0x6000];

/// Bits of everything one update leaves, computed in environment `control`.
///
/// Inputs and results are integers, so that only the kernel's own arithmetic is under test.
fn update_under(control: Control, isa: Isa, k: &Scalars) -> (Vec<u32>, Control) {
    let mut p: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0002_3456)).collect();
    let mut m: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0003_1111)).collect();
    let mut v: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0000_7777)).collect();
    let g: Vec<u16> = (0..50_u16).map(|i| i * 5).collect();
    let mut w = vec![0_u16; 50];
    let before = read();
    write(control);
    let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax: None };
    let result = update(isa, k, planes, Input::Bf16(&g), Output::Bf16(&mut w));
    let after = read();
    write(before);
    assert_eq!(result, Ok(()));
    let planes = [p, m, v].into_iter().flatten().map(f32::to_bits);
    (planes.chain(w.into_iter().map(u32::from)).collect(), after)
}

#[test]
fn a_kernel_ignores_the_callers_environment_and_restores_it() {
    let k = Scalars::at(&Hyper::default(), 3, 1.0);
    for isa in Isa::available() {
        let (expected, _) = update_under(DEFAULT, isa, &k);
        for control in HOSTILE {
            let (bits, after) = update_under(control, isa, &k);
            assert_eq!(bits, expected, "{isa} under {control:#x}");
            assert_eq!(after, control, "{isa} must restore the environment");
        }
    }
}

/// Bits that the other kernels leave, computed in environment `control`.
fn others_under(control: Control, isa: Isa, k: &Scalars) -> (Vec<u64>, Control) {
    let mut lo: Vec<u16> = (0..50_u16).map(|i| i * 1001).collect();
    let mut hi: Vec<u16> = (0..50_u16).map(|i| i * 3).collect();
    let mut m: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0003_1111)).collect();
    let mut v: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0000_7777)).collect();
    let mut sum: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0002_2222)).collect();
    let g: Vec<u16> = (0..50_u16).map(|i| i * 5).collect();
    let grad = Input::Bf16(&g);
    let before = read();
    write(control);
    let squares = block_sum(isa, grad);
    let norm = sum_of(&[1.0, f64::EPSILON * 0.75, 0.1]);
    let added = accumulate(isa, Accumulator::F32(&mut sum), grad);
    let planes = SplitPlanes { lo: &mut lo, m: &mut m, v: &mut v, vmax: None, hi: &mut hi };
    let updated = update_split(isa, k, planes, grad);
    let after = read();
    write(before);
    assert_eq!((added, updated), (Ok(()), Ok(())));
    let mut bits = vec![squares.map_or(0, f64::to_bits), norm.to_bits()];
    bits.extend([sum, m, v].iter().flatten().map(|x| u64::from(x.to_bits())));
    bits.extend(lo.iter().chain(&hi).copied().map(u64::from));
    (bits, after)
}

#[test]
fn the_other_kernels_ignore_it_too() {
    let k = Scalars::at(&Hyper::default(), 3, 1.0);
    for isa in Isa::available() {
        let (expected, _) = others_under(DEFAULT, isa, &k);
        assert_ne!(expected[0], 0, "squares of subnormals count");
        for control in HOSTILE {
            let (bits, after) = others_under(control, isa, &k);
            assert_eq!(bits, expected, "{isa} under {control:#x}");
            assert_eq!(after, control, "{isa} must restore the environment");
        }
    }
}

#[test]
fn the_hostile_environment_is_hostile() {
    // Else the tests beside this one would prove nothing.
    let before = read();
    write(HOSTILE[2]);
    let tiny = std::hint::black_box(f32::from_bits(0x0001_0000));
    let product = std::hint::black_box(tiny * std::hint::black_box(2.0));
    write(before);
    assert_eq!(product.to_bits(), 0);
}

#[test]
fn the_host_scalars_ignore_it_too() {
    let hyper = Hyper { eps: 1e-42, lr: 3e-40, ..Hyper::default() };
    let expected = Scalars::at(&hyper, 7, 1e-41);
    assert!(expected.eps.is_subnormal() && expected.s.is_subnormal());
    for control in HOSTILE {
        let before = read();
        write(control);
        let k = Scalars::at(&hyper, 7, 1e-41);
        let after = read();
        write(before);
        assert_eq!(k, expected);
        assert_eq!(after, control);
    }
}
