//! Values that kernels are tried with, and the choices of an update.
#![allow(dead_code, unreachable_pub, reason = "each test includes this and uses a part")]

use tensortier_optimizer::hyper::{Algorithm, Hyper, Subnormals};

/// Bits of values at which arithmetic changes its behaviour, for f32.
pub const EDGES: [u32; 34] = [
    0x0000_0000,
    0x8000_0000, // zeros
    0x0000_0001,
    0x8000_0001,
    0x0000_0003,
    0x0000_FFFF,
    0x8001_0000, // subnormals
    0x007F_FFFF,
    0x807F_FFFF,
    0x0080_0000,
    0x8080_0000,
    0x0080_0001, // around the smallest normal
    0x3F80_0000,
    0xBF80_0000,
    0x3F7F_FFFF,
    0x3F80_0001,
    0x4B80_0000, // around one, 2^24
    0x477F_E000,
    0x477F_EFFF,
    0x477F_F000,
    0xC77F_F000, // around the largest fp16
    0x3880_0000,
    0x387F_FFFF,
    0x3300_0000,
    0x3300_0001,
    0x3380_0000, // around the smallest fp16
    0x7F7F_FFFF,
    0xFF7F_FFFF,
    0x7F7F_7FFF, // largest, and largest that bf16 does not round up
    0x7F80_0000,
    0xFF80_0000, // infinities
    0x7FC0_0000,
    0xFF80_0001,
    0x1E3C_E508, // NaNs; 1e-20, whose square is subnormal
];

/// A small deterministic generator (xorshift64*).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Any pattern, an edge, or (half the time) an ordinary value.
    pub fn f32(&mut self) -> f32 {
        let word = self.word();
        let bits = (word >> 32) as u32;
        f32::from_bits(match word & 7 {
            0 | 1 => EDGES[(word >> 8) as usize % EDGES.len()],
            2 | 3 => bits,
            _ => (bits & 0x807F_FFFF) | ((100 + (bits >> 24) % 40) << 23),
        })
    }

    pub fn plane(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.f32()).collect()
    }
}

/// Every combination of the choices that an update has.
pub fn variants() -> impl Iterator<Item = Hyper> {
    (0..128_u32).map(|choice| Hyper {
        algorithm: if choice & 1 == 0 { Algorithm::AdamW } else { Algorithm::Adam },
        amsgrad: choice & 2 != 0,
        maximize: choice & 4 != 0,
        weight_decay: if choice & 8 == 0 { 0.01 } else { 0.0 },
        subnormals: if choice & 16 == 0 { Subnormals::Keep } else { Subnormals::Flush },
        beta1: [0.9, 0.4, 0.0, 0.5][(choice >> 5) as usize],
        ..Hyper::default()
    })
}

/// The bits of a number, every NaN being the same one.
pub fn canonical(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

/// The bits of numbers, every NaN being the same one.
pub fn canonical_all(values: &[f32]) -> Vec<u32> {
    values.iter().copied().map(canonical).collect()
}
