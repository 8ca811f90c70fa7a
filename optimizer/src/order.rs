//! The order of a step over the subgroups, and the closed form of what it reads and writes.

use std::fmt;

/// In which direction steps go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Order {
    /// Directions alternate after each step: what a step used last, the next uses first
    /// (MLP-Offload, SC'25).
    #[default]
    Alternate,
    /// Always from the first to the last, as ZeRO-Infinity does.
    Ascending,
    /// Always from the last to the first, as gradients come in a backward pass.
    Descending,
}

/// Which subgroup leaves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The order is declared to the store: what survives to its next use stays, the rest leaves as
    /// soon as it is updated.
    #[default]
    Schedule,
    /// Least recently used, when room is needed.
    Lru,
}

impl Order {
    /// Returns the subgroups of step `t` (counted from 1) of `n` in their order.
    pub fn of_step(self, t: u64, n: usize) -> Vec<usize> {
        let down = match self {
            Order::Alternate => t.is_multiple_of(2),
            Order::Ascending => false,
            Order::Descending => true,
        };
        if down { (0..n).rev().collect() } else { (0..n).collect() }
    }
}

/// What a step leaves in memory: the subgroups and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// How many.
    pub subgroups: u64,
    /// Their bytes as stored.
    pub bytes: u64,
}

/// Returns K(t) of the closed form for a step in this order: the longest suffix whose memory fits
/// `capacity`. `bytes` are stored bytes per subgroup, `memory` what each takes in memory.
pub fn longest_suffix(order: &[usize], bytes: &[u64], memory: &[u64], capacity: u64) -> Kept {
    let (mut kept, mut left) = (Kept::default(), capacity);
    for index in order.iter().rev() {
        let Some(rest) = left.checked_sub(memory[*index]) else { break };
        left = rest;
        kept.subgroups += 1;
        kept.bytes += bytes[*index];
    }
    kept
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::Alternate => "alternate",
            Order::Ascending => "ascending",
            Order::Descending => "descending",
        })
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Eviction::Schedule => "schedule",
            Eviction::Lru => "lru",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_alternate_and_the_suffix_is_the_longest_that_fits() {
        assert_eq!(Order::Alternate.of_step(1, 3), [0, 1, 2]);
        assert_eq!(Order::Alternate.of_step(2, 3), [2, 1, 0]);
        assert_eq!(Order::Ascending.of_step(2, 3), [0, 1, 2]);
        assert_eq!(Order::Descending.of_step(1, 3), [2, 1, 0]);
        let kept = longest_suffix(&[0, 1, 2], &[9, 5, 3], &[10, 6, 4], 12);
        assert_eq!(kept, Kept { subgroups: 2, bytes: 8 });
        assert_eq!(longest_suffix(&[2, 1, 0], &[9, 5, 3], &[10, 6, 4], 9), Kept::default());
    }
}
