//! Whether compressing a chunk pays, decided on a sample of it.

use std::fmt;

use crate::arena::{GRANULE, granules_up};

use super::block::BLOCK_BYTES;
use super::packed::{Encoding, Scratch};

/// What is compressed on its way to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Nothing.
    #[default]
    Off,
    /// Chunks that lose at least a tenth of the space they take by it: each 256 KiB block by lz4, its
    /// byte planes apart where the elements are wider than a byte and that is shorter.
    Lz4,
}

/// What compressing a chunk promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// What served best.
    pub encoding: Encoding,
    /// Memory that the stored bytes need, in bytes, with something to spare; whole granules, and no
    /// more than still pays.
    pub room_bytes: u64,
}

/// How many places of a chunk are tried, evenly spread.
const SAMPLES: usize = 8;

/// How much is tried at each place: what lz4 looks back.
const SAMPLE_BYTES: usize = 64 << 10;

/// Returns the most that a chunk of `bytes` may take stored for compression to pay, in bytes, whole
/// granules: at least a tenth less than raw. Zero when nothing can.
fn most_stored_bytes(bytes: u64) -> u64 {
    let raw = granules_up(bytes);
    (raw - raw.div_ceil(10)) / GRANULE * GRANULE
}

impl Trial {
    /// Tries `bytes`, whose elements have `width` bytes, on at most half a MiB of them. Returns
    /// `None` when compressing them does not seem to pay.
    pub fn of(bytes: &[u8], width: u8, scratch: &mut Scratch) -> Option<Trial> {
        let most = most_stored_bytes(bytes.len() as u64);
        if most == 0 {
            return None;
        }
        let (mut raw, mut plain, mut shuffled) = (0, 0, 0);
        for sample in samples(bytes) {
            let mut len =
                |encoding| scratch.encode(encoding, sample).map_or(sample.len(), <[u8]>::len);
            raw += sample.len() as u64;
            plain += len(Encoding::Lz4) as u64;
            if width > 1 {
                shuffled += len(Encoding::ShuffledLz4 { width }) as u64;
            }
        }
        let (encoding, stored) = if width > 1 && shuffled < plain {
            (Encoding::ShuffledLz4 { width }, shuffled)
        } else {
            (Encoding::Lz4, plain)
        };
        let expected = (u128::from(stored) * bytes.len() as u128 / u128::from(raw)) as u64;
        // A sample may be luckier than the rest.
        let room_bytes = granules_up(expected + expected / 8 + GRANULE).min(most);
        (expected <= most).then_some(Trial { encoding, room_bytes })
    }
}

/// Returns the starts of some blocks, the first and the last among them; all of a short chunk.
fn samples(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let blocks = bytes.len().div_ceil(BLOCK_BYTES);
    let count = blocks.min(SAMPLES);
    let len = if blocks == 1 { BLOCK_BYTES } else { SAMPLE_BYTES };
    (0..count).map(move |i| {
        let block = if count > 1 { i * (blocks - 1) / (count - 1) } else { 0 };
        let start = block * BLOCK_BYTES;
        &bytes[start..(start + len).min(bytes.len())]
    })
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Compression::Off => "off",
            Compression::Lz4 => "lz4 where it pays",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> impl Iterator<Item = u8> {
        let mut state = 1u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(len)
    }

    fn trial(bytes: &[u8], width: u8) -> Option<Trial> {
        Trial::of(bytes, width, &mut Scratch::default())
    }

    #[test]
    fn only_what_loses_a_tenth_of_its_granules_pays() {
        assert_eq!(most_stored_bytes(0), 0);
        assert_eq!(most_stored_bytes(GRANULE), 0);
        assert_eq!(most_stored_bytes(GRANULE + 1), GRANULE);
        assert_eq!(most_stored_bytes(10 * GRANULE), 9 * GRANULE);
        assert_eq!(most_stored_bytes(11 * GRANULE), 9 * GRANULE);
        assert_eq!(trial(&[0; 4096], 4), None);
        assert_eq!(trial(&[], 4), None);
        let bytes: Vec<u8> = noise(1 << 20).collect();
        assert_eq!(trial(&bytes, 4), None);
        let zeros = trial(&vec![0; 1 << 20], 1).unwrap();
        assert_eq!(zeros.encoding, Encoding::Lz4);
        assert!(zeros.room_bytes <= 4 * GRANULE);
    }

    #[test]
    fn shuffling_is_chosen_where_it_is_shorter() {
        // Random low bytes under one exponent: lz4 alone finds nothing.
        let floats: Vec<u8> = noise(1 << 20)
            .enumerate()
            .map(|(i, byte)| [byte, byte, byte & 1, 0x3F][i % 4])
            .collect();
        let best = trial(&floats, 4).unwrap();
        assert_eq!(best.encoding, Encoding::ShuffledLz4 { width: 4 });
        let plain = trial(&floats, 1);
        assert!(plain.is_none_or(|plain| plain.room_bytes > best.room_bytes));
    }

    #[test]
    fn a_sample_reaches_from_the_first_block_to_the_last() {
        let bytes = vec![0; 100 * BLOCK_BYTES + 5];
        let lens: Vec<_> = samples(&bytes).map(<[u8]>::len).collect();
        assert_eq!(lens.len(), SAMPLES);
        assert_eq!((lens[0], lens[SAMPLES - 1]), (SAMPLE_BYTES, 5));
    }
}
