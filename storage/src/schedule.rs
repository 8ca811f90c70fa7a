//! A caller's declared accesses, and what follows from them: which chunk survives to its next use,
//! which is used how far ahead, what to read next. Pure; knows nothing of memory or paths.

use std::collections::{BTreeSet, HashMap};

use crate::id::ChunkId;

/// One declared access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The chunk.
    pub chunk: ChunkId,
    /// What it takes in memory, in bytes (whole granules).
    pub bytes: u64,
}

/// The accesses of this pass and the next. Positions count through both.
#[derive(Debug)]
pub struct Schedule {
    accesses: Vec<Access>,
    /// The bytes of all accesses before each position.
    before: Vec<u64>,
    /// For each access of this pass, whether its chunk survives to its next use.
    keep: Vec<bool>,
    uses: HashMap<ChunkId, Uses>,
    /// Chunks in memory at the start that do not survive to their first use.
    surplus: Vec<ChunkId>,
    /// One past the furthest access made so far.
    cursor: u32,
}

/// The positions at which one chunk is used, ascending, and how many of them are past.
#[derive(Debug, Default)]
struct Uses {
    positions: Vec<u32>,
    past: usize,
}

impl Uses {
    fn after(&self, position: u32) -> Option<u32> {
        let index = self.positions.partition_point(|used| *used <= position);
        self.positions.get(index).copied()
    }
}

/// What becomes of a chunk after an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stays in memory until its next use.
    Keep,
    /// It makes room at once: something used sooner needs the memory.
    Release,
    /// The schedule does not know the chunk, or not at this point.
    Unknown,
}

impl Schedule {
    /// Plans which chunks survive to their next use within `capacity` bytes, given those that
    /// `kept` says are in memory already.
    ///
    /// This is Belady's MIN (IBM Systems Journal, 1966) with bypass: whenever what is kept exceeds
    /// the capacity, the chunk used furthest in the future goes, be it the one just used. For
    /// alternating directions that keeps the longest suffix of the pass that fits; for a repeated
    /// direction it keeps a fixed set. Cost: O(n log n).
    pub fn new(
        this: Vec<Access>,
        next: Vec<Access>,
        capacity: u64,
        kept: impl Fn(ChunkId) -> bool,
    ) -> Self {
        let this_len = this.len();
        let mut accesses = this;
        accesses.extend(next);
        let mut uses: HashMap<ChunkId, Uses> = HashMap::new();
        for (position, access) in accesses.iter().enumerate() {
            uses.entry(access.chunk).or_default().positions.push(position as u32);
        }
        let keep = vec![false; this_len];
        let surplus = Vec::new();
        let before = accesses.iter().scan(0, |sum, access| {
            let before = *sum;
            *sum += access.bytes;
            Some(before)
        });
        let before = before.collect();
        let mut schedule = Schedule { accesses, before, keep, uses, surplus, cursor: 0 };
        schedule.plan(capacity, kept);
        schedule
    }

    fn plan(&mut self, capacity: u64, kept: impl Fn(ChunkId) -> bool) {
        // (next use, the access after which it is kept, bytes); at most one entry per next use.
        let mut held: BTreeSet<(u32, Option<u32>, u64)> = BTreeSet::new();
        let mut total = 0;
        for (chunk, uses) in &self.uses {
            if let Some(first) = uses.positions.first().copied().filter(|_| kept(*chunk)) {
                let bytes = self.accesses[first as usize].bytes;
                held.insert((first, None, bytes));
                total += bytes;
            }
        }
        for position in 0..self.keep.len() {
            let Access { chunk, bytes } = self.accesses[position];
            if let Some(used) = held.first().copied().filter(|held| held.0 == position as u32) {
                held.remove(&used);
                total -= used.2;
                self.mark_kept(used.1);
            }
            if let Some(next) = self.uses.get(&chunk).and_then(|uses| uses.after(position as u32)) {
                held.insert((next, Some(position as u32), bytes));
                total += bytes;
            }
            while total > capacity
                && let Some((next, after, bytes)) = held.pop_last()
            {
                total -= bytes;
                if after.is_none() {
                    self.surplus.push(self.accesses[next as usize].chunk);
                }
            }
        }
        // Uses of the next pass come before any use beyond it, so what is held here stays held.
        for (_, after, _) in held {
            self.mark_kept(after);
        }
    }

    fn mark_kept(&mut self, after: Option<u32>) {
        if let Some(after) = after {
            self.keep[after as usize] = true;
        }
    }

    /// Notes that an access to `chunk` ended and returns what becomes of the chunk.
    pub fn used(&mut self, chunk: ChunkId) -> Fate {
        let Some(uses) = self.uses.get_mut(&chunk) else { return Fate::Unknown };
        let Some(position) = uses.positions.get(uses.past).copied() else { return Fate::Unknown };
        uses.past += 1;
        self.cursor = self.cursor.max(position + 1);
        match self.keep.get(position as usize) {
            Some(true) => Fate::Keep,
            Some(false) => Fate::Release,
            None => Fate::Unknown,
        }
    }

    /// Returns one past the furthest access made so far.
    pub fn cursor(&self) -> u32 {
        self.cursor
    }

