//! What happens to a chunk's bytes between memory and a path: they are cut into blocks; blocks are
//! compressed where that pays; and each has a checksum of its stored bytes. Lengths and checksums are
//! kept in the metadata, never beside the data.

mod block;
mod checksum;
mod form;
mod lz4;
mod packed;
mod shuffle;
mod stream;
mod trial;

pub use block::BLOCK_BYTES;
pub(crate) use block::copy;
pub use checksum::{Checksums, Mismatch, checksum};
pub use form::{Bad, Form};
pub use packed::{Encoding, Packed, Scratch, Undecodable};
pub use trial::{Compression, Trial};
