//! A chunk as it is stored when it is compressed: every block by itself, one behind the other, and
//! the table of their lengths, which is kept in the metadata.

use std::fmt;
use std::ops::Range;

use lz4_flex::block::CompressTable;

use super::block::{BLOCK_BYTES, blocks};
use super::lz4;
use super::shuffle::{shuffle, unshuffle};

/// What is done to the bytes of a block that shrinks by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// lz4.
    Lz4,
    /// The byte planes of elements of `width` bytes, then lz4.
    ShuffledLz4 {
        /// Bytes of one element.
        width: u8,
    },
}

/// How a chunk's blocks are stored. A block as long as it is raw is stored raw; none is longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    encoding: Encoding,
    lengths: Box<[u32]>,
}

/// The first block found whose stored bytes cannot be decompressed to its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undecodable {
    /// The block's index in the chunk.
    pub block: u32,
}

/// Memory that packing and unpacking work in; grows to some two blocks and is then reused.
pub struct Scratch {
    planes: Vec<u8>,
    out: Vec<u8>,
    table: CompressTable,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch { planes: Vec::new(), out: Vec::new(), table: CompressTable::large() }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

impl Scratch {
    /// Returns the block compressed, if that makes it shorter.
    pub(super) fn encode(&mut self, encoding: Encoding, block: &[u8]) -> Option<&[u8]> {
        let from = match encoding {
            Encoding::Lz4 => block,
            Encoding::ShuffledLz4 { width } => {
                let planes = grown(&mut self.planes, block.len());
                shuffle(width, block, planes);
                planes
            }
        };
        let len = lz4::compress(from, &mut self.out, &mut self.table);
        if len < block.len() { self.out.get(..len) } else { None }
    }

    /// Fills `into` from the compressed block in `out[..len]`.
    fn decode(
        &mut self,
        encoding: Encoding,
        len: usize,
        into: &mut [u8],
    ) -> Result<(), lz4::Malformed> {
        match encoding {
            Encoding::Lz4 => lz4::decompress(&self.out[..len], into),
            Encoding::ShuffledLz4 { width } => {
                let planes = grown(&mut self.planes, into.len());
                lz4::decompress(&self.out[..len], planes)?;
                unshuffle(width, planes, into);
                Ok(())
            }
        }
    }
}

fn grown(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if memory.len() < len {
        memory.resize(len, 0);
    }
    &mut memory[..len]
}

impl Packed {
    /// Compresses `bytes` block by block into the start of `into`, or returns `None` when that is
    /// too short. One pass over memory; allocates the table alone.
    pub fn pack(
        bytes: &[u8],
        encoding: Encoding,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> Option<Packed> {
        let mut lengths = Vec::with_capacity(bytes.len().div_ceil(BLOCK_BYTES));
        let mut at = 0;
        for block in blocks(bytes) {
            let stored = scratch.encode(encoding, block).unwrap_or(block);
            into.get_mut(at..at + stored.len())?.copy_from_slice(stored);
            lengths.push(stored.len() as u32);
            at += stored.len();
        }
        Some(Packed { encoding, lengths: lengths.into() })
    }

    /// Decompresses the stored bytes that stand at the start of `chunk` into all of `chunk`.
    ///
    /// It goes from the last block to the first. Block `i` is stored at the sum of the lengths
    /// before it, and as no block is stored longer than it is, that sum is at most where block `i`
    /// belongs. So what block `i` overwrites is at most its own stored bytes (copied out first) and
    /// those of later blocks, which are in their places already; never those of an earlier one.
    ///
    /// # Errors
    /// [`Undecodable`] naming the first block found; the bytes of `chunk` are unspecified then.
    pub fn unpack_in_place(
        &self,
        chunk: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Undecodable> {
        self.check(chunk.len())?;
        let mut end = self.stored_bytes() as usize;
        for (index, len) in self.lengths.iter().enumerate().rev() {
            let (len, place) = (*len as usize, place(index, chunk.len()));
            let start = end - len;
            if len == place.len() {
                chunk.copy_within(start..end, place.start);
            } else {
                grown(&mut scratch.out, len).copy_from_slice(&chunk[start..end]);
                scratch
                    .decode(self.encoding, len, &mut chunk[place])
                    .map_err(|lz4::Malformed| Undecodable { block: index as u32 })?;
            }
            end = start;
        }
        Ok(())
    }

    /// Checks that this can be the table of a chunk of `bytes`: so many blocks, none too long.
    fn check(&self, bytes: usize) -> Result<(), Undecodable> {
        let whole = self.lengths.len() == bytes.div_ceil(BLOCK_BYTES);
        let long = |(index, len): (usize, &u32)| *len as usize > place(index, bytes).len();
        match self.lengths.iter().enumerate().position(long) {
            Some(block) => Err(Undecodable { block: block as u32 }),
            None if !whole => Err(Undecodable { block: self.lengths.len() as u32 }),
            None => Ok(()),
        }
    }

    /// Returns the length of all stored blocks together, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.lengths.iter().map(|len| u64::from(*len)).sum()
    }

    /// Returns where a block begins in the stored bytes.
    pub fn stored_offset(&self, block: u32) -> u64 {
        self.lengths.iter().take(block as usize).map(|len| u64::from(*len)).sum()
    }

    /// Returns the stored bytes of each block, given those of all; what is missing is cut off.
    pub fn parts<'a>(&self, stored: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.lengths.iter().scan(stored, |left, len| {
            let (part, rest) = left.split_at((*len as usize).min(left.len()));
            *left = rest;
            Some(part)
        })
    }

    /// Returns how much memory the table takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.lengths) as u64
    }
}

