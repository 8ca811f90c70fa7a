//! What happens to a chunk's bytes between memory and a path: they are cut into blocks, and each
//! block has a checksum that is kept in the metadata, never beside the data.

mod block;
mod checksum;

pub use block::BLOCK_BYTES;
pub use checksum::{Checksums, Mismatch};
