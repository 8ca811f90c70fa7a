//! Checkpoints: one safetensors file per rank (docs/format.md), streamed, from which the same bits go
//! on in any other cut of the model: other subgroups, precisions, shards or numbers of ranks.
//!
//! `header` says what is in a file and `tensors` how its tensors are called. `export` writes. `source`
//! reads blocks of one file and compares their checksums, `merge` takes several files for one
//! checkpoint and refuses what does not fit, `reshard` says which part of which file an element comes
//! from, `import` puts all of it into place.

mod checksum;
mod export;
mod header;
mod import;
mod merge;
mod reshard;
mod source;
mod tensors;
