//! The entry to the kernels: checks what it is given, sets the floating-point environment, and picks
//! the compiled loop for the types and the instruction set.

use super::fpenv::FpEnv;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::planes::{Input, Output, Planes, Slices};
use super::round::{Absent, Bf16, F16, F32, Narrow, Widen};
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Isa, KernelError, Scalars, reference};

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
    let slices = Slices { p: planes.p, m: planes.m, v: planes.v, vmax };
    let call = Call { isa, k, slices };
    if call.by_input(grad, out) { Ok(()) } else { Err(KernelError::UnavailableIsa { isa }) }
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
    if actual == expected { Ok(()) } else { Err(KernelError::Length { what, expected, actual }) }
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
                reference::segment::<I, O, AMSGRAD>(k, slices, grad, out);
                true
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => {
                neon::update::<I, O, AMSGRAD>(k, slices, grad, out);
                true
            }
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon => false,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::update_avx2::<I, O, AMSGRAD>(k, slices, grad, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::update_avx512::<I, O, AMSGRAD>(k, slices, grad, out),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }
}
