//! What metadata takes of the budget: frames leave the end of the memory for it, and the system has that
//! back. Nothing of this happens while metadata is small.

use std::ops::Range;

use crate::error::Result;

use super::{Arena, Region, State, granules_up};

/// Metadata up to this is part of what a store takes beside its budget; only what exceeds it takes
/// room from frames, so that a budget of n chunks holds n chunks.
const METADATA_FREE_BYTES: u64 = 16 << 20;

/// Memory goes back in steps of huge pages: a part of one would go back page by page, and the next
/// touch of it might make it whole again.
const STEP_BYTES: u64 = Region::HUGE_PAGE_BYTES;

impl State {
    /// Returns how much of the budget metadata takes, whole granules.
    pub(super) fn charged(&self) -> u64 {
        granules_up(self.metadata.saturating_sub(METADATA_FREE_BYTES))
    }

    /// Returns where frames must end in a region of `bytes`, so that with what metadata takes the
    /// committed part exceeds the budget by less than one step, unless it is kept for a device.
    pub(super) fn limit(&self, bytes: u64) -> u64 {
        let for_frames = bytes.saturating_sub(self.charged());
        for_frames.next_multiple_of(STEP_BYTES).max(self.kept).min(bytes)
    }

    /// Returns the committed memory that metadata takes the place of in a region of `bytes`.
    fn owed(&self, bytes: u64) -> Option<Range<u64>> {
        let owed = self.limit(bytes)..self.committed;
        (!owed.is_empty()).then_some(owed)
    }
}

impl Arena {
    /// Counts metadata that now exists, in bytes. [`Arena::on_freed`] hears of it when memory becomes
    /// owed by that.
    pub(crate) fn add_metadata(&self, bytes: u64) {
        self.add_metadata_if(bytes, |_| true);
    }

    /// As [`Arena::add_metadata`] if the budget bears it; returns whether it does.
    pub(crate) fn charge_metadata(&self, bytes: u64) -> bool {
        self.add_metadata_if(bytes, |state| state.charged() < self.0.region.bytes())
    }

    fn add_metadata_if(&self, bytes: u64, bears: impl FnOnce(&State) -> bool) -> bool {
        let mut state = self.0.state.lock();
        let size = self.0.region.bytes();
        let before = state.limit(size);
        state.metadata += bytes;
        if !bears(&state) {
            state.metadata -= bytes;
            return false;
        }
        let owes_more = state.limit(size) < before.min(state.committed);
        drop(state);
        if owes_more && let Some(call) = self.0.freed.get() {
            call();
        }
        true
    }

    /// Counts metadata that is gone, in bytes.
    pub(crate) fn remove_metadata(&self, bytes: u64) {
        let mut state = self.0.state.lock();
        state.metadata = state.metadata.saturating_sub(bytes);
    }

    /// Returns where frames must end.
    pub(crate) fn limit(&self) -> u64 {
        self.0.state.lock().limit(self.0.region.bytes())
    }