    /// Returns whether the access at `position` was made or skipped.
    pub fn is_past(&self, chunk: ChunkId, position: u32) -> bool {
        let made = |uses: &Uses| uses.positions[..uses.past].contains(&position);
        position < self.cursor || self.uses.get(&chunk).is_some_and(made)
    }

    /// Returns the position of the chunk's next use; skipped accesses do not count.
    fn next_use(&self, chunk: ChunkId) -> Option<u64> {
        let uses = self.uses.get(&chunk)?;
        let ahead = uses.positions.get(uses.past..)?;
        let next = ahead.iter().find(|position| **position >= self.cursor)?;
        Some(u64::from(*next))
    }

    /// Returns how many bytes are accessed before the chunk's next use, from where the accesses
    /// stand; `None` without one.
    pub fn bytes_ahead(&self, chunk: ChunkId) -> Option<u64> {
        let next = self.before.get(self.next_use(chunk)? as usize)?;
        let here = self.before.get(self.cursor as usize).unwrap_or(next);
        Some(next - here)
    }

    /// Returns the chunks that were in memory at the start and do not survive to their first use.
    pub fn surplus(&self) -> &[ChunkId] {
        &self.surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ObjectId;
    use proptest::prelude::*;
    use std::collections::BTreeSet as Set;

    fn access(id: usize, bytes: u64) -> Access {
        Access { chunk: ChunkId { object: ObjectId(id as u64), index: 0 }, bytes }
    }

    /// Runs passes of the given orders; returns for each the loads and the kept set after it.
    fn run(sizes: &[u64], orders: &[Vec<usize>], capacity: u64) -> Vec<(usize, Set<usize>)> {
        let mut kept: Set<usize> = Set::new();
        let mut out = Vec::new();
        for pair in orders.windows(2) {
            let list = |order: &[usize]| order.iter().map(|i| access(*i, sizes[*i])).collect();
            let mut schedule = Schedule::new(list(&pair[0]), list(&pair[1]), capacity, |chunk| {
                kept.contains(&(chunk.object.0 as usize))
            });
            let mut loads = 0;
            for i in &pair[0] {
                loads += usize::from(!kept.remove(i));
                assert!(schedule.next_use(access(*i, 0).chunk).is_some());
                if schedule.used(access(*i, 0).chunk) == Fate::Keep {
                    kept.insert(*i);
                }
                assert!(kept.iter().map(|i| sizes[*i]).sum::<u64>() <= capacity);
            }
            assert_eq!(schedule.surplus(), &[]);
            out.push((loads, kept.clone()));
        }
        out
    }

    fn longest_suffix(sizes: &[u64], order: &[usize], capacity: u64) -> Set<usize> {
        let mut left = capacity;
        let fits = order.iter().rev().take_while(|i| match left.checked_sub(sizes[**i]) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
        fits.copied().collect()
    }

    proptest! {
        #[test]
        fn alternating_keeps_the_longest_suffix_that_fits(
            sizes in prop::collection::vec(1u64..20, 1..40),
            capacity in 0u64..200,
        ) {
            let up: Vec<usize> = (0..sizes.len()).collect();
            let down: Vec<usize> = up.iter().rev().copied().collect();
            let orders: Vec<_> =
                (0..6).map(|t| if t % 2 == 0 { up.clone() } else { down.clone() }).collect();
            let mut before = 0;
            for (t, (loads, kept)) in run(&sizes, &orders, capacity).into_iter().enumerate() {
                prop_assert_eq!(loads, sizes.len() - before);
                prop_assert_eq!(&kept, &longest_suffix(&sizes, &orders[t], capacity));
                before = kept.len();
            }
        }

        #[test]
        fn ascending_keeps_as_many_as_fit(n in 1usize..40, c in 0usize..50) {
            let up: Vec<usize> = (0..n).collect();
            let orders = vec![up; 5];
            for (t, (loads, kept)) in run(&vec![3; n], &orders, 3 * c as u64).into_iter().enumerate() {
                prop_assert_eq!(kept.len(), c.min(n));
                prop_assert_eq!(loads, if t == 0 { n } else { n - c.min(n) });
            }
        }
    }

    #[test]
    fn a_chunk_used_twice_in_a_pass_is_kept_between() {
        let (a, b) = (access(0, 1), access(1, 1));
        let mut schedule = Schedule::new(vec![a, b, a], vec![b], 1, |_| false);
        assert_eq!(schedule.used(a.chunk), Fate::Keep);
        assert_eq!(schedule.used(b.chunk), Fate::Release);
        assert_eq!(schedule.used(a.chunk), Fate::Release);
        assert_eq!(schedule.used(a.chunk), Fate::Unknown);
        assert_eq!(schedule.used(access(9, 1).chunk), Fate::Unknown);
        assert_eq!(schedule.next_use(b.chunk), Some(3));
    }

    #[test]
    fn skipped_accesses_are_not_in_the_future() {
        let list: Vec<Access> = (0..4).map(|i| access(i, 1)).collect();
        let mut schedule = Schedule::new(list.clone(), Vec::new(), 9, |_| false);
        schedule.used(list[2].chunk);
        assert_eq!(schedule.next_use(list[0].chunk), None);
        assert_eq!(schedule.next_use(list[3].chunk), Some(3));
        assert_eq!(schedule.bytes_ahead(list[3].chunk), Some(0));
    }
}
