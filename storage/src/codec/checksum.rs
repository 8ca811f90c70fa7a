//! Checksums per block: taken when a chunk is written, compared when it is read back.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

use super::block::{BLOCK_BYTES, PIECE_BYTES, blocks};
use super::stream::request_after;

/// Memory is requested ahead in pieces of so many bytes. For longer ones a core would wait until it has
/// places for all their lines (4 KiB take a quarter longer), for shorter ones the calls take longer.
const REQUEST_BYTES: usize = 512;

/// What is at most so long is over before a request would be answered.
const SHORT_BYTES: usize = 4 << 10;

/// The xxh3-64 checksums of a chunk's blocks, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksums(Box<[u64]>);

/// The first block whose bytes are not those that were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The block's index in the chunk.
    pub block: u32,
    /// The checksum taken at the write.
    pub expected: u64,
    /// The checksum of what was read.
    pub actual: u64,
}

impl Checksums {
    /// Returns the checksums of `bytes`; one pass over memory.
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_parts(blocks(bytes))
    }

    /// Returns the checksums of blocks of any length; one pass over memory.
    pub fn of_parts(parts: impl Iterator<Item: AsRef<[u8]>>) -> Self {
        Checksums(parts.map(|part| checksum(part.as_ref())).collect())
    }

    /// Copies `from` to `into`, which is as long, and returns the checksums of what is in `into`
    /// then; one pass over memory, which costs little more than the copy.
    pub fn of_copy(from: &[u8], into: &mut [u8]) -> Self {
        debug_assert_eq!(from.len(), into.len());
        Checksums(blocks(from).zip(into.chunks_mut(BLOCK_BYTES)).map(sum_of_copy).collect())
    }

    /// Checks `bytes` against these checksums; one pass over memory.
    ///
    /// # Errors
    /// The first block that differs. A block too many or too few differs too.
    pub fn verify(&self, bytes: &[u8]) -> Result<(), Mismatch> {
        self.verify_parts(blocks(bytes))
    }

    /// As [`Checksums::verify`], for blocks of any length.
    ///
    /// # Errors
    /// As [`Checksums::verify`].
    pub fn verify_parts(&self, parts: impl Iterator<Item: AsRef<[u8]>>) -> Result<(), Mismatch> {
        let mut expected = self.0.iter().copied();
        let mut index = 0;
        for block in parts {
            let (expected, actual) = (expected.next(), checksum(block.as_ref()));
            if expected != Some(actual) {
                return Err(Mismatch { block: index, expected: expected.unwrap_or(0), actual });
            }
            index += 1;
        }
        expected
            .next()
            .map_or(Ok(()), |expected| Err(Mismatch { block: index, expected, actual: 0 }))
    }

    /// Returns the checksum of the only block of a chunk as checksums.
    pub(super) fn one(sum: u64) -> Self {
        Checksums(Box::new([sum]))
    }

    /// Returns them in order.
    pub(super) fn as_slice(&self) -> &[u64] {
        &self.0
    }

    /// Returns how much memory these checksums take, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }
}

/// Returns the xxh3-64 of `bytes`, which are requested of memory ahead of the pass over them.
pub fn checksum(bytes: &[u8]) -> u64 {
    if bytes.len() <= SHORT_BYTES {
        return XxHash3_64::oneshot(bytes);
    }
    let mut hasher = XxHash3_64::new();
    for piece in bytes.chunks(REQUEST_BYTES) {
        request_after(piece);
        hasher.write(piece);
    }
    hasher.finish()
}

fn sum_of_copy((from, into): (&[u8], &mut [u8])) -> u64 {
    let mut hasher = XxHash3_64::new();
    for (from, into) in from.chunks(PIECE_BYTES).zip(into.chunks_mut(PIECE_BYTES)) {
        into.copy_from_slice(from);
        hasher.write(into);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::BLOCK_BYTES;

    #[test]
    fn every_flipped_byte_is_found_in_its_block() {
        let mut bytes: Vec<u8> = (0..BLOCK_BYTES * 2 + 77).map(|i| (i * 7) as u8).collect();
        let sums = Checksums::of(&bytes);
        assert_eq!(sums.verify(&bytes), Ok(()));
        for at in (0..bytes.len()).step_by(10_007) {
            bytes[at] ^= 0x10;
            assert_eq!(sums.verify(&bytes).unwrap_err().block as usize, at / BLOCK_BYTES);
            bytes[at] ^= 0x10;
        }
        assert_eq!(sums.verify(&bytes[..BLOCK_BYTES]).unwrap_err().block, 1);
        bytes.extend([0; BLOCK_BYTES]);
        assert_eq!(sums.verify(&bytes).unwrap_err().block, 2);
        assert_eq!(Checksums::of(&[]).verify(&[]), Ok(()));
    }

    #[test]
    fn by_pieces_or_while_copying_they_are_the_checksums_of_whole_blocks() {
        for len in [
            0,
            1,
            SHORT_BYTES,
            SHORT_BYTES + 1,
            SHORT_BYTES + REQUEST_BYTES,
            PIECE_BYTES,
            PIECE_BYTES + 1,
            BLOCK_BYTES,
            2 * BLOCK_BYTES + 70_001,
        ] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
            let whole: Vec<u64> = blocks(&bytes).map(XxHash3_64::oneshot).collect();
            let mut copy = vec![0; len];
            assert_eq!(Checksums::of_copy(&bytes, &mut copy).as_slice(), whole, "{len}");
            assert_eq!(Checksums::of(&bytes).as_slice(), whole, "{len}");
            assert_eq!(copy, bytes);
        }
    }
}
