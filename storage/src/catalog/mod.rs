//! What the store knows of its objects and their chunks; metadata only, all of it in memory.

mod chunk;
mod key;
mod object;

pub(crate) use chunk::{Cell, Chunk, DiskCopy, FrameSlot, Granted, Waiter, Waits};
pub use key::Key;
pub(crate) use object::{Catalog, Object};
