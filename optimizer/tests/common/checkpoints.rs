//! Checkpoints taken apart and put together again otherwise, for tests of what is refused.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::path::Path;

use serde_json::Value;
use tensortier_storage::dtype::DType;
use tensortier_storage::source::{Access, TensorFile, TensorFileWriter, TensorSpec};
use twox_hash::XxHash3_64;

const KEY: &str = "tensortier.checkpoint";

/// A checkpoint in parts.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) json: Value,
    /// All tensors but the checksums.
    pub(crate) tensors: Vec<(TensorSpec, Vec<u8>)>,
}

impl Parts {
    pub(crate) fn read(path: &Path) -> Self {
        let file = TensorFile::open(path, Access::Direct).unwrap();
        let json = serde_json::from_str(&file.metadata()[KEY]).unwrap();
        let entries = file.entries().iter().filter(|entry| entry.name != "xxh3");
        let tensors = entries.map(|entry| {
            let mut bytes = vec![0; entry.bytes() as usize];
            file.read_into(entry, 0, &mut bytes).unwrap();
            let (name, shape) = (entry.name.clone(), entry.shape.clone());
            (TensorSpec { name, dtype: entry.dtype, shape }, bytes)
        });
        Parts { json, tensors: tensors.collect() }
    }

    /// Writes them with the checksums that belong to them.
    pub(crate) fn write(&self, path: &Path) {
        self.write_with(path, &self.json.to_string());
    }

    /// Writes them with another text in place of the JSON.
    pub(crate) fn write_with(&self, path: &Path, json: &str) {
        let mut specs: Vec<_> = self.tensors.iter().map(|(spec, _)| spec.clone()).collect();
        let mut sums = Vec::new();
        for (spec, bytes) in &self.tensors {
            let block = 65_536 * spec.dtype.bytes() as usize;
            sums.extend(bytes.chunks(block).map(XxHash3_64::oneshot));
        }
        let shape = vec![sums.len() as u64];
        specs.push(TensorSpec { name: String::from("xxh3"), dtype: DType::U64, shape });
        let sum = format!("{:016x}", XxHash3_64::oneshot(json.as_bytes()));
        let metadata = [(KEY, json), ("tensortier.checkpoint.xxh3", &sum)];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut writer = TensorFileWriter::create(path, &specs, &metadata.into()).unwrap();
        self.tensors.iter().for_each(|(_, bytes)| writer.write(bytes).unwrap());
        sums.iter().for_each(|sum| writer.write(&sum.to_le_bytes()).unwrap());
        writer.finish().unwrap();
    }

    /// Returns a tensor's bytes.
    pub(crate) fn tensor(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.tensors.iter_mut().find(|(spec, _)| spec.name == name).unwrap().1
    }
}
