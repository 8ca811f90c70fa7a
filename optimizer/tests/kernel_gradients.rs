//! Sums over gradients: the norm's and the accumulators', the same bits on every instruction set and
//! those of plain arithmetic.

#[path = "common/values.rs"]
mod values;

use tensortier_optimizer::kernel::norm::{BLOCK, block_sum, sum_of};
use tensortier_optimizer::kernel::round::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use tensortier_optimizer::kernel::{Accumulator, Input, Isa, KernelError, accumulate, store};
use values::{Random, canonical};

/// The rule of the norm, written once more and otherwise: fused, by strides.
fn block_by_strides(values: &[f32]) -> f64 {
    let lane = |j: usize| {
        let own = values.iter().skip(j).step_by(16).map(|&x| f64::from(x));
        own.fold(0.0_f64, |sum, x| x.mul_add(x, sum))
    };
    fn pairwise(lanes: &[f64]) -> f64 {
        match lanes {
            [one] => *one,
            _ => {
                let (low, high) = lanes.split_at(lanes.len() / 2);
                let sums: Vec<f64> = low.iter().zip(high).map(|(a, b)| a + b).collect();
                pairwise(&sums)
            }
        }
    }
    pairwise(&(0..16).map(lane).collect::<Vec<_>>())
}

/// Finite values of very different sizes, subnormals among them.
fn finite(random: &mut Random, n: usize) -> Vec<f32> {
    let values = random.plane(n).into_iter();
    values.map(|x| if x.is_finite() { x } else { 1.5e-42 }).collect()
}

fn norm_of(sums: &[f64]) -> f64 {
    sum_of(sums).sqrt()
}

#[test]
fn a_block_is_summed_as_the_rule_says() {
    let mut random = Random(11);
    for n in (0..70).chain([1000, 4096, BLOCK - 17, BLOCK]) {
        let values = finite(&mut random, n);
        let bf16: Vec<u16> = values.iter().map(|&x| f32_to_bf16(x * 0.5)).collect();
        let f16: Vec<u16> = values.iter().map(|&x| f32_to_f16(x.clamp(-6e4, 6e4))).collect();
        let expected = [
            block_by_strides(&values),
            block_by_strides(&bf16.iter().map(|&x| bf16_to_f32(x)).collect::<Vec<_>>()),
            block_by_strides(&f16.iter().map(|&x| f16_to_f32(x)).collect::<Vec<_>>()),
        ];
        for isa in Isa::available() {
            let inputs = [Input::F32(&values), Input::Bf16(&bf16), Input::F16(&f16)];
            let sums = inputs.map(|input| block_sum(isa, input).expect("a block"));
            assert_eq!(sums.map(f64::to_bits), expected.map(f64::to_bits), "{isa}, {n} elements");
        }
    }
}

#[test]
fn neither_size_nor_smallness_is_lost() {
    for isa in Isa::available() {
        // 2^127, of which no sum is rounded.
        let large = f32::from_bits(0x7F00_0000);
        let sum = block_sum(isa, Input::F32(&[large; BLOCK])).expect("a block");
        assert_eq!(norm_of(&[sum; 4]), f64::from(large) * 512.0);
        let smallest = block_sum(isa, Input::F32(&[f32::from_bits(1); 4])).expect("a block");
        assert_eq!(norm_of(&[smallest]), f64::from(f32::from_bits(1)) * 2.0);
    }
    assert_eq!(norm_of(&[]), 0.0);
    assert_eq!(norm_of(&[9.0, 16.0]), 5.0);
}

#[test]
fn blocks_are_added_in_order() {
    // One after the other each small term is lost; in another order they would count.
    let mut sums = vec![1.0];
    sums.extend([f64::EPSILON / 2.0; 8]);
    assert_eq!(norm_of(&sums), 1.0);
    sums.reverse();
    assert!(norm_of(&sums) > 1.0);
}

#[test]
fn one_bad_element_anywhere_shows() {
    for isa in Isa::available() {
        for n in [1, 15, 16, 17, 40, 1000] {
            for at in (0..n).step_by(7).chain([n - 1]) {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut values = vec![1.0; n];
                    values[at] = bad;
                    let half: Vec<u16> = values.iter().map(|&x| f32_to_f16(x)).collect();
                    for input in [Input::F32(&values), Input::F16(&half)] {
                        let sum = block_sum(isa, input).expect("a block");
                        assert!(!sum.is_finite(), "{isa}: {bad} at {at} of {n}");
                        assert!(!norm_of(&[1.0, sum, 1.0]).is_finite());
                    }
                }
            }
        }
    }
}

