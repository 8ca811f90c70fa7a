//! The arrays of one thread, each on a cache line of its own.

use std::ops::Range;

/// All arrays that any row needs, of as many elements each.
pub(crate) struct Work {
    p: Aligned<f32>,
    m: Aligned<f32>,
    v: Aligned<f32>,
    lo: Aligned<u16>,
    weights: Aligned<u16>,
    grad: Aligned<u16>,
    grad32: Aligned<f32>,
}

/// The same part of all arrays.
pub(crate) struct Part<'a> {
    pub(crate) p: &'a mut [f32],
    pub(crate) m: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
    pub(crate) lo: &'a mut [u16],
    pub(crate) weights: &'a mut [u16],
    pub(crate) grad: &'a [u16],
    pub(crate) grad32: &'a [f32],
}

/// Elements from a 64-byte border on.
pub(crate) struct Aligned<T> {
    all: Vec<T>,
    range: Range<usize>,
}

impl<T: Copy> Aligned<T> {
    fn new(n: usize, value: impl Fn(usize) -> T) -> Self {
        let spare = 64 / size_of::<T>();
        let mut all: Vec<T> = Vec::with_capacity(n + spare);
        let skip = all.as_ptr().align_offset(64).min(spare);
        all.extend((0..n + skip).map(|i| value(i.saturating_sub(skip))));
        Aligned { all, range: skip..skip + n }
    }

    fn part(&mut self, range: Range<usize>) -> &mut [T] {
        &mut self.all[self.range.clone()][range]
    }
}

impl Work {
    /// Arrays of `n` elements; the fp32 gradient has `n32`.
    pub(crate) fn new(n: usize, n32: usize) -> Self {
        Work {
            p: Aligned::new(n, |i| (i % 1000) as f32 * 1e-3 - 0.5),
            m: Aligned::new(n, |_| 1e-3),
            v: Aligned::new(n, |_| 1e-4),
            lo: Aligned::new(n, |i| i as u16),
            // bf16 patterns from 2^-7 to 1 of either sign: nothing subnormal, nothing the same.
            weights: Aligned::new(n, pattern),
            grad: Aligned::new(n, pattern),
            grad32: Aligned::new(n32, |i| (i % 100) as f32 * 1e-3),
        }
    }

    pub(crate) fn part(&mut self, range: Range<usize>) -> Part<'_> {
        let has32 = self.grad32.range.len() >= range.end;
        Part {
            p: self.p.part(range.clone()),
            m: self.m.part(range.clone()),
            v: self.v.part(range.clone()),
            lo: self.lo.part(range.clone()),
            weights: self.weights.part(range.clone()),
            grad: self.grad.part(range.clone()),
            grad32: self.grad32.part(if has32 { range } else { 0..0 }),
        }
    }
}

fn pattern(i: usize) -> u16 {
    (i as u16 & 0x8000) | 0x3C00 | (i as u16 & 0x037F)
}
