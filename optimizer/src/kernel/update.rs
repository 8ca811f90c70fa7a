//! The entry to the kernels: checks what it is given, sets the floating-point environment, and picks
//! the compiled loop for the types and the instruction set.

use super::error::check;
use super::fpenv::FpEnv;
use super::master::{Full, Master};
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::planes::{HalfWeights, Input, Output, Planes, Slices, SplitPlanes, WeightPlanes};
use super::round::{Absent, Bf16, F16, F32, Widen};
use super::split::Split;
use super::stochastic::{Round, Rounded, Stochastic};
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
    let Planes { p: own, m, v, vmax } = planes;
    let n = own.len();
    check("m", n, m.len())?;
    check("v", n, v.len())?;
    check("the gradient", n, grad.len())?;
    match &out {
        Output::None => {}
        Output::Bf16(raw) | Output::F16(raw) => check("the weight output", n, raw.len())?,
        Output::F32(raw) => check("the weight output", n, raw.len())?,
    }
    let vmax = maximum(k, n, vmax)?;
    let run = Run { isa, k, grad };
    match out {
        Output::None => run.of(Full::<Absent>::new(), Slices { own, weight: &mut [], m, v, vmax }),
        Output::Bf16(weight) => run.of(Full::<Bf16>::new(), Slices { own, weight, m, v, vmax }),
        Output::F16(weight) => run.of(Full::<F16>::new(), Slices { own, weight, m, v, vmax }),
        Output::F32(weight) => run.of(Full::<F32>::new(), Slices { own, weight, m, v, vmax }),
    }
}

/// Updates one run whose master weights are split ([`split`](super::split)): what it leaves is what
/// [`update`] with [`Output::Bf16`] would, bit for bit, of the same masters.
///
/// The weights must be those that the last update wrote; whether they are is the caller's to check.
///
/// # Errors
/// As [`update`].
pub fn update_split(
    isa: Isa,
    k: &Scalars,
    planes: SplitPlanes<'_>,
    grad: Input<'_>,
) -> Result<(), KernelError> {
    let SplitPlanes { lo: own, m, v, vmax, hi: weight } = planes;
    let n = own.len();
    check("m", n, m.len())?;
    check("v", n, v.len())?;
    check("the weights", n, weight.len())?;
    check("the gradient", n, grad.len())?;
    let vmax = maximum(k, n, vmax)?;
    Run { isa, k, grad }.of(Split, Slices { own, weight, m, v, vmax })
}

/// Updates one run whose 16-bit weights are themselves the master: the weights are widened, updated,
/// and rounded stochastically by the noise of `rounding` ([`stochastic`](super::stochastic)).
///
/// The result is the same bits for every `isa`, and however a parameter is cut into runs, as long as
/// each run is given the logical index of its first element.
///
/// # Errors
/// As [`update`].
pub fn update_stochastic(
    isa: Isa,
    k: &Scalars,
    planes: WeightPlanes<'_>,
    grad: Input<'_>,
    rounding: Stochastic,
) -> Result<(), KernelError> {
    let WeightPlanes { weights, m, v, vmax } = planes;
    let n = m.len();
    check("v", n, v.len())?;
    check("the gradient", n, grad.len())?;
    let (HalfWeights::Bf16(raw) | HalfWeights::F16(raw)) = &weights;
    check("the weights", n, raw.len())?;
    let vmax = maximum(k, n, vmax)?;
    match weights {
        HalfWeights::Bf16(weight) => {
            let planes = Slices { own: &mut [], weight, m, v, vmax };
            by_noise::<Bf16>(isa, k, planes, grad, rounding)
        }
        HalfWeights::F16(weight) => {
            let planes = Slices { own: &mut [], weight, m, v, vmax };
            by_noise::<F16>(isa, k, planes, grad, rounding)
        }
    }
}

/// Updates a run in the parts in which its noise counts.
fn by_noise<O: Round>(
    isa: Isa,
    k: &Scalars,
    planes: Slices<'_, Rounded<O>>,
    grad: Input<'_>,
    rounding: Stochastic,
) -> Result<(), KernelError> {
    let Slices { weight, m, v, vmax, .. } = planes;
    for range in rounding.parts(m.len()) {
        let part = Slices {
            own: &mut [],
            weight: &mut weight[range.clone()],
            m: &mut m[range.clone()],
            v: &mut v[range.clone()],
            vmax: if k.amsgrad { &mut vmax[range.clone()] } else { &mut [] },
        };
        let way = Rounded::<O>::new(rounding.after(range.start));
        Run { isa, k, grad: grad.part(range) }.of(way, part)?;
    }
    Ok(())
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

/// The plane of the maxima, empty without amsgrad.
fn maximum<'a>(
    k: &Scalars,
    n: usize,
    vmax: Option<&'a mut [f32]>,
) -> Result<&'a mut [f32], KernelError> {
    match (vmax, k.amsgrad) {
        (Some(vmax), true) => check("vmax", n, vmax.len()).map(|()| vmax),
        (None, false) => Ok(&mut []),
        (None, true) => Err(KernelError::MissingMaximum),
        (Some(_), false) => Err(KernelError::UnexpectedMaximum),
    }
}

/// A checked call on its way to the loop compiled for it; each method settles one type parameter.
struct Run<'a> {
    isa: Isa,
    k: &'a Scalars,
    grad: Input<'a>,
}

impl Run<'_> {
    fn of<W: Master>(self, way: W, planes: Slices<'_, W>) -> Result<(), KernelError> {
        let Run { isa, k, grad } = self;
        let ran = match grad {
            Input::Bf16(raw) => by_maximum::<Bf16, W>(isa, k, way, planes, raw),
            Input::F16(raw) => by_maximum::<F16, W>(isa, k, way, planes, raw),
            Input::F32(raw) => by_maximum::<F32, W>(isa, k, way, planes, raw),
        };
        if ran { Ok(()) } else { Err(KernelError::UnavailableIsa { isa }) }
    }
}

fn by_maximum<I: Widen, W: Master>(
    isa: Isa,
    k: &Scalars,
    way: W,
    planes: Slices<'_, W>,
    grad: &[I::Raw],
) -> bool {
    if k.amsgrad {
        run::<I, W, true>(isa, k, way, planes, grad)
    } else {
        run::<I, W, false>(isa, k, way, planes, grad)
    }
}

/// Runs the loop; false, and nothing done, if the machine lacks the instruction set.
fn run<I: Widen, W: Master, const AMSGRAD: bool>(
    isa: Isa,
    k: &Scalars,
    way: W,
    planes: Slices<'_, W>,
    grad: &[I::Raw],
) -> bool {
    let _environment = FpEnv::enter();
    match isa {
        Isa::Scalar => {
            reference::segment::<I, W, AMSGRAD>(k, way, planes, grad);
            true
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            neon::update::<I, W, AMSGRAD>(k, way, planes, grad);
            true
        }
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => false,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::update_avx2::<I, W, AMSGRAD>(k, way, planes, grad),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86::update_avx512::<I, W, AMSGRAD>(k, way, planes, grad),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => false,
    }
}
