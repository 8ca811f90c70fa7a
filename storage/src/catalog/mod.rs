//! What the store knows of its objects and their chunks; metadata only, all of it in memory.

mod chunk;
mod disk;
mod index;
mod key;
mod layout;
mod object;

pub use chunk::Waits;
pub(crate) use chunk::{Cell, Chunk, FrameSlot, Granted, Reply, Waiter};
pub(crate) use disk::{DiskCopy, Piece};
pub(crate) use index::Catalog;
pub use key::Key;
pub(crate) use layout::Layout;
pub(crate) use object::{ChunkName, ChunkRef, Object};
