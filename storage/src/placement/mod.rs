//! Which path gets a chunk's bytes.

mod whole;

pub(crate) use whole::Whole;
