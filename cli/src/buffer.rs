//! Large anonymous buffers on huge pages: the kernels read weights and gradients at the speed of
//! memory only there.

use std::io;

use bytemuck::{AnyBitPattern, NoUninit, cast_slice, cast_slice_mut};
use memmap2::MmapMut;

/// Zeroed memory for a number of bytes, seen as elements of one type at a time.
#[derive(Debug)]
pub(crate) struct Buffer {
    map: Option<MmapMut>,
    bytes: usize,
}

impl Buffer {
    /// Maps `bytes` of zeros; pages come on first touch.
    ///
    /// # Errors
    /// What the system says when it has no address space.
    pub(crate) fn new(bytes: usize) -> io::Result<Buffer> {
        // A mapping of no bytes is refused, and needless.
        let map = if bytes == 0 { None } else { Some(MmapMut::map_anon(bytes)?) };
        if let Some(map) = &map {
            // Where the system has no huge pages to give, small ones serve as well, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Buffer { map, bytes })
    }

    /// Returns the elements.
    pub(crate) fn as_slice<T: AnyBitPattern>(&self) -> &[T] {
        self.map.as_ref().map_or(&[], |map| cast_slice(&map[..self.bytes]))
    }

    /// Returns the elements to be changed.
    pub(crate) fn as_mut_slice<T: AnyBitPattern + NoUninit>(&mut self) -> &mut [T] {
        self.map.as_mut().map_or(&mut [], |map| cast_slice_mut(&mut map[..self.bytes]))
    }
}
