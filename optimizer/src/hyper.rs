//! Hyper-parameters of a parameter group, and the step's scalars that follow from them.
//!
//! All of it is computed in `f64` and each scalar is rounded once to `f32`, in the order that torch's
//! Python and C++ sides share, so that the scalars agree with torch's to the last bit. Powers of the
//! betas come from binary exponentiation in double-double arithmetic: unlike the C library's `pow`
//! that is the same on every machine, and it is correctly rounded in practice.

use std::hint::black_box;

use crate::kernel::fpenv::FpEnv;
pub use crate::kernel::{Decay, Scalars, Subnormals};

/// Which of the two forms of weight decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// Weight decay joins the gradient (L2), as in `torch.optim.Adam`.
    Adam,
    /// Weight decay shrinks the weights, as in `torch.optim.AdamW`.
    #[default]
    AdamW,
}

/// Hyper-parameters of one group; the defaults are those of `torch.optim.AdamW`.
///
/// # Examples
/// ```
/// use tensortier_optimizer::hyper::Hyper;
///
/// let hyper = Hyper { lr: 3e-4, weight_decay: 0.1, ..Hyper::default() };
/// assert!(hyper.validate().is_ok());
/// let error = Hyper { beta2: 1.0, ..hyper }.validate().unwrap_err();
/// assert_eq!(error.to_string(), "beta2 is 1, but must be at least 0 and below 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hyper {
    /// The form of weight decay.
    pub algorithm: Algorithm,
    /// Learning rate; may change between steps.
    pub lr: f64,
    /// Decay rate of the first moment, in [0, 1).
    pub beta1: f64,
    /// Decay rate of the second moment, in [0, 1).
    pub beta2: f64,
    /// Term of the denominator, against division by zero.
    pub eps: f64,
    /// Weight decay; 0 is none.
    pub weight_decay: f64,
    /// Whether the denominator uses the maximum of all second moments so far.
    pub amsgrad: bool,
    /// Whether the objective is maximised instead of minimised.
    pub maximize: bool,
    /// What happens to subnormal moments.
    pub subnormals: Subnormals,
}

impl Default for Hyper {
    fn default() -> Self {
        Hyper {
            algorithm: Algorithm::AdamW,
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 1e-2,
            amsgrad: false,
            maximize: false,
            subnormals: Subnormals::Keep,
        }
    }
}

/// A hyper-parameter out of its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} is {value}, but must be {range}")]
pub struct InvalidHyper {
    /// Name of the field.
    pub field: &'static str,
    /// Its value.
    pub value: f64,
    /// The values allowed, in words.
    pub range: &'static str,
}

impl Hyper {
    /// Whether every number is one that the update is defined for.
    ///
    /// # Errors
    /// [`InvalidHyper`] for the first that is not: `lr`, `eps` and `weight_decay` must be finite and
    /// not negative, `beta1` and `beta2` in [0, 1).
    pub fn validate(&self) -> Result<(), InvalidHyper> {
        const SIZE: &str = "finite and at least 0";
        const RATE: &str = "at least 0 and below 1";
        let size = |value: f64| value.is_finite() && value >= 0.0;
        let rate = |value: f64| (0.0..1.0).contains(&value);
        for (field, value, valid, range) in [
            ("lr", self.lr, size(self.lr), SIZE),
            ("beta1", self.beta1, rate(self.beta1), RATE),
            ("beta2", self.beta2, rate(self.beta2), RATE),
            ("eps", self.eps, size(self.eps), SIZE),
            ("weight_decay", self.weight_decay, size(self.weight_decay), SIZE),
        ] {
            if !valid {
                return Err(InvalidHyper { field, value, range });
            }
        }
        Ok(())
    }
}

impl Scalars {
    /// The scalars of a parameter's `t`-th update, counted from 1, with the gradient times
    /// `grad_scale` (clip factor and inverse loss scale in one; 1 if neither is used).
    ///
    /// The caller's floating-point environment has no influence. Meaningful for what
    /// [`Hyper::validate`] accepts; for anything else, and for `t` = 0, the formulas give
    /// infinities or NaN.
    #[must_use]
    pub fn at(hyper: &Hyper, t: u64, grad_scale: f64) -> Scalars {
        // Out of sight of the optimiser, which might move arithmetic out of the environment.
        let (hyper, t, grad_scale) = black_box((*hyper, t, grad_scale));
        let _environment = FpEnv::enter();
        black_box(compute(black_box(&hyper), black_box(t), black_box(grad_scale)))
    }
}