#[test]
fn a_longer_block_is_refused() {
    let error = block_sum(Isa::Scalar, Input::F32(&vec![0.0; BLOCK + 1]));
    assert_eq!(error, Err(KernelError::Block { most: BLOCK, actual: BLOCK + 1 }));
}

/// A type that accumulators and gradients have: its name, how patterns are read and written.
type Kind = (&'static str, fn(u32) -> f32, fn(f32) -> u32);

const TYPES: [Kind; 3] = [
    ("bf16", |x| bf16_to_f32(x as u16), |x| u32::from(f32_to_bf16(x))),
    ("f16", |x| f16_to_f32(x as u16), |x| u32::from(f32_to_f16(x))),
    ("f32", f32::from_bits, canonical),
];

/// Elements of one type in memory.
struct Array(usize, Vec<u16>, Vec<f32>);

impl Array {
    fn new(kind: usize, patterns: &[u32]) -> Self {
        let half = patterns.iter().map(|&x| x as u16).collect();
        Array(kind, half, patterns.iter().map(|&x| f32::from_bits(x)).collect())
    }

    fn input(&self) -> Input<'_> {
        [Input::Bf16(&self.1), Input::F16(&self.1), Input::F32(&self.2)][self.0]
    }

    fn accumulator(&mut self) -> Accumulator<'_> {
        match self.0 {
            0 => Accumulator::Bf16(&mut self.1),
            1 => Accumulator::F16(&mut self.1),
            _ => Accumulator::F32(&mut self.2),
        }
    }

    fn patterns(&self) -> Vec<u32> {
        match self.0 {
            2 => self.2.iter().copied().map(canonical).collect(),
            _ => self.1.iter().copied().map(u32::from).collect(),
        }
    }
}

#[test]
fn accumulators_hold_each_sum_rounded_once() {
    let mut random = Random(5);
    for (into, (into_name, read, write)) in TYPES.iter().enumerate() {
        for (from, (from_name, read_from, _)) in TYPES.iter().enumerate() {
            for n in (0..70).chain([4099]) {
                // Any patterns, and patterns of like size, whose sums round in all ways.
                let mut pattern = |near: u32| {
                    let word = random.word();
                    if word & 3 == 0 {
                        (word >> 32) as u32
                    } else {
                        near | (word >> 40) as u32 & 0x1FF
                    }
                };
                let near = [0x3F80, 0x3C00, 0x3F80_0000];
                let a: Vec<u32> = (0..n).map(|_| pattern(near[into])).collect();
                let b: Vec<u32> = (0..n).map(|_| pattern(near[from])).collect();
                let mask = |kind: usize, x: u32| if kind == 2 { x } else { x & 0xFFFF };
                let sum =
                    |(&a, &b): (&u32, &u32)| write(read(mask(into, a)) + read_from(mask(from, b)));
                let sums: Vec<u32> = a.iter().zip(&b).map(sum).collect();
                let stored: Vec<u32> = b.iter().map(|&b| write(read_from(mask(from, b)))).collect();
                for isa in Isa::available() {
                    let what = format!("{isa}: {from_name} into {into_name}, {n}");
                    let (mut total, add) = (Array::new(into, &a), Array::new(from, &b));
                    accumulate(isa, total.accumulator(), add.input()).expect("equal lengths");
                    assert_eq!(total.patterns(), sums, "{what}, added");
                    store(isa, total.accumulator(), add.input()).expect("equal lengths");
                    assert_eq!(total.patterns(), stored, "{what}, stored");
                }
            }
        }
    }
}

#[test]
fn a_sum_that_does_not_fit_its_type_stands_still_in_16_bits_only() {
    for isa in Isa::available() {
        let (mut half, mut full) = ([0x4380_u16; 20], [256.0_f32; 20]);
        for _ in 0..100 {
            // 256 + 1 is a tie in bf16, and 256 is even.
            accumulate(isa, Accumulator::Bf16(&mut half), Input::F32(&[1.0; 20])).expect("20");
            accumulate(isa, Accumulator::F32(&mut full), Input::Bf16(&[0x3F80; 20])).expect("20");
        }
        assert_eq!((half, full), ([0x4380; 20], [356.0; 20]));
    }
}

#[test]
fn lengths_that_differ_are_refused() {
    let mut total = [1.0_f32; 4];
    let expected = Err(KernelError::Length { what: "the gradient", expected: 4, actual: 3 });
    let add = Input::Bf16(&[0; 3]);
    assert_eq!(accumulate(Isa::Scalar, Accumulator::F32(&mut total), add), expected);
    assert_eq!(store(Isa::Scalar, Accumulator::F32(&mut total), add), expected);
    assert_eq!(total, [1.0; 4]);
}
