//! Benches and comparisons of tensortier.

pub mod soak;