#[inline(never)]
fn compute(hyper: &Hyper, t: u64, grad_scale: f64) -> Scalars {
    let &Hyper { lr, beta1, beta2, weight_decay, .. } = hyper;
    let decay = match hyper.algorithm {
        Algorithm::AdamW => Decay::Decoupled,
        Algorithm::Adam if weight_decay == 0.0 => Decay::None,
        Algorithm::Adam => Decay::L2,
    };
    Scalars {
        s: grad_scale as f32,
        dec: (1.0 - lr * weight_decay) as f32,
        l2: weight_decay as f32,
        w1: (1.0 - beta1) as f32,
        b2: beta2 as f32,
        w2: (1.0 - beta2) as f32,
        ss: (-(lr / (1.0 - power(beta1, t)))) as f32,
        bs: (1.0 - power(beta2, t)).sqrt() as f32,
        eps: hyper.eps as f32,
        decay,
        amsgrad: hyper.amsgrad,
        maximize: hyper.maximize,
        subnormals: hyper.subnormals,
    }
}

/// `base` to the power `t`, rounded from some hundred bits.
fn power(base: f64, mut t: u64) -> f64 {
    let mut square = DoubleDouble { high: base, low: 0.0 };
    let mut result = DoubleDouble { high: 1.0, low: 0.0 };
    while t > 0 {
        if t & 1 == 1 {
            result = result.times(square);
        }
        square = square.times(square);
        t >>= 1;
    }
    result.high
}

/// The unevaluated sum of two numbers, `high` being the sum rounded (Dekker, 1971).
#[derive(Clone, Copy)]
struct DoubleDouble {
    high: f64,
    low: f64,
}

