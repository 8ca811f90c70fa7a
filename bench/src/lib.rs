//! Benches and comparisons of tensortier: the parts that the programs in `bin/` share.

pub mod compression;
pub mod contents;
pub mod fio;
pub mod lease;
pub mod machine;
pub mod one_gib;
pub mod one_path;
pub mod one_store;
pub mod options;
pub mod overheads;
pub mod paths;
pub mod peer;
pub mod raw;
pub mod recovery;
pub mod share;
pub mod small;
pub mod soak;
pub mod table;

/// What a bench may fail with: an error of the store, of the system, or a wrong byte.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
