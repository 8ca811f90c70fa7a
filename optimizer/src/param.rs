//! Parameters as the optimizer sees them: a name, a shape, and the type of the caller's weights.

use tensortier_storage::dtype::DType;

/// One parameter of the model. The weights and gradients themselves stay with the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Param {
    /// Its name, for messages and checkpoints.
    pub name: String,
    /// Its extents in elements, slowest first; empty for a scalar.
    pub shape: Vec<u64>,
    /// The type of the caller's weights: `F32`, `BF16` or `F16`.
    pub weight_dtype: DType,
}

impl Param {
    /// Returns a parameter.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<u64>>, weight_dtype: DType) -> Self {
        Param { name: name.into(), shape: shape.into(), weight_dtype }
    }

    /// Returns how many elements it has, or `None` when that overflows.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |n, extent| n.checked_mul(*extent))
    }
}