    /// Gives back to the system what is owed behind the last frame. Returns what is still owed, where
    /// no new frame will lie.
    ///
    /// # Errors
    /// [`Error::System`](crate::error::Error::System) when the system refuses: the memory then counts
    /// as committed, and can be used.
    pub(crate) fn give_back(&self) -> Result<Option<Range<u64>>> {
        // Under the lock, so that no frame is made there meanwhile.
        let mut state = self.0.state.lock();
        let size = self.0.region.bytes();
        let Some(owed) = state.owed(size) else { return Ok(None) };
        let Some(free) = state.ranges.last_run().filter(|run| run.end >= owed.end) else {
            return Ok(Some(owed));
        };
        let start = owed.start.max(free.start.next_multiple_of(STEP_BYTES));
        if start < owed.end {
            self.0.region.decommit(start, owed.end - start)?;
            state.committed = start;
            // What is locked are the first bytes, where not all of them could be.
            state.locked = state.locked.min(start);
        }
        Ok(state.owed(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::GRANULE;

    const MIB: u64 = 1 << 20;

    #[test]
    fn much_metadata_takes_room_from_frames() {
        let arena = Arena::new(4 * GRANULE).unwrap();
        assert!(arena.charge_metadata(METADATA_FREE_BYTES));
        let frame = arena.try_alloc(2 * GRANULE).unwrap().unwrap();
        assert!(arena.charge_metadata(GRANULE + 1));
        assert_eq!((arena.usage().charged, arena.usage().free()), (2 * GRANULE, 0));
        assert!(arena.try_alloc(1).unwrap().is_none());
        assert!(!arena.charge_metadata(2 * GRANULE), "something must be left for frames");
        arena.remove_metadata(1);
        assert_eq!(arena.usage().free(), GRANULE);
        drop((arena.try_alloc(1).unwrap().unwrap(), frame));
    }

    /// Returns how many bytes of an arena's memory are in memory, of a process in which other tests run.
    fn resident(arena: &Arena) -> u64 {
        let start = arena.region().address(0) as usize;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut inside, mut kib) = (false, 0);
        for line in smaps.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap();
            if let Some((from, _)) = first.split_once('-') {
                let from = usize::from_str_radix(from, 16).unwrap();
                inside = (start..start + arena.region().bytes() as usize).contains(&from);
            } else if inside && first == "Rss:" {
                kib += words.next().unwrap().parse::<u64>().unwrap();
            }
        }
        kib << 10
    }

    #[test]
    fn the_system_has_back_what_metadata_takes() {
        let arena = Arena::new(32 * MIB).unwrap();
        let mut frames: Vec<_> =
            (0..8).map(|_| arena.try_alloc(4 * MIB).unwrap().unwrap()).collect();
        frames.iter_mut().zip(1..).for_each(|(frame, number)| frame.fill(number));
        assert_eq!((arena.give_back().unwrap(), resident(&arena)), (None, 32 * MIB));
        arena.add_metadata(METADATA_FREE_BYTES + 9 * MIB);
        assert_eq!(arena.give_back().unwrap(), Some(24 * MIB..32 * MIB), "frames lie there");
        assert_eq!(resident(&arena), 32 * MIB);
        drop(frames.pop());
        assert_eq!(arena.give_back().unwrap(), Some(24 * MIB..28 * MIB));
        assert_eq!(resident(&arena), 28 * MIB);
        drop(frames.pop());
        drop(frames.remove(0));
        assert_eq!((arena.give_back().unwrap(), arena.usage().committed), (None, 24 * MIB));
        assert_eq!((arena.usage().locked, resident(&arena)), (24 * MIB, 24 * MIB));
        // 20 MiB are in use and 9 charged.
        assert_eq!(arena.usage().free(), 3 * MIB);
        assert!(arena.try_alloc(4 * MIB).unwrap().is_none());
        frames.push(arena.try_alloc(3 * MIB).unwrap().unwrap());
        assert_eq!(arena.usage().committed, 24 * MIB);
        arena.remove_metadata(9 * MIB);
        frames.push(arena.try_alloc(8 * MIB).unwrap().unwrap());
        frames.last_mut().unwrap().fill(77);
        assert_eq!((arena.usage().committed, resident(&arena)), (32 * MIB, 32 * MIB));
        for (frame, number) in frames.iter().zip(2..7) {
            assert!(frame.iter().all(|byte| *byte == number));
        }
    }

    #[test]
    fn what_may_be_page_locked_stays() {
        let arena = Arena::new(8 * MIB).unwrap();
        drop(arena.try_alloc(8 * MIB).unwrap());
        let pieces = arena.pieces_from(0);
        arena.add_metadata(METADATA_FREE_BYTES + 5 * MIB);
        let usage = arena.usage();
        assert_eq!((usage.free(), usage.largest_run), (3 * MIB, 3 * MIB));
        assert_eq!(arena.give_back().unwrap(), None);
        assert_eq!(resident(&arena), 8 * MIB);
        drop(pieces);
    }
}
