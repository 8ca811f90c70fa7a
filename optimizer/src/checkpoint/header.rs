//! What a checkpoint says about itself: JSON in the metadata of its safetensors file.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use tensortier_storage::codec::checksum;
use tensortier_storage::dtype::DType;

use crate::hyper::{Algorithm, Hyper, Subnormals};
use crate::optimizer::Optimizer;
use crate::options::Rounding;
use crate::precision::StatePrecision;
use crate::shard::Shard;

/// The version of the format.
const FORMAT: u64 = 1;

/// The keys of the JSON and of its checksum.
const KEYS: [&str; 2] = ["tensortier.checkpoint", "tensortier.checkpoint.xxh3"];

/// What one file says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    format: u64,
    /// The name of the optimizer.
    name: String,
    /// Steps that were applied to the end.
    pub(super) steps: u64,
    #[serde(with = "RoundingForm")]
    pub(super) rounding: Rounding,
    groups: Vec<Group>,
    pub(super) parameters: Vec<SavedParam>,
}

/// What one file says of a parameter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SavedParam {
    pub(super) name: String,
    pub(super) global_shape: Vec<u64>,
    #[serde(with = "ShardForm")]
    pub(super) shard: Shard,
    pub(super) weights: WeightForm,
    /// How the state was kept, for who reads the file.
    #[serde(with = "PrecisionForm")]
    state: StatePrecision,
    pub(super) group: usize,
    pub(super) updates: u64,
    /// Whether the file has a master: otherwise the weights are it.
    pub(super) master: bool,
}

/// The format alone, whatever else a file says.
#[derive(Deserialize)]
struct Version {
    format: u64,
}

impl Header {
    /// Describes an optimizer.
    pub(super) fn of(optimizer: &Optimizer) -> Self {
        let plan = &optimizer.plan;
        let each = plan.params.iter().zip(&plan.forms).zip(&optimizer.progress);
        let each = each.map(|((param, form), progress)| SavedParam {
            name: param.name.clone(),
            global_shape: param.global_shape.clone(),
            shard: param.shard.clone(),
            weights: match param.weight_dtype {
                DType::BF16 => WeightForm::Bf16,
                DType::F16 => WeightForm::F16,
                _ => WeightForm::F32,
            },
            state: form.precision,
            group: param.group,
            updates: progress.updates,
            master: form.precision != StatePrecision::Weights && !progress.fresh,
        });
        Header {
            format: FORMAT,
            name: plan.options.name.clone(),
            steps: optimizer.steps,
            rounding: plan.options.rounding,
            groups: plan.options.groups.iter().map(|hyper| Group(*hyper)).collect(),
            parameters: each.collect(),
        }
    }

    /// Returns the hyper-parameters of each group.
    pub(super) fn groups(&self) -> impl ExactSizeIterator<Item = &Hyper> {
        self.groups.iter().map(|Group(hyper)| hyper)
    }

    /// Returns whether a parameter's group has amsgrad.
    pub(super) fn amsgrad(&self, param: &SavedParam) -> bool {
        self.groups.get(param.group).is_some_and(|Group(hyper)| hyper.amsgrad)
    }

    /// Returns it as a file's metadata.
    pub(super) fn to_metadata(&self) -> Result<BTreeMap<String, String>, String> {
        let json = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let sum = format!("{:016x}", checksum(json.as_bytes()));
        Ok(KEYS.into_iter().map(String::from).zip([json, sum]).collect())
    }

    /// Reads a file's metadata, and says what is wrong with it if anything is.
    pub(super) fn from_metadata(metadata: &BTreeMap<String, String>) -> Result<Self, String> {
        let [Some(json), Some(sum)] = KEYS.map(|key| metadata.get(key)) else {
            return Err(String::from("is no checkpoint of an optimizer; name one"));
        };
        if *sum != format!("{:016x}", checksum(json.as_bytes())) {
            return Err(String::from("has a header that was damaged; take another copy"));
        }
        let bad = |error: serde_json::Error| {
            // The parser quotes names from the file; they are no reason for a second line.
            let text = error.to_string();
            let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            format!("has a bad header: {text}")
        };
        let Version { format } = serde_json::from_str(json).map_err(bad)?;
        if format != FORMAT {
            return Err(format!(
                "has format {format}, and this version reads {FORMAT}; take a version that wrote it"
            ));
        }
        let header: Header = serde_json::from_str(json).map_err(bad)?;
        header.check()?;
        Ok(header)
    }

    /// Says what cannot be, if anything.
    fn check(&self) -> Result<(), String> {
        for (index, hyper) in self.groups().enumerate() {
            hyper.validate().map_err(|error| format!("group {index}: {error}"))?;
        }
        let mut names = HashSet::new();
        for param in &self.parameters {
            let refuse = |why: String| Err(format!("parameter {:?} {why}", param.name));
            if !names.insert(&param.name) {
                return refuse(String::from("is there twice"));
            }
            if let Err(why) = param.shard.check(&param.global_shape) {
                return refuse(format!("has a shard that cannot be: {why}"));
            }
            let all = Shard::Whole.elements(&param.global_shape);
            if all.and(param.shard.elements(&param.global_shape)).is_none() {
                return refuse(String::from("has more elements than can be counted"));
            }
            if param.group >= self.groups.len() {
                return refuse(format!("is of group {}, which is not there", param.group));
            }
            if param.updates > self.steps || (param.master && param.updates == 0) {
                let (updates, steps) = (param.updates, self.steps);
                return refuse(format!(
                    "was updated {updates} times in {steps} steps{}",
                    if param.master { " and has a master" } else { "" }
                ));
            }
        }
        Ok(())
    }
}

/// The type of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WeightForm {
    #[serde(rename = "F32")]
    F32,
    #[serde(rename = "BF16")]
    Bf16,
    #[serde(rename = "F16")]
    F16,
}

impl From<WeightForm> for DType {
    fn from(form: WeightForm) -> Self {
        match form {
            WeightForm::F32 => DType::F32,
            WeightForm::Bf16 => DType::BF16,
            WeightForm::F16 => DType::F16,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Group(#[serde(with = "HyperForm")] Hyper);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Hyper")]
struct HyperForm {
    #[serde(with = "AlgorithmForm")]
    algorithm: Algorithm,
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    amsgrad: bool,
    maximize: bool,
    #[serde(with = "SubnormalsForm")]
    subnormals: Subnormals,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Algorithm", rename_all = "snake_case")]
enum AlgorithmForm {
    Adam,
    #[serde(rename = "adamw")]
    AdamW,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Subnormals", rename_all = "snake_case")]
enum SubnormalsForm {
    Keep,
    Flush,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Rounding", rename_all = "snake_case")]
enum RoundingForm {
    Nearest,
    Stochastic { seed: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "StatePrecision", rename_all = "snake_case")]
enum PrecisionForm {
    Weights,
    Fp32,
    #[serde(rename = "split")]
    SplitMaster,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Shard", rename_all = "snake_case")]
enum ShardForm {
    Whole,
    Box { offset: Vec<u64>, shape: Vec<u64> },
    Flat { range: std::ops::Range<u64> },
}
