//! Tensors with contents as they occur, for what depends on them.

use std::f64::consts::TAU;

/// Numbers that look random, the same in every run.
#[derive(Debug)]
pub struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Random(1)
    }
}

impl Random {
    /// Returns one above 0 and at most 1, all as likely.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns one of the standard normal distribution.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos()
    }
}

/// Returns a tensor of `bytes` of fp32, its elements made one by one of their numbers.
pub fn fp32(bytes: usize, mut element: impl FnMut(&mut Random, usize) -> f64) -> Vec<u8> {
    let mut random = Random::default();
    (0..bytes / 4).flat_map(|i| (element(&mut random, i) as f32).to_le_bytes()).collect()
}

/// Returns Adam's first moments of gradients that are normal.
pub fn first_moments(bytes: usize) -> Vec<u8> {
    fp32(bytes, |random, _| random.normal() * 1e-3)
}

/// Returns Adam's second moments of such gradients, each of one step.
pub fn second_moments(bytes: usize) -> Vec<u8> {
    fp32(bytes, |random, _| (random.normal() * 1e-3).powi(2))
}

/// Returns moments of an embedding of which one row in eight, of 1024 elements, was ever used.
pub fn embedding_moments(bytes: usize) -> Vec<u8> {
    fp32(bytes, |random, i| if i / 1024 % 8 == 0 { random.normal() * 1e-3 } else { 0.0 })
}

/// Returns token ids, 64 bits wide, of a vocabulary of 50,000 of which low ones occur more often.
pub fn token_ids(bytes: usize) -> Vec<u8> {
    let mut random = Random::default();
    let id = |_| (random.uniform().powi(3) * 49_999.0) as u64;
    (0..bytes / 8).map(id).flat_map(u64::to_le_bytes).collect()
}
