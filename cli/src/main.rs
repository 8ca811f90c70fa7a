//! The `tensortier` program.

fn main() {}
