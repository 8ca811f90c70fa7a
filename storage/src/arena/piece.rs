//! A committed piece of the arena as memory that a device can page-lock.
#![allow(unsafe_code)]

use tensortier_gpu::HostMemory;

use super::Arena;

/// A part of committed memory. It keeps the arena and with it the mapping, whether frames
/// use it or not.
#[derive(Debug)]
pub(crate) struct Piece {
    arena: Arena,
    start: u64,
    bytes: u64,
}

impl Piece {
    /// Returns the piece of so many committed bytes at `start`.
    pub(super) fn new(arena: Arena, start: u64, bytes: u64) -> Self {
        Piece { arena, start, bytes }
    }

    /// Returns where it ends in the arena, in bytes.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

// SAFETY: the region is mapped at one place until the arena ends, which the piece keeps, and what was
// handed out as a piece stays committed (`State::kept`).
unsafe impl HostMemory for Piece {
    fn start(&self) -> *const u8 {
        self.arena.region().address(self.start)
    }

    fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::arena::GRANULE;

    /// Returns whether the kernel has memory mapped at an address.
    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let bound = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let mut ranges = maps.lines().filter_map(|line| line.split(' ').next()?.split_once('-'));
        ranges.any(|(from, to)| (bound(from)..bound(to)).contains(&address))
    }

    #[test]
    fn pieces_are_what_is_committed_and_keep_it_mapped() {
        let piece_bytes = 64 << 20;
        let arena = Arena::new(piece_bytes + 3 * GRANULE).unwrap();
        assert_eq!(arena.pieces_from(0).len(), 0);
        let first = arena.try_alloc(GRANULE).unwrap().unwrap();
        let lengths = |from| arena.pieces_from(from).iter().map(|p| p.bytes).collect::<Vec<_>>();
        assert_eq!(lengths(0), [piece_bytes]);
        let second = arena.try_alloc(piece_bytes).unwrap().unwrap();
        assert_eq!(lengths(0), [piece_bytes, 3 * GRANULE]);
        assert_eq!(lengths(piece_bytes), [3 * GRANULE]);
        assert_eq!(arena.usage().committed, piece_bytes + 3 * GRANULE);
        let piece = arena.pieces_from(0).remove(0);
        let shared = Arc::downgrade(&arena.0);
        drop((first, second, arena));
        let (start, end) = (piece.start().addr(), piece.start().addr() + piece.bytes() - 1);
        assert!(is_mapped(start) && is_mapped(end));
        drop(piece);
        assert!(shared.upgrade().is_none());
    }
}
