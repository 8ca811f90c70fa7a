//! Why a kernel refuses to run. It then has changed nothing.

use super::Isa;

/// A refusal by the kernels; nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A slice is not as long as the one it belongs to.
    #[error("{what} has {actual} elements where {expected} are expected")]
    Length {
        /// Which slice.
        what: &'static str,
        /// The length of the master plane (or of the slice to fill).
        expected: usize,
        /// The length found.
        actual: usize,
    },
    /// A block of a sum has too many elements.
    #[error("a block of {actual} elements is to be summed, and {most} is the most")]
    Block {
        /// The most elements of a block.
        most: usize,
        /// The number found.
        actual: usize,
    },
    /// The scalars ask for amsgrad but there is no `vmax` plane.
    #[error("amsgrad needs a plane for the maximum of v, and there is none")]
    MissingMaximum,
    /// There is a `vmax` plane but the scalars do not ask for amsgrad.
    #[error("a plane for the maximum of v is given, but amsgrad is off")]
    UnexpectedMaximum,
    /// The instruction set is not one of this machine.
    #[error("this machine cannot run the {isa} kernels")]
    UnavailableIsa {
        /// The one asked for.
        isa: Isa,
    },
    /// The name is not that of an instruction set.
    #[error("unknown instruction set {name:?} (TENSORTIER_ISA takes scalar, neon, avx2 or avx512)")]
    UnknownIsa {
        /// The name found.
        name: String,
    },
}

/// Refuses a length that is not the expected one.
pub(super) fn check(what: &'static str, expected: usize, actual: usize) -> Result<(), KernelError> {
    if actual == expected { Ok(()) } else { Err(KernelError::Length { what, expected, actual }) }
}
