//! The form in which a chunk is stored: the checksums of its stored bytes and how they are to be
//! decompressed, or neither. Small, because there is one per chunk.

use std::sync::Arc;

use super::{BLOCK_BYTES, Checksums, Mismatch, Packed, Scratch, Undecodable};

/// The form in which a chunk is stored: its checksums, and how it is compressed. Clones are cheap.
#[derive(Debug, Clone, Default)]
pub struct Form(Kept);

#[derive(Debug, Clone, Default)]
enum Kept {
    #[default]
    Nothing,
    /// The one checksum of a chunk of one block that is stored as it is.
    Sum(u64),
    Blocks(Arc<Blocks>),
}

#[derive(Debug)]
struct Blocks {
    sums: Option<Checksums>,
    packed: Option<Packed>,
}

/// Why stored bytes are not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// A block has another checksum.
    Sum(Mismatch),
    /// A block cannot be decompressed.
    Code(Undecodable),
}

impl Bad {
    /// Returns which block it is.
    pub fn block(&self) -> u32 {
        match self {
            Bad::Sum(Mismatch { block, .. }) | Bad::Code(Undecodable { block }) => *block,
        }
    }
}

impl Form {
    /// Takes note of checksums (of the stored bytes) and of how they are compressed.
    pub fn new(sums: Option<Checksums>, packed: Option<Packed>) -> Self {
        Form(match (sums, packed) {
            (None, None) => Kept::Nothing,
            (Some(sums), None) if sums.as_slice().len() == 1 => Kept::Sum(sums.as_slice()[0]),
            (sums, packed) => Kept::Blocks(Arc::new(Blocks { sums, packed })),
        })
    }

    /// Takes note of the checksum of a chunk of one block.
    pub(crate) fn of_one(sum: u64) -> Self {
        Form(Kept::Sum(sum))
    }

    /// Returns the checksum if it is all there is to note.
    pub(crate) fn only_sum(&self) -> Option<u64> {
        match self.0 {
            Kept::Sum(sum) => Some(sum),
            Kept::Nothing | Kept::Blocks(_) => None,
        }
    }

    /// Returns how many bytes are stored of a chunk of `bytes`.
    pub fn stored_bytes(&self, bytes: u64) -> u64 {
        self.packed().map_or(bytes, Packed::stored_bytes)
    }

    /// Returns where a block begins in the stored bytes.
    pub fn stored_offset(&self, block: u32) -> u64 {
        let raw = u64::from(block) * BLOCK_BYTES as u64;
        self.packed().map_or(raw, |packed| packed.stored_offset(block))
    }

    /// Returns whether they are compressed.
    pub fn is_packed(&self) -> bool {
        self.packed().is_some()
    }

    /// Returns whether there is anything to do before they can be used.
    pub fn is_work(&self) -> bool {
        !matches!(self.0, Kept::Nothing)
    }

    fn packed(&self) -> Option<&Packed> {
        match &self.0 {
            Kept::Blocks(blocks) => blocks.packed.as_ref(),
            Kept::Nothing | Kept::Sum(_) => None,
        }
    }

    /// Checks the stored bytes at the start of `frame`, which is as long as the chunk, and makes it
    /// the chunk, in place.
    ///
    /// # Errors
    /// The first block that is not what was written.
    pub fn restore(&self, frame: &mut [u8], scratch: &mut Scratch) -> Result<(), Bad> {
        match &self.0 {
            Kept::Nothing => Ok(()),
            Kept::Sum(sum) => Checksums::one(*sum).verify(frame).map_err(Bad::Sum),
            Kept::Blocks(blocks) => blocks.restore(frame, scratch),
        }
    }
}

impl Blocks {
    fn restore(&self, frame: &mut [u8], scratch: &mut Scratch) -> Result<(), Bad> {
        match (&self.sums, &self.packed) {
            (Some(sums), Some(packed)) => sums.verify_parts(packed.parts(frame)),
            (Some(sums), None) => sums.verify(frame),
            (None, _) => Ok(()),
        }
        .map_err(Bad::Sum)?;
        let packed = self.packed.as_ref();
        packed.map_or(Ok(()), |p| p.unpack_in_place(frame, scratch)).map_err(Bad::Code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_two_words_and_finds_what_changed() {
        assert_eq!(size_of::<Option<Form>>(), 16);
        let mut scratch = Scratch::default();
        for len in [0, 1, 4096, BLOCK_BYTES + 1] {
            let mut bytes = vec![3; len];
            let form = Form::new(Some(Checksums::of(&bytes)), None);
            assert_eq!(form.restore(&mut bytes, &mut scratch), Ok(()));
            assert_eq!(form.stored_bytes(len as u64), len as u64);
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
                assert!(matches!(form.restore(&mut bytes, &mut scratch), Err(Bad::Sum(_))));
            }
        }
        assert!(!Form::default().is_work());
    }
}
