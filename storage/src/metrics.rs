//! Counters of a store and of its devices: what was asked for, what moved, what was spared. They only grow.

use crate::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($counters:ident, $values:ident: $($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters, shared by all threads of a store.
        #[derive(Debug, Default)]
        pub(crate) struct $counters { $(pub(crate) $name: Counter),* }

        /// The counters at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct $values { $($(#[$doc])* pub $name: u64),* }

        impl $counters {
            /// Reads all counters. Each is exact; together they are one moment only when the store rests.
            pub(crate) fn read(&self) -> $values {
                $values { $($name: self.$name.get()),* }
            }
        }

        impl $values {
            /// Returns each counter's name and value, in the order in which they are documented.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Returns what was counted since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &$values) -> $values {
                $values { $($name: self.$name.wrapping_sub(earlier.$name)),* }
            }
        }
    };
}

counters! { Counters, CounterValues:
    /// Leases granted on a chunk that was in memory when it was asked for.
    hits,
    /// Leases that had to wait for a chunk to come from a path.
    misses,
    /// Chunks whose reading from a path was begun.
    loads,
    /// Their logical bytes.
    load_bytes,
    /// Chunks never written before, made of zeros without I/O.
    zero_fills,
    /// Their logical bytes.
    zero_fill_bytes,
    /// Chunks whose writing to a path was decided; a chunk leased again in time is taken back.
    write_backs,
    /// Their logical bytes.
    write_back_bytes,
    /// Chunks whose write to a path was completed.
    written,
    /// Their logical bytes.
    written_bytes,
    /// Of those chunks, the ones stored compressed.
    packed,
    /// What all of those chunks take on their paths, compressed or not, in bytes, whole granules.
    stored_bytes,
    /// Reads that failed and were tried again.
    retried,
    /// Writes that failed or hung on one path and were placed on another.
    replaced,
    /// Reads and writes that a path did not answer within its deadline.
    hung,
    /// Chunks that left memory.
    evictions,
    /// Chunks moved inside the arena to make a longer free run, or to leave its end to metadata.
    moves,
    /// Bytes of those chunks.
    moved_bytes,
}

counters! { DeviceCounters, DeviceCounterValues:
    /// Leases granted on a copy that was on the device already.
    hits,
    /// Leases that had to wait for the host or for a copy.
    misses,
    /// Chunks copied to the device.
    copies_in,
    /// Their bytes.
    bytes_in,
    /// Chunks copied back after they were changed.
    copies_out,
    /// Their bytes.
    bytes_out,
    /// Copies that left the device to make room.
    evictions,
}

impl CounterValues {
    /// Returns what the chunks written take on their paths over their logical bytes, or `None` if
    /// none was written. Below 1 where compression pays; above where chunks are not whole granules.
    #[must_use]
    pub fn stored_ratio(&self) -> Option<f64> {
        (self.written_bytes > 0).then(|| self.stored_bytes as f64 / self.written_bytes as f64)
    }
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn take_back(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Returns the count. What is taken back before it was added shows as nothing.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }
}
