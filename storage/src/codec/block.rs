//! The block: the unit of checksums and of compression inside a chunk.

use super::stream::copy_past_cache;

/// Bytes of one block; the last block of a chunk may be shorter.
pub const BLOCK_BYTES: usize = 256 << 10;

/// What is taken up at a time, in bytes: it stays in the first cache between two passes over it.
pub(super) const PIECE_BYTES: usize = 16 << 10;

/// A copy of so many bytes leaves little of itself in the cache that is near, whichever way it is made.
const PAST_CACHE_BYTES: usize = 1 << 20;

/// Copies `from` to `into`, which is as long.
pub(crate) fn copy(from: &[u8], into: &mut [u8]) {
    debug_assert_eq!(from.len(), into.len());
    if from.len() < PAST_CACHE_BYTES {
        into.copy_from_slice(from);
    } else {
        copy_past_cache(from, into);
    }
}

/// Returns the blocks of `bytes` in order.
pub(super) fn blocks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(BLOCK_BYTES)
}
