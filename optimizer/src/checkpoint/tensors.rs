//! The tensors of a checkpoint: what is stored of each parameter, under torch's names, and the
//! checksums of its blocks.

use tensortier_storage::dtype::DType;
use tensortier_storage::source::TensorSpec;

use crate::subgroup::BLOCK_ELEMS;

use super::header::SavedParam;

/// The tensor of the checksums, which is the last: one of each block of each other tensor.
pub(super) const CHECKSUMS: &str = "xxh3";

/// One kind of tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The caller's weights.
    Param,
    /// fp32 master weights.
    Master,
    /// First moments.
    ExpAvg,
    /// Second moments.
    ExpAvgSq,
    /// Running maxima of the second moments.
    MaxExpAvgSq,
}

impl Kind {
    /// Returns what a file has of a parameter, in the order of the file.
    pub(super) fn of(param: &SavedParam, amsgrad: bool) -> impl Iterator<Item = Kind> + use<> {
        let updated = param.updates > 0;
        [
            (Kind::Param, true),
            (Kind::Master, param.master),
            (Kind::ExpAvg, updated),
            (Kind::ExpAvgSq, updated),
            (Kind::MaxExpAvgSq, updated && amsgrad),
        ]
        .into_iter()
        .filter_map(|(kind, stored)| stored.then_some(kind))
    }

    /// Returns what torch calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Param => "param",
            Kind::Master => "master_param",
            Kind::ExpAvg => "exp_avg",
            Kind::ExpAvgSq => "exp_avg_sq",
            Kind::MaxExpAvgSq => "max_exp_avg_sq",
        }
    }

    /// Returns whether it is never negative.
    pub(super) fn is_square(self) -> bool {
        matches!(self, Kind::ExpAvgSq | Kind::MaxExpAvgSq)
    }

    /// Returns the tensor of this kind of a parameter.
    pub(super) fn spec(self, param: &SavedParam) -> TensorSpec {
        TensorSpec {
            name: format!("{}/{}", self.name(), param.name),
            dtype: match self {
                Kind::Param => param.weights.into(),
                _ => DType::F32,
            },
            shape: param.shard.shape(&param.global_shape),
        }
    }
}

/// Returns how many blocks a tensor of so many elements has.
pub(super) fn blocks(elems: u64) -> u64 {
    elems.div_ceil(BLOCK_ELEMS)
}

/// Returns the tensor of the checksums of so many blocks.
pub(super) fn checksums(blocks: u64) -> TensorSpec {
    TensorSpec { name: String::from(CHECKSUMS), dtype: DType::U64, shape: vec![blocks] }
}
