//! Parameters as the optimizer sees them: a name, a shape and the part of it that is here, the type
//! of the caller's weights, and a group.

use std::ops::Range;

use tensortier_storage::dtype::DType;

use crate::shard::{Shard, Stretch};

/// One parameter of the model. The weights and gradients themselves stay with the caller.
///
/// ```
/// use tensortier_optimizer::{Param, Shard};
/// use tensortier_storage::dtype::DType;
///
/// let half = Shard::Box { offset: vec![0, 512], shape: vec![1024, 512] };
/// let param = Param::new("mlp.weight", [1024, 1024], DType::BF16).with_shard(half).in_group(1);
/// assert_eq!(param.elements(), Some(1024 * 512));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Param {
    /// Its name, for messages and checkpoints; no two parameters share one.
    pub name: String,
    /// The extents of the whole tensor in elements, slowest first; empty for a scalar.
    pub global_shape: Vec<u64>,
    /// The part of it that is trained here.
    pub shard: Shard,
    /// The type of the caller's weights: `F32`, `BF16` or `F16`.
    pub weight_dtype: DType,
    /// The index of its group's hyper-parameters in [`crate::Options::groups`].
    pub group: usize,
}

impl Param {
    /// Returns a whole parameter of the first group.
    pub fn new(
        name: impl Into<String>,
        global_shape: impl Into<Vec<u64>>,
        weight_dtype: DType,
    ) -> Self {
        let global_shape = global_shape.into();
        Param { name: name.into(), global_shape, shard: Shard::Whole, weight_dtype, group: 0 }
    }

    /// Returns it with only this part of it trained here.
    #[must_use]
    pub fn with_shard(self, shard: Shard) -> Self {
        Param { shard, ..self }
    }

    /// Returns it as a member of another group.
    #[must_use]
    pub fn in_group(self, group: usize) -> Self {
        Param { group, ..self }
    }

    /// Returns how many elements are trained here, or `None` when that overflows.
    pub fn elements(&self) -> Option<u64> {
        self.shard.elements(&self.global_shape)
    }

    /// Returns the shape of the part that is trained here.
    pub fn shape(&self) -> Vec<u64> {
        self.shard.shape(&self.global_shape)
    }

    /// Returns where elements `range` of the part that is trained here lie in the whole tensor.
    pub fn stretches(&self, range: Range<u64>) -> impl Iterator<Item = Stretch> + use<> {
        self.shard.stretches(&self.global_shape, range)
    }
}
