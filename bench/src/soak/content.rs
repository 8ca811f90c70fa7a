//! What an object must hold, also where it is not known yet which of two versions that is.

use super::held::same;
use super::numbers::{Numbers, mix};

/// An object's bytes by the model.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    bytes: Vec<u8>,
    /// Parts that a write may have changed before it failed or was given up, each whole or not.
    maybe: Vec<Maybe>,
    /// Whether the store may drop it instead of writing it.
    reproducible: bool,
}

#[derive(Debug, Clone)]
struct Maybe {
    at: usize,
    bytes: Vec<u8>,
}

impl Content {
    pub(super) fn new(bytes: Vec<u8>, reproducible: bool) -> Self {
        Content { bytes, maybe: Vec::new(), reproducible }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_reproducible(&self) -> bool {
        self.reproducible
    }

    /// Returns bytes that were checked.
    pub(super) fn part(&self, range: &std::ops::Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }

    /// Returns whether every byte is known.
    pub(super) fn is_certain(&self) -> bool {
        self.maybe.is_empty()
    }

    /// Compares what was read from byte `at` on, and learns from it which version there is.
    ///
    /// # Errors
    /// What differs.
    pub(super) fn check(&mut self, at: usize, got: &[u8]) -> Result<(), String> {
        let end = at + got.len();
        if end > self.bytes.len() {
            return Err(format!("it has {} bytes, not {end}", self.bytes.len()));
        }
        let bytes = &mut self.bytes;
        self.maybe.retain(|maybe| {
            let (from, to) = (at.max(maybe.at), end.min(maybe.at + maybe.bytes.len()));
            if from >= to {
                return true;
            }
            let new = &maybe.bytes[from - maybe.at..to - maybe.at];
            let is_new = new == &got[from - at..to - at];
            // Where both versions are the same nothing was learnt, unless there is nothing else.
            let known = new != &bytes[from..to] || to - from == maybe.bytes.len();
            if known && is_new {
                bytes[maybe.at..][..maybe.bytes.len()].copy_from_slice(&maybe.bytes);
            }
            !known
        });
        same(got, &self.bytes[at..end])
    }

    /// Takes note of bytes that were written.
    pub(super) fn write(&mut self, at: usize, new: &[u8]) {
        self.bytes[at..at + new.len()].copy_from_slice(new);
    }

    /// Takes note of bytes that may have been written, all or none of them. All must be certain, but
    /// for other parts of the same write.
    pub(super) fn maybe_write(&mut self, at: usize, new: &[u8]) {
        self.maybe.push(Maybe { at, bytes: new.to_vec() });
    }
}

/// Returns bytes that can be compressed well, in part, or not at all.
pub(super) fn contents(seed: u64, bytes: u64) -> Vec<u8> {
    let mut into = vec![0; bytes as usize];
    fill(seed, &mut into);
    into
}

/// Fills `into` as [`contents`].
pub(super) fn fill(seed: u64, into: &mut [u8]) {
    let mut numbers = Numbers::new(seed);
    match mix(seed) % 3 {
        0 => numbers.fill(into),
        1 => into.chunks_mut(512).for_each(|run| run.fill(numbers.next() as u8)),
        _ => {
            for (index, part) in into.chunks_mut(64 << 10).enumerate() {
                if index % 2 == 0 { numbers.fill(part) } else { part.fill(numbers.next() as u8) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_may_be_written_is_old_or_new_and_stays_what_it_was_found_to_be() {
        let unsure = || {
            let mut content = Content::new(vec![1, 1, 1, 1, 1, 1], false);
            content.maybe_write(1, &[2, 2]);
            content.maybe_write(3, &[1, 3]);
            content
        };
        let mut content = unsure();
        assert!(content.check(0, &[1, 2, 1]).is_err(), "half of a part");
        let mut content = unsure();
        content.check(0, &[1, 2]).unwrap();
        assert!(content.check(0, &[1, 1, 1]).is_err(), "it was new and is old again");
        content.check(3, &[1]).unwrap();
        assert!(!content.is_certain(), "both versions begin so");
        content.check(2, &[2, 1, 1, 1]).unwrap();
        assert!(content.is_certain() && content.check(4, &[3]).is_err());
        assert!(unsure().check(5, &[1, 1]).is_err(), "it is too long");
        assert!(unsure().check(5, &[9]).is_err(), "a wrong byte");
    }

    #[test]
    fn contents_differ_in_how_well_they_compress() {
        let runs = |seed| contents(seed, 4096).windows(2).filter(|pair| pair[0] == pair[1]).count();
        let counts: Vec<_> = (0..64).map(runs).collect();
        assert!(counts.iter().any(|n| *n < 100) && counts.iter().any(|n| *n > 3900), "{counts:?}");
    }
}
