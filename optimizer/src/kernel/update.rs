//! The entry to the kernels: checks what it is given, sets the floating-point environment, and picks
//! the compiled loop for the types and the instruction set.

use super::fpenv::FpEnv;
use super::round::{Absent, Bf16, F16, F32, Narrow, Widen};
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Isa, KernelError, Scalars, reference};

/// The state planes of one contiguous run of one parameter; all of one length.
#[derive(Debug)]
pub struct Planes<'a> {
    /// Master weights.
    pub p: &'a mut [f32],
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments.
    pub v: &'a mut [f32],
    /// Running maxima of `v`: there if and only if the scalars say amsgrad.
    pub vmax: Option<&'a mut [f32]>,
}

/// Elements to read: a gradient, or weights to start from. 16-bit elements are bit patterns.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Input<'a> {
    /// bf16 patterns.
    Bf16(&'a [u16]),
    /// fp16 patterns.
    F16(&'a [u16]),
    /// fp32.
    F32(&'a [f32]),
}

/// Where the updated weights go besides the master plane. 16-bit elements are bit patterns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Output<'a> {
    /// Nowhere: the master plane is the weights.
    None,
    /// bf16 patterns, rounded to nearest even.
    Bf16(&'a mut [u16]),
    /// fp16 patterns, rounded to nearest even.
    F16(&'a mut [u16]),
    /// A copy of the master plane.
    F32(&'a mut [f32]),
}

impl Input<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Input::Bf16(raw) | Input::F16(raw) => raw.len(),
            Input::F32(raw) => raw.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Updates one run of one parameter: `planes` and `out` from `grad`, by the scalars `k`.
///
/// The result is the same bits for every `isa`, and however a parameter is cut into runs. Allocates
/// nothing; bound by memory bandwidth outside the caches. The thread's floating-point environment is
/// set to IEEE 754's defaults meanwhile and restored after. NaN elements take part as any others;
/// whether the gradient is finite is the caller's to decide first.
///
/// # Errors
/// [`KernelError::Length`] if the slices differ in length, [`KernelError::MissingMaximum`] or
/// [`KernelError::UnexpectedMaximum`] if `planes.vmax` does not fit `k.amsgrad`, and
/// [`KernelError::UnavailableIsa`]. Nothing is changed then.
///
/// # Examples
/// ```
/// use tensortier_optimizer::hyper::Hyper;
/// use tensortier_optimizer::kernel::{self, Input, Isa, Output, Planes, Scalars};
///
/// let (mut p, mut m, mut v) = ([1.0_f32; 3], [0.0; 3], [0.0; 3]);
/// let k = Scalars::at(&Hyper::default(), 1, 1.0);
/// let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax: None };
/// kernel::update(Isa::detect()?, &k, planes, Input::F32(&[0.5, -0.5, 0.0]), Output::None)?;
/// assert!(p[0] < p[2] && p[2] < p[1]);
/// # Ok::<(), kernel::KernelError>(())
/// ```
pub fn update(
    isa: Isa,
    k: &Scalars,
    planes: Planes<'_>,
    grad: Input<'_>,
    out: Output<'_>,
) -> Result<(), KernelError> {
    let n = planes.p.len();
    check("m", n, planes.m.len())?;
    check("v", n, planes.v.len())?;
    check("the gradient", n, grad.len())?;
    match &out {
        Output::None => {}
        Output::Bf16(raw) | Output::F16(raw) => check("the weight output", n, raw.len())?,
        Output::F32(raw) => check("the weight output", n, raw.len())?,
    }
    let vmax = match (planes.vmax, k.amsgrad) {
        (Some(vmax), true) => {
            check("vmax", n, vmax.len())?;
            vmax
        }
        (None, false) => &mut [],
        (None, true) => return Err(KernelError::MissingMaximum),
        (Some(_), false) => return Err(KernelError::UnexpectedMaximum),
    };
    let slices = Slices {
        p: planes.p,
        m: planes.m,
        v: planes.v,
        vmax,
    };
    let call = Call { isa, k, slices };
    if call.by_input(grad, out) {
        Ok(())
    } else {
        Err(KernelError::UnavailableIsa { isa })
    }
}

/// Fills `master` with the values of `from`, exactly: the start of a master plane.
///
/// # Errors
/// [`KernelError::Length`] if the lengths differ. Nothing is changed then.
pub fn widen(from: Input<'_>, master: &mut [f32]) -> Result<(), KernelError> {
    check("the source", master.len(), from.len())?;
    match from {
        Input::Bf16(raw) => widen_all::<Bf16>(raw, master),
        Input::F16(raw) => widen_all::<F16>(raw, master),
        Input::F32(raw) => widen_all::<F32>(raw, master),
    }
    Ok(())
}

fn widen_all<I: Widen>(from: &[I::Raw], to: &mut [f32]) {
    for (to, &raw) in to.iter_mut().zip(from) {
        *to = I::widen(raw);
    }
}

fn check(what: &'static str, expected: usize, actual: usize) -> Result<(), KernelError> {
    if actual == expected {
        Ok(())
    } else {
        Err(KernelError::Length {
            what,
            expected,
            actual,
        })
    }
}

/// The planes after the checks: equal lengths, `vmax` empty without amsgrad.
pub(super) struct Slices<'a> {
    pub(super) p: &'a mut [f32],
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) vmax: &'a mut [f32],
}

/// A checked call on its way to the loop compiled for it; each method settles one type parameter.
struct Call<'a> {
    isa: Isa,
    k: &'a Scalars,
    slices: Slices<'a>,
}

impl Call<'_> {
    fn by_input(self, grad: Input<'_>, out: Output<'_>) -> bool {
        match grad {
            Input::Bf16(raw) => self.by_output::<Bf16>(raw, out),
            Input::F16(raw) => self.by_output::<F16>(raw, out),
            Input::F32(raw) => self.by_output::<F32>(raw, out),
        }
    }

    fn by_output<I: Widen>(self, grad: &[I::Raw], out: Output<'_>) -> bool {
        match out {
            Output::None => self.by_maximum::<I, Absent>(grad, &mut []),
            Output::Bf16(raw) => self.by_maximum::<I, Bf16>(grad, raw),
            Output::F16(raw) => self.by_maximum::<I, F16>(grad, raw),
            Output::F32(raw) => self.by_maximum::<I, F32>(grad, raw),
        }
    }

    fn by_maximum<I: Widen, O: Narrow>(self, grad: &[I::Raw], out: &mut [O::Raw]) -> bool {
        if self.k.amsgrad {
            self.run::<I, O, true>(grad, out)
        } else {
            self.run::<I, O, false>(grad, out)
        }
    }

    /// Runs the loop; false, and nothing done, if the machine lacks the instruction set.
    fn run<I: Widen, O: Narrow, const AMSGRAD: bool>(
        self,
        grad: &[I::Raw],
        out: &mut [O::Raw],
    ) -> bool {
        let Call { isa, k, slices } = self;
        let _environment = FpEnv::enter();
        match isa {
            Isa::Scalar => {
                let Slices { p, m, v, vmax } = slices;
                reference::segment::<I, O, AMSGRAD>(k, p, m, v, vmax, grad, out);
                true
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::update_avx2::<I, O, AMSGRAD>(k, slices, grad, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::update_avx512::<I, O, AMSGRAD>(k, slices, grad, out),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }
}
