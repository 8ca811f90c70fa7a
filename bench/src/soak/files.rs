//! A tensor file that a round's store adopts: some of its objects begin in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tensortier_storage::dtype::DType;
use tensortier_storage::error::Result;
use tensortier_storage::source::{Access, TensorFile, TensorFileWriter, TensorSpec};
use tensortier_storage::store::Store;

use super::content::contents;
use super::numbers::Numbers;

/// Tells apart the files of one process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A file and the objects that were made of it; removed when dropped.
#[derive(Debug)]
pub(super) struct Adopted {
    file: PathBuf,
    /// What the objects hold.
    pub(super) tensors: Vec<(String, Vec<u8>)>,
}

impl Adopted {
    /// Writes a file with tensors of these names and has the store adopt it.
    ///
    /// # Errors
    /// What went wrong.
    pub(super) fn open(
        store: &Store,
        base: &Path,
        names: Vec<String>,
        longest: u64,
        numbers: &mut Numbers,
    ) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = base.join(format!("file-{number}.safetensors"));
        let tensors: Vec<_> = names
            .into_iter()
            .map(|name| (name, contents(numbers.next(), numbers.below(longest + 1))))
            .collect();
        let spec = |(name, bytes): &(String, Vec<u8>)| TensorSpec {
            name: name.clone(),
            dtype: DType::U8,
            shape: vec![bytes.len() as u64],
        };
        let specs: Vec<_> = tensors.iter().map(spec).collect();
        let mut writer = TensorFileWriter::create(&file, &specs, &BTreeMap::new())?;
        let adopted = Adopted { file, tensors };
        for (_, bytes) in &adopted.tensors {
            writer.write(bytes)?;
        }
        writer.finish()?;
        let access = if numbers.one_in(2) { Access::Direct } else { Access::Map };
        store.adopt(TensorFile::open(&adopted.file, access)?, "")?;
        Ok(adopted)
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // One that stays keeps the run's directory from being removed, which is told of.
        let _ = std::fs::remove_file(&self.file);
    }
}