/// Returns where block `index` belongs in a chunk of `bytes`; empty beyond its end.
fn place(index: usize, bytes: usize) -> Range<usize> {
    let start = index.saturating_mul(BLOCK_BYTES).min(bytes);
    start..start.saturating_add(BLOCK_BYTES).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ENCODINGS: [Encoding; 5] = [
        Encoding::Lz4,
        Encoding::ShuffledLz4 { width: 1 },
        Encoding::ShuffledLz4 { width: 2 },
        Encoding::ShuffledLz4 { width: 4 },
        Encoding::ShuffledLz4 { width: 8 },
    ];

    /// Returns `len` bytes whose parts compress differently; `mix` says how.
    fn bytes(len: usize, mix: u64) -> Vec<u8> {
        let mut state = mix | 1;
        let one = |i: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match (mix >> (2 * (i / 100_000) % 64)) & 3 {
                0 => 0,
                1 => (state >> 56) as u8,
                2 if i % 4 == 3 => 0x3F,
                2 => (state >> 60) as u8,
                _ => (i / 9) as u8,
            }
        };
        (0..len).map(one).collect()
    }

    fn pack(bytes: &[u8], encoding: Encoding) -> (Packed, Vec<u8>) {
        let mut into = vec![0; bytes.len()];
        let packed = Packed::pack(bytes, encoding, &mut into, &mut Scratch::default()).unwrap();
        into.truncate(packed.stored_bytes() as usize);
        (packed, into)
    }

    fn unpack(packed: &Packed, stored: &[u8], len: usize) -> Result<Vec<u8>, Undecodable> {
        let mut chunk = vec![0xEE; len];
        let fits = stored.len().min(len);
        chunk[..fits].copy_from_slice(&stored[..fits]);
        packed.unpack_in_place(&mut chunk, &mut Scratch::default())?;
        Ok(chunk)
    }

    #[test]
    fn every_length_and_content_comes_back() {
        const B: usize = BLOCK_BYTES;
        for len in [0, 1, 5, 4096, B - 1, B, B + 1, 3 * B, 5 * B - 3] {
            for mix in [0, 0x5555_5555_5555_5555, 0xAAAA_AAAA_AAAA_AAAA, 0x1234_5678_9ABC_DEF1] {
                let bytes = bytes(len, mix);
                for encoding in ENCODINGS {
                    let (packed, stored) = pack(&bytes, encoding);
                    assert!(stored.len() <= len);
                    assert_eq!(unpack(&packed, &stored, len).unwrap(), bytes, "{len} {mix}");
                    let parts: usize = packed.parts(&stored).map(<[u8]>::len).sum();
                    assert_eq!(parts, stored.len());
                }
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_stored_as_it_is() {
        let noise = bytes(3 * BLOCK_BYTES + 7, 0x5555_5555_5555_5555);
        let (packed, stored) = pack(&noise, Encoding::ShuffledLz4 { width: 4 });
        assert_eq!(stored, noise);
        assert_eq!(unpack(&packed, &stored, noise.len()).unwrap(), noise);
        let zeros = vec![0; 3 * BLOCK_BYTES];
        assert!(pack(&zeros, Encoding::Lz4).1.len() < zeros.len() / 100);
    }

    #[test]
    fn too_little_room_is_no_result() {
        let noise = bytes(2 * BLOCK_BYTES, 0x5555_5555_5555_5555);
        let mut into = vec![0; noise.len() - 1];
        let packed = Packed::pack(&noise, Encoding::Lz4, &mut into, &mut Scratch::default());
        assert_eq!(packed, None);
    }

    #[test]
    fn a_table_of_another_chunk_is_refused() {
        let (packed, stored) = pack(&bytes(3 * BLOCK_BYTES, 0), Encoding::Lz4);
        for len in [0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES - 1, 4 * BLOCK_BYTES] {
            assert!(unpack(&packed, &stored, len).is_err(), "{len}");
        }
        let lengths = vec![u32::MAX; 3].into();
        let absurd = Packed { encoding: Encoding::Lz4, lengths };
        assert_eq!(unpack(&absurd, &stored, 3 * BLOCK_BYTES), Err(Undecodable { block: 0 }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn random_contents_come_back(len in 0usize..4 * BLOCK_BYTES, mix: u64, which in 0usize..5) {
            let bytes = bytes(len, mix);
            let (packed, stored) = pack(&bytes, ENCODINGS[which]);
            prop_assert_eq!(unpack(&packed, &stored, len).unwrap(), bytes);
        }

        #[test]
        fn corrupted_bytes_are_an_error_or_other_bytes_and_never_a_panic(
            mix: u64,
            which in 0usize..5,
            hits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..20),
        ) {
            let bytes = bytes(2 * BLOCK_BYTES + 999, mix);
            let (packed, mut stored) = pack(&bytes, ENCODINGS[which]);
            for (at, value) in hits {
                let at = at % stored.len();
                stored[at] = value;
            }
            if let Err(error) = unpack(&packed, &stored, bytes.len()) {
                prop_assert!(error.block < 3);
            }
        }
    }
}
