//! What the store knows of its objects and their chunks; metadata only, all of it in memory.

mod chunk;
mod key;
mod object;

pub use chunk::Waits;
pub(crate) use chunk::{Cell, Chunk, DiskCopy, FrameSlot, Granted, Reply, Waiter};
pub use key::Key;
pub(crate) use object::{Catalog, Object};
