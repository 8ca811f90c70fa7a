//! A pure allocator of byte ranges: best fit, lowest address first, neighbours merged at once.
//! Used for frames of the arena and for extents of a segment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Hands out disjoint ranges of `0..size`. Not thread-safe; touches no memory.
#[derive(Debug, Clone)]
pub(crate) struct RangeAllocator {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    free: u64,
}

impl RangeAllocator {
    /// Returns an allocator in which all of `0..size` is free.
    pub(crate) fn new(size: u64) -> Self {
        let mut allocator =
            RangeAllocator { by_start: BTreeMap::new(), by_len: BTreeSet::new(), free: 0 };
        allocator.insert(0, size);
        allocator.free = size;
        allocator
    }

    /// Returns how much is free in all.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Returns the length of the longest free range below `limit`.
    pub(crate) fn largest_run(&self, limit: u64) -> u64 {
        let mut longest = 0;
        // Longest first, until what is left is no longer than what was found.
        for (len, start) in self.by_len.iter().rev() {
            if *len <= longest {
                break;
            }
            longest = longest.max((start + len).min(limit).saturating_sub(*start));
        }
        longest
    }

    /// Takes `len` from the shortest free range that holds it, or returns `None`.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        self.take_where(len, u64::MAX, &(0..0))
    }

    /// Takes `len` below `limit` and outside `avoid`, shortest fitting free range first, or returns
    /// `None`.
    pub(crate) fn take_where(&mut self, len: u64, limit: u64, avoid: &Range<u64>) -> Option<u64> {
        let (run, start, at) = self.by_len.range((len, 0)..).find_map(|(run, start)| {
            let end = (start + run).min(limit);
            let fits = |at: u64| at.saturating_add(len) <= end;
            let below = fits(*start) && (start + len <= avoid.start || *start >= avoid.end);
            let at = if below || avoid.is_empty() { *start } else { avoid.end.max(*start) };
            fits(at).then_some((*run, *start, at))
        })?;
        self.cut(start, run, at, len);
        Some(at)
    }

    /// Takes the whole free range that ends at `end` and returns its start, or `None`.
    pub(crate) fn take_before(&mut self, end: u64) -> Option<u64> {
        let (start, len) = self.by_start.range(..end).next_back().map(|(s, l)| (*s, *l))?;
        if start + len != end {
            return None;
        }
        self.remove(start, len);
        self.free -= len;
        Some(start)
    }

    /// Returns the free range at the highest address.
    pub(crate) fn last_run(&self) -> Option<Range<u64>> {
        self.by_start.last_key_value().map(|(start, len)| *start..start + len)
    }

    /// Returns the free ranges in order.
    pub(crate) fn runs(&self) -> Vec<Range<u64>> {
        self.by_start.iter().map(|(start, len)| *start..start + len).collect()
    }

    /// Returns a range that was taken; it merges with free neighbours.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + len);
        self.free += len;
        let before = self.by_start.range(..start).next_back().map(|(s, l)| (*s, *l));
        if let Some((s, l)) = before {
            debug_assert!(s + l <= start, "range {start}+{len} given twice");
            if s + l == start {
                self.remove(s, l);
                start = s;
            }
        }
        if let Some(l) = self.by_start.get(&end).copied() {
            self.remove(end, l);
            end += l;
        }
        self.insert(start, end - start);
    }

    /// Returns how much of `range` is free.
    pub(crate) fn free_in(&self, range: &Range<u64>) -> u64 {
        let first = self.by_start.range(..=range.start).next_back();
        let rest =
            self.by_start.range(range.start.saturating_add(1)..range.end.max(range.start + 1));
        first
            .into_iter()
            .chain(rest)
            .map(|(start, len)| {
                (start + len).min(range.end).saturating_sub((*start).max(range.start))
            })
            .sum()
    }

    fn cut(&mut self, start: u64, run: u64, at: u64, len: u64) {
        self.remove(start, run);
        self.insert(start, at - start);
        self.insert(at + len, start + run - at - len);
        self.free -= len;
    }

    fn insert(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The specification: one flag per unit.
    fn check(size: usize, steps: &[(u8, u64)]) {
        let mut allocator = RangeAllocator::new(size as u64);
        let mut taken = vec![false; size];
        let mut held: Vec<(u64, u64)> = Vec::new();
        for (kind, value) in steps {
            let len = value % 9 + 1;
            match kind % 3 {
                0 | 1 => {
                    let avoid = (value / 9) % size as u64..(value / 9) % size as u64 + value % 7;
                    let limit = if *kind == 0 { size as u64 } else { value / 63 % 70 };
                    let got = if *kind == 0 {
                        allocator.take(len)
                    } else {
                        allocator.take_where(len, limit, &avoid)
                    };
                    let end = size.min(limit as usize);
                    let fits = (0..end.saturating_sub(len as usize - 1)).any(|at| {
                        (at..at + len as usize)
                            .all(|i| !taken[i] && (*kind == 0 || !avoid.contains(&(i as u64))))
                    });
                    assert_eq!(got.is_some(), fits, "{kind} {len} {avoid:?} {taken:?}");
                    if let Some(at) = got {
                        for i in at..at + len {
                            assert!(!taken[i as usize]);
                            assert!(*kind == 0 || (i < limit && !avoid.contains(&i)));
                            taken[i as usize] = true;
                        }
                        held.push((at, len));
                    }
                }
                _ if !held.is_empty() => {
                    let (at, len) = held.swap_remove(*value as usize % held.len());
                    allocator.give(at, len);
                    taken[at as usize..(at + len) as usize].fill(false);
                }
                _ => {}
            }
            let free = taken.iter().filter(|t| !**t).count() as u64;
            assert_eq!(allocator.free(), free);
            for limit in [size, *value as usize % size] {
                let below = taken[..limit].split(|t| *t);
                let longest = below.map(<[bool]>::len).max().unwrap_or(0) as u64;
                assert_eq!(allocator.largest_run(limit as u64), longest);
            }
            let part = value % 20..value % 20 + 13;
            let expect =
                taken.iter().enumerate().filter(|(i, t)| part.contains(&(*i as u64)) && !**t);
            assert_eq!(allocator.free_in(&part), expect.count() as u64);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_of_flags(
            size in 1usize..60,
            steps in prop::collection::vec((0u8..3, 0u64..10_000), 0..80),
        ) {
            check(size, &steps);
        }
    }
}
