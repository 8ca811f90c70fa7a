//! The floating-point environment of a kernel: saved, set to IEEE 754's defaults, restored.
//!
//! A thread inherits rounding mode, flush-to-zero and denormals-are-zero from whoever created it,
//! and frameworks do set them (torch's `set_flush_denormal`). Every kernel therefore runs under a
//! guard. Only registers that are the thread's own are touched. Elsewhere than on x86-64 and
//! AArch64 the guard does nothing.
//!
//! The compiler knows no floating-point environment and could move pure arithmetic over the guard's
//! instructions. So what must run under it stands in a function that is not inlined and whose
//! inputs and outputs lie in memory, which those instructions are declared to touch.

use std::marker::PhantomData;

/// Round to nearest, no flush-to-zero, no denormals-are-zero, all exceptions masked, none pending.
#[cfg(target_arch = "x86_64")]
const DEFAULT: Control = 0x1F80;
/// Round to nearest, no flush-to-zero, no traps.
#[cfg(target_arch = "aarch64")]
const DEFAULT: Control = 0;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const DEFAULT: Control = 0;

#[cfg(target_arch = "x86_64")]
type Control = u32;
#[cfg(not(target_arch = "x86_64"))]
type Control = u64;

/// The default environment while it lives; on drop, the environment found at [`FpEnv::enter`].
#[derive(Debug)]
pub(crate) struct FpEnv {
    saved: Control,
    // The environment is the thread's: the guard must end where it began.
    _not_send: PhantomData<*const ()>,
}

impl FpEnv {
    /// Sets the default environment on this thread. A few cycles.
    pub(crate) fn enter() -> Self {
        let saved = read();
        write(DEFAULT);
        FpEnv { saved, _not_send: PhantomData }
    }
}

impl Drop for FpEnv {
    fn drop(&mut self) {
        write(self.saved);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn read() -> Control {
    let mut value: Control = 0;
    let to: *mut Control = &mut value;
    // SAFETY: stores four bytes to `to`, which points at a live, aligned u32 of this frame.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) to, options(nostack, preserves_flags));
    }
    value
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn write(value: Control) {
    let from: *const Control = &value;
    // SAFETY: loads four bytes from a live u32. The value is either the environment that the
    // language assumes or one that this thread was found with, so no reserved bit is set.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) from, options(nostack, preserves_flags));
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn read() -> Control {
    let value: Control;
    // SAFETY: reads a control register that every privilege level may read.
    unsafe {
        std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nostack, preserves_flags));
    }
    value
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn write(value: Control) {
    // SAFETY: writes the thread's own control register, with the language's defaults or with the
    // value that this thread was found with.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) value, options(nostack, preserves_flags));
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn read() -> Control {
    DEFAULT
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn write(_value: Control) {}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    use crate::hyper::Hyper;
    use crate::kernel::{Input, Isa, Output, Planes, Scalars, update};

    /// Flush-to-zero, denormals-are-zero, and rounding toward zero besides.
    const HOSTILE: [Control; 4] =
        [DEFAULT | 0x8000, DEFAULT | 0x0040, DEFAULT | 0x8040, DEFAULT | 0x6000];

    /// Bits of everything one update leaves, computed in environment `control`.
    ///
    /// Inputs and results are integers, so that only the kernel's own arithmetic is under test.
    fn update_under(control: Control, isa: Isa, k: &Scalars) -> (Vec<u32>, Control) {
        let mut p: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0002_3456)).collect();
        let mut m: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0003_1111)).collect();
        let mut v: Vec<f32> = (0..50_u32).map(|i| f32::from_bits(i * 0x0000_7777)).collect();
        let g: Vec<u16> = (0..50_u16).map(|i| i * 5).collect();
        let mut w = vec![0_u16; 50];
        let before = read();
        write(control);
        let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax: None };
        let result = update(isa, k, planes, Input::Bf16(&g), Output::Bf16(&mut w));
        let after = read();
        write(before);
        assert_eq!(result, Ok(()));
        let planes = [p, m, v].into_iter().flatten().map(f32::to_bits);
        (planes.chain(w.into_iter().map(u32::from)).collect(), after)
    }

    #[test]
    fn a_kernel_ignores_the_callers_environment_and_restores_it() {
        let k = Scalars::at(&Hyper::default(), 3, 1.0);
        for isa in Isa::available() {
            let (expected, _) = update_under(DEFAULT, isa, &k);
            for control in HOSTILE {
                let (bits, after) = update_under(control, isa, &k);
                assert_eq!(bits, expected, "{isa} under {control:#x}");
                assert_eq!(after, control, "{isa} must restore the environment");
            }
        }
    }

    #[test]
    fn the_hostile_environment_is_hostile() {
        // Else the tests beside this one would prove nothing.
        let before = read();
        write(HOSTILE[2]);
        let tiny = std::hint::black_box(f32::from_bits(0x0001_0000));
        let product = std::hint::black_box(tiny * std::hint::black_box(2.0));
        write(before);
        assert_eq!(product.to_bits(), 0);
    }

    #[test]
    fn the_host_scalars_ignore_it_too() {
        let hyper = Hyper { eps: 1e-42, lr: 3e-40, ..Hyper::default() };
        let expected = Scalars::at(&hyper, 7, 1e-41);
        assert!(expected.eps.is_subnormal() && expected.s.is_subnormal());
        for control in HOSTILE {
            let before = read();
            write(control);
            let k = Scalars::at(&hyper, 7, 1e-41);
            let after = read();
            write(before);
            assert_eq!(k, expected);
            assert_eq!(after, control);
        }
    }
}
