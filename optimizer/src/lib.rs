//! Exact, offloaded Adam and AdamW over the tensortier store.

pub mod hyper;
pub mod kernel;
