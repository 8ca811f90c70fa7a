//! The block: the unit of checksums and of compression inside a chunk.

/// Bytes of one block; the last block of a chunk may be shorter.
pub const BLOCK_BYTES: usize = 256 << 10;

/// Returns the blocks of `bytes` in order.
pub(super) fn blocks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(BLOCK_BYTES)
}
