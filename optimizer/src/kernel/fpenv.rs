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
pub(super) const DEFAULT: Control = 0x1F80;
/// Round to nearest, no flush-to-zero, no traps.
#[cfg(target_arch = "aarch64")]
pub(super) const DEFAULT: Control = 0;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const DEFAULT: Control = 0;

#[cfg(target_arch = "x86_64")]
pub(super) type Control = u32;
#[cfg(not(target_arch = "x86_64"))]
pub(super) type Control = u64;

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
pub(super) fn read() -> Control {
    let mut value: Control = 0;
    let to: *mut Control = &mut value;
    // SAFETY: stores four bytes to `to`, which points at a live, aligned u32 of this frame.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) to, options(nostack, preserves_flags));
    }
    value
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn write(value: Control) {
    let from: *const Control = &value;
    // SAFETY: loads four bytes from a live u32. The value is either the environment that the
    // language assumes or one that this thread was found with, so no reserved bit is set.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) from, options(nostack, preserves_flags));
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(super) fn read() -> Control {
    let value: Control;
    // SAFETY: reads a control register that every privilege level may read.
    unsafe {
        std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nostack, preserves_flags));
    }
    value
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(super) fn write(value: Control) {
    // SAFETY: writes the thread's own control register, with the language's defaults or with the
    // value that this thread was found with.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) value, options(nostack, preserves_flags));
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) fn read() -> Control {
    DEFAULT
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) fn write(_value: Control) {}
