//! Writing the updated weights as a safetensors file: the parameters as they are now, everything
//! else as it was.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tensortier::storage::source::{TensorFileWriter, TensorSpec};

use super::model::{Description, Model, Source};
use crate::Failure;

/// How much of an untrained tensor is copied at a time, in bytes.
const COPY_BYTES: usize = 4 << 20;

/// Creates the file under a temporary name, so that one that cannot be written is known before the
/// run. Dropped unfinished, it is removed.
pub(super) fn create(path: &Path, description: &Description) -> Result<TensorFileWriter, Failure> {
    if let Source::File { file, .. } = &description.source
        && same_file(path, file.path())
    {
        let why = "is the file the weights come from; name another file";
        return Err(format!("--save {}: {why}", path.display()).into());
    }
    let (specs, metadata) = match &description.source {
        Source::File { file, .. } => {
            let spec = |e: &tensortier::storage::source::TensorEntry| TensorSpec {
                name: e.name.clone(),
                dtype: e.dtype,
                shape: e.shape.clone(),
            };
            (file.entries().iter().map(spec).collect(), file.metadata().clone())
        }
        Source::MadeUp { .. } => {
            let spec = |p: &tensortier::optimizer::Param| TensorSpec {
                name: p.name.clone(),
                dtype: p.weight_dtype,
                shape: p.global_shape.clone(),
            };
            let specs: Vec<_> = description.params.iter().map(spec).collect();
            (specs, BTreeMap::from([(String::from("format"), String::from("pt"))]))
        }
    };
    Ok(TensorFileWriter::create(path, &specs, &metadata)?)
}

fn same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    id(one).is_some_and(|found| id(other) == Some(found))
}

/// Writes all tensors and gives the file its name.
pub(super) fn finish(
    mut writer: TensorFileWriter,
    description: &Description,
    model: &Model,
) -> Result<(), Failure> {
    match &description.source {
        Source::MadeUp { .. } => {
            for param in 0..model.params.len() {
                writer.write(model.weight_bytes(param))?;
            }
        }
        Source::File { file, params } => {
            for (index, entry) in file.entries().iter().enumerate() {
                if let Ok(param) = params.binary_search(&index) {
                    writer.write(model.weight_bytes(param))?;
                    continue;
                }
                let mut piece = vec![0; COPY_BYTES.min(entry.bytes() as usize)];
                for at in (0..entry.bytes()).step_by(COPY_BYTES) {
                    let len = (entry.bytes() - at).min(COPY_BYTES as u64) as usize;
                    file.read_into(entry, at, &mut piece[..len])?;
                    writer.write(&piece[..len])?;
                }
            }
        }
    }
    Ok(writer.finish()?)
}
