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
    /// committed part exceeds the budget by less than one step.
    pub(super) fn limit(&self, bytes: u64) -> u64 {
        let for_frames = bytes.saturating_sub(self.charged());
        for_frames.next_multiple_of(STEP_BYTES).max(self.kept).min(bytes)
    }
}

impl Arena {
    /// Counts metadata that now exists, in bytes. Returns whether the budget bears it.
    pub(crate) fn add_metadata(&self, bytes: u64) -> bool {
        let mut state = self.0.state.lock();
        let size = self.0.region.bytes();
        let before = state.limit(size);
        state.metadata += bytes;
        let limit = state.limit(size);
        let (owes, bears) = (limit < before.min(state.committed), state.charged() < size);
        drop(state);
        if owes && let Some(call) = self.0.freed.get() {
            call();
        }
        bears
    }

    /// Counts metadata that is gone, in bytes.
    pub(crate) fn remove_metadata(&self, bytes: u64) {
        let mut state = self.0.state.lock();
        state.metadata = state.metadata.saturating_sub(bytes);
    }

    /// Returns the committed memory that metadata takes the place of, if there is any: no new frame
    /// lies there.
    pub(crate) fn owed(&self) -> Option<Range<u64>> {
        let state = self.0.state.lock();
        let owed = state.limit(self.0.region.bytes())..state.committed;
        (!owed.is_empty()).then_some(owed)
    }

    /// Gives what is owed back to the system if no frame lies there; returns whether it did.
    ///
    /// # Errors
    /// [`Error::System`](crate::error::Error::System) when the system refuses; all stays as it was.
    pub(crate) fn give_back(&self) -> Result<bool> {
        // Under the lock, so that no frame is made there meanwhile.
        let mut state = self.0.state.lock();
        let owed = state.limit(self.0.region.bytes())..state.committed;
        if owed.is_empty() || state.ranges.free_in(&owed) < owed.end - owed.start {
            return Ok(false);
        }
        self.0.region.decommit(owed.start, owed.end - owed.start)?;
        state.committed = owed.start;
        state.locked = state.locked.min(owed.start);
        Ok(true)
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
        assert!(arena.add_metadata(METADATA_FREE_BYTES));
        let frame = arena.try_alloc(2 * GRANULE).unwrap().unwrap();
        assert!(arena.add_metadata(GRANULE + 1));
        assert_eq!((arena.usage().charged, arena.usage().free()), (2 * GRANULE, 0));
        assert!(arena.try_alloc(1).unwrap().is_none());
        assert!(!arena.add_metadata(2 * GRANULE), "something must be left for frames");
        arena.remove_metadata(2 * GRANULE + 1);
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
        assert_eq!((arena.owed(), resident(&arena)), (None, 32 * MIB));
        assert!(arena.add_metadata(METADATA_FREE_BYTES + 9 * MIB));
        assert_eq!(arena.owed(), Some(24 * MIB..32 * MIB));
        assert!(!arena.give_back().unwrap(), "frames lie there");
        drop(frames.pop());
        assert!(!arena.give_back().unwrap(), "one still does");
        drop(frames.pop());
        drop(frames.remove(0));
        assert!(arena.give_back().unwrap());
        assert_eq!((arena.owed(), arena.usage().committed), (None, 24 * MIB));
        assert_eq!(resident(&arena), 24 * MIB);
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
        assert!(arena.add_metadata(METADATA_FREE_BYTES + 5 * MIB));
        assert_eq!((arena.owed(), arena.usage().free()), (None, 3 * MIB));
        assert!(!arena.give_back().unwrap());
        assert_eq!(resident(&arena), 8 * MIB);
        drop(pieces);
    }
}
