//! Benches and comparisons of tensortier.
