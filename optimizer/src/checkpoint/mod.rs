//! Checkpoints: one safetensors file per rank (docs/format.md), streamed, from which the same bits go
//! on in any other cut of the model: other subgroups, precisions, shards or numbers of ranks.
//!
//! `header` says what is in a file and `tensors` how its tensors are called. `export` writes. `source`
//! reads blocks of one file and compares their checksums, `merge` takes several files for one
//! checkpoint and refuses what does not fit, `reshard` says which part of which file an element comes
//! from, `import` takes all of it. `restore` takes state from memory instead. `overwrite` puts into place
//! what either brings.

mod export;
mod header;
mod import;
mod merge;
mod overwrite;
mod reshard;
mod restore;
mod source;
mod tensors;

pub use restore::StateSource;
