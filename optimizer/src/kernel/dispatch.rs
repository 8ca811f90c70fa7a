//! Which instruction set the kernels use: what the processor has, or what the environment asks for.

use std::fmt;
use std::str::FromStr;

use super::KernelError;
#[cfg(target_arch = "x86_64")]
use super::x86;

/// Name of the environment variable that overrides [`Isa::detect`], for tests and comparisons.
pub const ISA_VARIABLE: &str = "TENSORTIER_ISA";

/// An instruction set that the update kernel is compiled for. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// One element at a time, with the features of the build alone. Runs everywhere; slow on x86-64,
    /// where a default build has no fused multiply-add and calls the C library for each.
    Scalar,
    /// The vectors of AArch64: any such processor, as its builds assume.
    Neon,
    /// AVX2 and FMA: any x86-64-v3 processor.
    Avx2,
    /// AVX-512 F, BW, DQ, VL: any x86-64-v4 processor.
    Avx512,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The fastest one of this machine, or the one that `TENSORTIER_ISA` names (`scalar`, `neon`,
    /// `avx2`, `avx512`; empty counts as unset). Reads the environment: call it once, not per update.
    ///
    /// # Errors
    /// [`KernelError::UnknownIsa`] or [`KernelError::UnavailableIsa`] if the variable's value is not
    /// such a name, or names what this machine lacks. Never without the variable.
    pub fn detect() -> Result<Isa, KernelError> {
        let wanted = std::env::var_os(ISA_VARIABLE);
        Isa::choose(wanted.as_ref().map(|value| value.to_string_lossy()).as_deref())
    }

    /// Those that this machine can run, slowest first; [`Isa::Scalar`] is always one.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this machine can run it. A few loads: the processor is asked once per process.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::has_avx512(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }

    /// Its name, as `TENSORTIER_ISA` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    fn choose(wanted: Option<&str>) -> Result<Isa, KernelError> {
        match wanted {
            None | Some("") => Ok(Isa::available().last().unwrap_or(Isa::Scalar)),
            Some(name) => {
                let isa: Isa = name.parse()?;
                if isa.is_available() { Ok(isa) } else { Err(KernelError::UnavailableIsa { isa }) }
            }
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Isa, KernelError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| KernelError::UnknownIsa { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_wish_the_fastest_is_chosen() {
        let fastest = Isa::available().last().unwrap();
        assert_eq!(Isa::choose(None), Ok(fastest));
        assert_eq!(Isa::choose(Some("")), Ok(fastest));
    }

    #[test]
    fn a_wish_is_granted_or_refused_by_name() {
        for isa in Isa::ALL {
            let expected =
                if isa.is_available() { Ok(isa) } else { Err(KernelError::UnavailableIsa { isa }) };
            assert_eq!(Isa::choose(Some(isa.name())), expected);
        }
        let error = Isa::choose(Some("AVX9")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown instruction set \"AVX9\" (TENSORTIER_ISA takes scalar, neon, avx2 or avx512)"
        );
    }
}
