//! Tensor files as read-only sources: safetensors, checked before a byte of a tensor is believed.

mod adopted;
mod file;
mod header;
mod map;
mod staged;
mod write;

#[cfg(test)]
mod attacks;

pub(crate) use adopted::AdoptedFile;
pub use file::{Access, TensorFile};
pub use header::{Header, MAX_HEADER_BYTES, TensorEntry, header_bytes, parse_header};
pub use write::{TensorFileWriter, TensorSpec};
