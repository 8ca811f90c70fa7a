//! What a step is told beside its gradients: clipping, loss scale, and what to do with gradients
//! that are not finite.

use crate::error::{Error, Result};

/// The settings of one step. The default applies the gradients as they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOptions {
    /// Clips the gradients of all parameters together to this norm, as
    /// `torch.nn.utils.clip_grad_norm_` does.
    pub max_norm: Option<f64>,
    /// What the loss was multiplied with; the gradients are divided by it.
    pub loss_scale: f64,
    /// What happens when a gradient is infinite or not a number.
    pub non_finite: NonFinite,
    /// The norm over all ranks, where this one holds a part of the gradients.
    pub norm: Option<Norm>,
    /// Whether a parameter without a gradient is refused instead of skipped.
    pub require_all: bool,
}

/// What happens when a gradient is infinite or not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NonFinite {
    /// It is applied, as torch's optimizers do; nobody looks.
    #[default]
    Apply,
    /// The step is skipped: nothing changes, it does not count, and the report says so.
    Skip,
    /// The step is refused with [`Error::NonFinite`]; nothing changes.
    Raise,
}

/// The norm of gradients, still multiplied by the loss scale.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// The sum of the squares of their elements.
    pub sum_of_squares: f64,
    /// Whether all of them are finite.
    pub finite: bool,
}

/// By bits: a step whose norm is not a number is taken up with the same one.
impl PartialEq for Norm {
    fn eq(&self, other: &Self) -> bool {
        self.sum_of_squares.to_bits() == other.sum_of_squares.to_bits()
            && self.finite == other.finite
    }
}

impl Default for StepOptions {
    fn default() -> Self {
        StepOptions {
            max_norm: None,
            loss_scale: 1.0,
            non_finite: NonFinite::Apply,
            norm: None,
            require_all: false,
        }
    }
}

impl Norm {
    /// Returns the norm of gradients that were not multiplied by a loss scale.
    pub fn value(&self) -> f64 {
        self.sum_of_squares.sqrt()
    }
}

impl From<f64> for Norm {
    /// Takes a sum of squares; it is finite if and only if all elements are.
    fn from(sum_of_squares: f64) -> Self {
        Norm { sum_of_squares, finite: sum_of_squares.is_finite() }
    }
}

impl StepOptions {
    /// Refuses what no step can be made with.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: String, why: &str| Err(Error::Config { what, why: why.to_owned() });
        // What the kernels multiply with: as an fp32 zero it would drop all gradients silently.
        let factor = (1.0 / self.loss_scale) as f32;
        if !(factor > 0.0 && factor.is_finite()) {
            return refuse(
                format!("a loss scale of {:e}", self.loss_scale),
                "must be above 0, and its inverse a number that fp32 holds",
            );
        }
        match self.max_norm {
            Some(norm) if norm.is_nan() || norm < 0.0 => {
                refuse(format!("a maximal norm of {norm}"), "must be at least 0")
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the step has to look at all gradients before it begins.
    pub(crate) fn needs_norm(&self) -> bool {
        self.max_norm.is_some() || self.non_finite != NonFinite::Apply
    }

    /// Returns the factor of all gradients: the clip factor over the loss scale. `norm` is there if
    /// the step is clipped.
    pub(crate) fn gradient_factor(&self, norm: Option<&Norm>) -> f64 {
        let clip = match (self.max_norm, norm) {
            (Some(max), Some(norm)) => {
                let factor = max / (norm.value() / self.loss_scale + 1e-6);
                // As torch's clamp: a norm that is not a number spoils all gradients alike.
                if factor < 1.0 || factor.is_nan() { factor } else { 1.0 }
            }
            _ => 1.0,
        };
        clip / self.loss_scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_clipped_by_their_unscaled_norm() {
        let options =
            StepOptions { max_norm: Some(1.0), loss_scale: 8.0, ..StepOptions::default() };
        let norm = Norm::from(32.0 * 32.0);
        assert_eq!(options.gradient_factor(Some(&norm)), (1.0 / (4.0 + 1e-6)) / 8.0);
        assert_eq!(options.gradient_factor(Some(&Norm::from(0.0))), 1.0 / 8.0);
        assert_eq!(StepOptions::default().gradient_factor(None), 1.0);
        assert!(options.gradient_factor(Some(&Norm::from(f64::NAN))).is_nan());
        assert_eq!(options.gradient_factor(Some(&Norm::from(f64::INFINITY))), 0.0);
    }

    #[test]
    fn a_norm_that_is_not_a_number_equals_itself() {
        let with = |sum| StepOptions { norm: Some(Norm::from(sum)), ..StepOptions::default() };
        assert_eq!(with(f64::NAN), with(f64::NAN));
        assert_ne!(with(1.0), with(2.0));
    }

    #[test]
    fn senseless_settings_are_refused() {
        let with =
            |max_norm, loss_scale| StepOptions { max_norm, loss_scale, ..StepOptions::default() };
        assert!(with(None, 0.0).check().is_err());
        assert!(with(None, f64::INFINITY).check().is_err());
        assert!(with(Some(f64::NAN), 1.0).check().is_err());
        assert!(with(Some(-1.0), 1.0).check().is_err());
        assert!(with(Some(0.0), 1.0).check().is_ok());
        assert!(with(Some(f64::INFINITY), 2.0).check().is_ok());
    }
}
