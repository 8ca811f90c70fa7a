//! The hyper-parameters of a group, as Python hands them over.

use tensortier::optimizer::Hyper;
use tensortier::optimizer::hyper::Algorithm;

/// Hyper-parameters: decoupled, lr, beta1, beta2, eps, weight decay, amsgrad, maximize.
pub(crate) type Numbers = (bool, f64, f64, f64, f64, f64, bool, bool);

/// Returns them as the crates have them.
pub(crate) fn hyper(numbers: Numbers) -> Hyper {
    let (decoupled, lr, beta1, beta2, eps, weight_decay, amsgrad, maximize) = numbers;
    let algorithm = if decoupled { Algorithm::AdamW } else { Algorithm::Adam };
    let shared = Hyper::default();
    Hyper { algorithm, lr, beta1, beta2, eps, weight_decay, amsgrad, maximize, ..shared }
}

/// Returns them as Python has them.
pub(crate) fn numbers(hyper: &Hyper) -> Numbers {
    let decoupled = hyper.algorithm == Algorithm::AdamW;
    let Hyper { lr, beta1, beta2, eps, weight_decay, amsgrad, maximize, .. } = *hyper;
    (decoupled, lr, beta1, beta2, eps, weight_decay, amsgrad, maximize)
}
