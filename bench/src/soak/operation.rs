//! One operation, drawn from the seed before anything is known of what the store will answer.

use super::numbers::{Numbers, mix};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Put,
    Get,
    GetInto,
    GetRange,
    Change,
    HoldRead,
    DropHeld,
    Abandon,
    WaitBriefly,
    Prefetch,
    Evict,
    Delete,
    Rename,
    Flush,
    List,
    Pass,
    EndSchedule,
    AddPath,
    RemovePath,
    Room,
    Trouble,
    PutAsync,
    GetAsync,
    WriteRange,
    HoldRange,
    PutMany,
    GetMany,
    EvictMany,
    DeleteMany,
    DeviceRead,
    DeviceWrite,
    DeviceAhead,
    Hang,
}

/// Verbs and how often each comes.
const WEIGHTS: [(Verb, u64); 34] = [
    (Verb::Create, 4),
    (Verb::Put, 18),
    (Verb::Get, 12),
    (Verb::GetInto, 14),
    (Verb::GetRange, 10),
    (Verb::Change, 22),
    (Verb::HoldRead, 8),
    (Verb::DropHeld, 12),
    (Verb::Abandon, 6),
    (Verb::WaitBriefly, 4),
    (Verb::Prefetch, 8),
    (Verb::Evict, 8),
    (Verb::Delete, 6),
    (Verb::Rename, 4),
    (Verb::Flush, 3),
    (Verb::List, 2),
    (Verb::Pass, 2),
    (Verb::EndSchedule, 2),
    (Verb::AddPath, 1),
    (Verb::RemovePath, 1),
    (Verb::Room, 2),
    (Verb::Trouble, 2),
    (Verb::PutAsync, 8),
    (Verb::GetAsync, 8),
    (Verb::WriteRange, 12),
    (Verb::HoldRange, 6),
    (Verb::PutMany, 4),
    (Verb::GetMany, 6),
    (Verb::EvictMany, 3),
    (Verb::DeleteMany, 1),
    (Verb::DeviceRead, 10),
    (Verb::DeviceWrite, 8),
    (Verb::DeviceAhead, 3),
    (Verb::Hang, 6),
];

/// A verb and the numbers that say on what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) verb: Verb,
    pub(super) key: u64,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) seed: u64,
}

impl Operation {
    pub(super) fn draw(numbers: &mut Numbers) -> Self {
        let mut at = numbers.below(WEIGHTS.iter().map(|(_, weight)| weight).sum());
        let mut verb = Verb::Get;
        for (this, weight) in WEIGHTS {
            if at < weight {
                verb = this;
                break;
            }
            at -= weight;
        }
        let (key, a, b) = (numbers.next(), numbers.next(), numbers.next());
        Operation { verb, key, a, b, seed: numbers.next() }
    }

    /// Returns `digest` with this operation in it.
    pub(super) fn digest(&self, digest: u64) -> u64 {
        let parts = [self.verb as u64, self.key, self.a, self.b, self.seed];
        parts.iter().fold(digest, |digest, part| mix(digest ^ part))
    }
}
