//! Which path gets a chunk's bytes.

mod whole;

pub(crate) use whole::{Candidate, Choice, Whole, shares};
