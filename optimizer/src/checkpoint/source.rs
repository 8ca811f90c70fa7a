//! The files of a checkpoint as they are read: their headers checked, and blocks of their tensors
//! compared with the checksums that the file has of them.

use std::collections::HashMap;
use std::path::Path;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use tensortier_storage::codec::checksum;
use tensortier_storage::source::{Access, TensorFile};

use crate::error::{Error, Result};
use crate::subgroup::BLOCK_ELEMS;

use super::header::{Header, SavedParam};
use super::tensors::{CHECKSUMS, Kind, blocks, checksums};

/// How many blocks are kept: shards that are cut across those of the files need each more than once.
const KEPT_BLOCKS: usize = 32;

/// A tensor of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saved {
    pub(super) kind: Kind,
    /// Its place in the file.
    entry: usize,
    /// The number of its first block's checksum.
    first: usize,
}

/// One file.
#[derive(Debug)]
pub(super) struct Source {
    file: TensorFile,
    pub(super) header: Header,
    /// For each parameter of the header.
    tensors: Vec<Vec<Saved>>,
    checksums: Vec<u64>,
}

/// The files, and the blocks of them that were read last.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) files: Vec<Source>,
    /// The latest first.
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    /// File, tensor, and number of the block in it.
    of: (usize, usize, u64),
    words: Vec<u32>,
}

impl Source {
    /// Opens a file and checks all that is said in it, but no block.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = TensorFile::open(path, Access::Direct)?;
        let refuse = |why: String| Error::Checkpoint { what: path.display().to_string(), why };
        let header = Header::from_metadata(file.metadata()).map_err(refuse)?;
        let mut places = HashMap::new();
        let mut count = 0;
        for (index, entry) in file.entries().iter().enumerate() {
            places.insert(&entry.name, (index, count as usize));
            if entry.name != CHECKSUMS {
                count += blocks(entry.elements());
            }
        }
        let mut take = |wanted: tensortier_storage::source::TensorSpec| {
            let Some((entry, first)) = places.remove(&wanted.name) else {
                return Err(format!("lacks the tensor {:?}; take a whole checkpoint", wanted.name));
            };
            let found = &file.entries()[entry];
            if (found.dtype, &found.shape) != (wanted.dtype, &wanted.shape) {
                return Err(format!(
                    "has the tensor {:?} as {} of shape {:?}, and its header says {} of {:?}",
                    wanted.name, found.dtype, found.shape, wanted.dtype, wanted.shape
                ));
            }
            Ok((entry, first))
        };
        let mut of_param = |param: &SavedParam| -> Result<Vec<Saved>, String> {
            let kinds = Kind::of(param, header.amsgrad(param));
            let saved = kinds.map(|kind| {
                take(kind.spec(param)).map(|(entry, first)| Saved { kind, entry, first })
            });
            saved.collect()
        };
        let tensors = header.parameters.iter().map(&mut of_param).collect::<Result<_, _>>();
        let tensors = tensors.map_err(refuse)?;
        let (sums, _) = take(checksums(count)).map_err(refuse)?;
        if let Some(name) = places.keys().next() {
            return Err(refuse(format!("has a tensor {name:?} that its header does not know")));
        }
        let mut sums_read = vec![0; count as usize];
        file.read_into(&file.entries()[sums], 0, cast_slice_mut(&mut sums_read))?;
        Ok(Source { file, header, tensors, checksums: sums_read })
    }

    /// Returns the tensors of a parameter of the header.
    pub(super) fn tensors(&self, param: usize) -> &[Saved] {
        self.tensors.get(param).map_or(&[], |tensors| tensors)
    }

    /// Returns where it lies, for messages.
    pub(super) fn shown(&self) -> String {
        self.file.path().display().to_string()
    }

    /// Reads a block into `words` and compares its checksum.
    fn read(&self, tensor: &Saved, block: u64, words: &mut Vec<u32>) -> Result<()> {
        let entry = &self.file.entries()[tensor.entry];
        let width = entry.dtype.bytes();
        let start = block * BLOCK_ELEMS;
        let elems = entry.elements().saturating_sub(start).min(BLOCK_ELEMS);
        let bytes = (elems * width) as usize;
        words.resize(bytes.div_ceil(4), 0);
        let into = &mut cast_slice_mut(words)[..bytes];
        self.file.read_into(entry, start * width, into)?;
        let known = self.checksums.get(tensor.first + block as usize);
        if known != Some(&checksum(into)) {
            return Err(Error::Checkpoint {
                what: self.shown(),
                why: format!(
                    "the tensor {:?} was damaged within its elements {start}..{}; take another copy",
                    entry.name,
                    start + elems
                ),
            });
        }
        Ok(())
    }
}

impl Sources {
    pub(super) fn new(files: Vec<Source>) -> Self {
        Sources { files, blocks: Vec::new() }
    }

    /// Copies elements of a tensor from `from` on into `out`.
    pub(super) fn copy<T: Pod>(
        &mut self,
        file: usize,
        tensor: &Saved,
        from: u64,
        out: &mut [T],
    ) -> Result<()> {
        let (mut at, mut rest) = (from, out);
        while !rest.is_empty() {
            let (block, within) = (at / BLOCK_ELEMS, (at % BLOCK_ELEMS) as usize);
            let (part, after) = rest.split_at_mut(rest.len().min(BLOCK_ELEMS as usize - within));
            let elements: &[T] = cast_slice(self.block(file, tensor, block)?);
            part.copy_from_slice(&elements[within..within + part.len()]);
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Returns a block, from what was read last or from the file.
    fn block(&mut self, file: usize, tensor: &Saved, block: u64) -> Result<&[u32]> {
        let of = (file, tensor.entry, block);
        match self.blocks.iter().position(|known| known.of == of) {
            Some(0) => {}
            Some(known) => self.blocks[..=known].rotate_right(1),
            None => {
                let mut words = match self.blocks.len() {
                    KEPT_BLOCKS => self.blocks.pop().map(|block| block.words).unwrap_or_default(),
                    _ => Vec::new(),
                };
                self.files[file].read(tensor, block, &mut words)?;
                self.blocks.insert(0, Block { of, words });
            }
        }
        Ok(&self.blocks[0].words)
    }
}