impl DoubleDouble {
    /// The product, with a relative error of about 2^-103.
    fn times(self, other: Self) -> Self {
        let product = self.high * other.high;
        let error = self.high.mul_add(other.high, -product);
        let error = error + (self.high * other.low + self.low * other.high);
        let high = product + error;
        DoubleDouble { high, low: error - (high - product) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of a base, an exponent, and bits of the correctly rounded power (decimal arithmetic with
    /// 120 digits).
    const POWERS: &[(u64, u64, u64)] = &[
        (0x3FECCCCCCCCCCCCD, 1, 0x3FECCCCCCCCCCCCD),
        (0x3FECCCCCCCCCCCCD, 2, 0x3FE9EB851EB851EC),
        (0x3FECCCCCCCCCCCCD, 7, 0x3FDE9C6A99D1CDBF),
        (0x3FECCCCCCCCCCCCD, 10, 0x3FD650BF60432FD9),
        (0x3FECCCCCCCCCCCCD, 100, 0x3EFBDA056ED49410),
        (0x3FECCCCCCCCCCCCD, 1000, 0x366FEE7413DAC341),
        (0x3FEFF7CED916872B, 2, 0x3FEFEF9FCB0C026D),
        (0x3FEFF7CED916872B, 3, 0x3FEFE772D5570166),
        (0x3FEFF7CED916872B, 10, 0x3FEFAE7299C256E3),
        (0x3FEFF7CED916872B, 100, 0x3FECF40EA930FDF5),
        (0x3FEFF7CED916872B, 1000, 0x3FD788526411ED72),
        (0x3FEFF7CED916872B, 12345, 0x3ED22391FB94567E),
        (0x3FEE666666666666, 10, 0x3FE328DA5E9DF383),
        (0x3FEE666666666666, 1000, 0x3B4FFCB2F699313D),
        (0x3FEE666666666666, 12345, 0x06D60D4051FD7AD2),
        (0x3FD999999999999A, 7, 0x3F5AD7F29ABCAF4B),
        (0x3FD999999999999A, 100, 0x37ABFF2EE48E055C),
        (0x3FE0000000000000, 100, 0x39B0000000000000),
        (0x3FEFFFEB074A771D, 1000, 0x3FEFAE7CE29800EC),
        (0x3FEFFFEB074A771D, 12345, 0x3FEC489FDB2DF369),
        (0x3FEFFFEB074A771D, 1000000, 0x3F07CD2BB6AD2E83),
        (0x3FEFFFFFCA501ACB, 12345, 0x3FEFF5E4A9C0490F),
        (0x3FEFFFFFCA501ACB, 1000000, 0x3FECF46D976DEA40),
        (0x3FEFFFFFCA501ACB, 1000000007, 0x36EA8C15419BFD1E),
        (0x3FEFFFFFFFFFFFFF, 1, 0x3FEFFFFFFFFFFFFF),
        (0x3FEFFFFFFFFFFFFF, 1000, 0x3FEFFFFFFFFFFC18),
        (0x3FEFFFFFFFFFFFFF, 1000000, 0x3FEFFFFFFFF0BDC0),
        (0x3FEFFFFFFFFFFFFF, 1000000007, 0x3FEFFFFFC4653631),
        (0x3F50624DD2F1A9FC, 10, 0x39B4484BFEEBC2A1),
        (0x3FEF5C28F5C28F5C, 1000, 0x3E1CE9C4CA6BE0C3),
        (0x3FEF5C28F5C28F5C, 12345, 0x29723B44CE0A847F),
    ];

    #[test]
    fn powers_are_correctly_rounded() {
        for &(base, t, expected) in POWERS {
            let actual = power(f64::from_bits(base), t);
            assert_eq!(actual.to_bits(), expected, "{}^{t}", f64::from_bits(base));
        }
    }

    #[test]
    fn extreme_powers_are_plain_numbers() {
        assert_eq!(power(0.0, 1), 0.0);
        assert_eq!(power(0.9, 0), 1.0);
        assert_eq!(power(0.9, u64::MAX), 0.0);
        assert_eq!(power(0.5, 1074), f64::from_bits(1));
        assert!(power(1.0 - f64::EPSILON, u64::MAX) < 1e-300);
    }

    #[test]
    fn scalars_are_rounded_once_from_double() {
        let k = Scalars::at(&Hyper::default(), 1, 0.5);
        assert_eq!((k.s, k.dec, k.eps), (0.5, (1.0_f64 - 1e-5) as f32, 1e-8_f64 as f32));
        // 1 - 0.9 in f32 would be 0.100000024; from f64 it is the f32 nearest to 0.1.
        assert_eq!((k.w1, k.w2), (0.1, 0.001));
        assert_eq!((k.ss, k.bs), (-0.01, 0.001_f64.sqrt() as f32));
        assert_eq!(k.decay, Decay::Decoupled);
    }

    #[test]
    fn adam_without_weight_decay_has_none() {
        let adam = Hyper { algorithm: Algorithm::Adam, ..Hyper::default() };
        assert_eq!(Scalars::at(&adam, 1, 1.0).decay, Decay::L2);
        let none = Hyper { weight_decay: 0.0, ..adam };
        assert_eq!(Scalars::at(&none, 1, 1.0).decay, Decay::None);
        let decoupled = Hyper { weight_decay: 0.0, ..Hyper::default() };
        assert_eq!(Scalars::at(&decoupled, 1, 1.0).dec, 1.0);
    }

    #[test]
    fn each_field_is_validated() {
        let good = Hyper::default();
        assert_eq!(good.validate(), Ok(()));
        assert_eq!(Hyper { lr: 0.0, beta1: 0.0, eps: 0.0, ..good }.validate(), Ok(()));
        for (bad, field) in [
            (Hyper { lr: -1e-9, ..good }, "lr"),
            (Hyper { lr: f64::NAN, ..good }, "lr"),
            (Hyper { lr: f64::INFINITY, ..good }, "lr"),
            (Hyper { beta1: 1.0, ..good }, "beta1"),
            (Hyper { beta1: -0.1, ..good }, "beta1"),
            (Hyper { beta2: f64::NAN, ..good }, "beta2"),
            (Hyper { beta2: 1.5, ..good }, "beta2"),
            (Hyper { eps: -1e-8, ..good }, "eps"),
            (Hyper { weight_decay: -0.1, ..good }, "weight_decay"),
        ] {
            assert_eq!(bad.validate().unwrap_err().field, field);
        }
    }
}
