//! The checksum of a checkpoint's blocks and of its header.

use twox_hash::XxHash3_64;

/// Returns the checksum of a block, or of the header.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}
