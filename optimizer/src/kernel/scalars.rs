//! The per-step scalars that a kernel multiplies with: plain numbers, computed once on the host.
//!
//! They exist apart from the hyper-parameters so that every kernel (each instruction set of the CPU,
//! and a device) is handed the same 32-bit values and never derives one itself.

/// What happens to moments that fall below the smallest normal `f32`, 2^-126.
///
/// This is a property of the arithmetic, never of the processor's state: the kernels always run with
/// flush-to-zero off and, under [`Subnormals::Flush`], select zero explicitly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Subnormals {
    /// They are kept, as IEEE 754 and torch's defaults have it.
    #[default]
    Keep,
    /// `m` and `v` whose magnitude is below 2^-126 become `+0.0` after each update.
    ///
    /// Without a gradient `m` otherwise sticks at a few subnormal units for good, and subnormal
    /// operands slow many processors down severalfold.
    Flush,
}

/// How weight decay enters an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decay {
    /// There is none.
    None,
    /// The weights shrink by `dec` before the update (`AdamW`).
    Decoupled,
    /// `l2` times the weight joins the gradient (Adam).
    L2,
}

/// The numbers and choices of one update of one parameter, the same for all its elements.
///
/// [`Scalars::at`] computes them; the fields are public so that a kernel elsewhere (on a device) can
/// be handed the same values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scalars {
    /// Factor of the gradient: clipping and loss scale in one.
    pub s: f32,
    /// `1 - lr * weight_decay`, the factor of the weight under [`Decay::Decoupled`].
    pub dec: f32,
    /// `weight_decay`, the factor of the weight under [`Decay::L2`].
    pub l2: f32,
    /// `1 - beta1`.
    pub w1: f32,
    /// `beta2`.
    pub b2: f32,
    /// `1 - beta2`.
    pub w2: f32,
    /// `-lr / (1 - beta1^t)`, the signed step size.
    pub ss: f32,
    /// `sqrt(1 - beta2^t)`, the bias correction of the denominator.
    pub bs: f32,
    /// Term of the denominator.
    pub eps: f32,
    /// How weight decay enters.
    pub decay: Decay,
    /// Whether the denominator uses the running maximum of `v`.
    pub amsgrad: bool,
    /// Whether the objective is maximised: the gradient changes sign.
    pub maximize: bool,
    /// What happens to subnormal moments.
    pub subnormals: Subnormals,
}
