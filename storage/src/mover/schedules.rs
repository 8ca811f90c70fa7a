//! The declared schedules in force. One alone is followed to the letter: its plan says what stays
//! and what leaves, so that what moves depends on nothing else. Several share memory by time: what
//! is used soonest at the rate at which each of them goes is kept and read ahead first.

use std::time::Duration;

use crate::catalog::ChunkRef;
use crate::id::{ChunkId, ScheduleId};
use crate::schedule::Fate;

use super::declared::Declared;

/// The schedules in force, in the order of their ids.
#[derive(Default)]
pub(super) struct Schedules(Vec<(ScheduleId, Declared)>);

/// An access to be read ahead for.
pub(super) struct Coming {
    pub(super) schedule: ScheduleId,
    pub(super) chunk: ChunkRef,
    /// How far away it is, comparable with [`Schedules::distance`].
    pub(super) distance: u64,
    /// What is used further away than this may make room for it, of what schedules name.
    pub(super) beyond: u64,
}

impl Schedules {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether one schedule alone decides.
    pub(super) fn is_one(&self) -> bool {
        self.0.len() == 1
    }

    /// Puts a schedule in force, in place of an earlier one of its id.
    pub(super) fn set(&mut self, id: ScheduleId, declared: Declared) {
        match self.0.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => self.0[at].1 = declared,
            Err(at) => self.0.insert(at, (id, declared)),
        }
    }

    pub(super) fn end(&mut self, id: ScheduleId) {
        self.0.retain(|(other, _)| *other != id);
    }

    pub(super) fn end_all(&mut self) {
        self.0.clear();
    }

    /// Returns how far away a chunk's next use is, least over the schedules, or `None` if none names
    /// it: in bytes accessed before it, or in nanoseconds if there are several schedules.
    pub(super) fn distance(&self, chunk: ChunkId) -> Option<u64> {
        let each = self.0.iter().filter_map(|(_, declared)| {
            declared.bytes_ahead(chunk).map(|bytes| self.comparable(declared, bytes))
        });
        each.min()
    }

    fn comparable(&self, declared: &Declared, bytes: u64) -> u64 {
        if self.is_one() { bytes } else { declared.nanoseconds(bytes) }
    }

    /// Notes that an exclusive access ended and returns what becomes of the chunk. Of several
    /// schedules the one that expected it soonest has made it, and none says what becomes of it.
    pub(super) fn used(&mut self, chunk: ChunkId, now: Duration) -> Fate {
        let alone = self.is_one();
        let expecting = self
            .0
            .iter_mut()
            .filter_map(|(_, declared)| declared.bytes_ahead(chunk).map(|bytes| (bytes, declared)));
        let Some((_, declared)) = expecting.min_by_key(|(bytes, _)| *bytes) else {
            return Fate::Unknown;
        };
        let fate = declared.used(chunk, now);
        if alone { fate } else { Fate::Unknown }
    }

    /// Returns the access to read ahead for next: the soonest.
    pub(super) fn next_ahead(&mut self) -> Option<Coming> {
        let alone = self.is_one();
        let each = self.0.iter_mut().filter_map(|(id, declared)| {
            let chunk = declared.next_ahead()?.1.clone();
            let bytes = declared.bytes_ahead(chunk.id()).unwrap_or(0);
            let distance = if alone { bytes } else { declared.nanoseconds(bytes) };
            // A plan says itself what makes room for what. Without one, reading ahead takes a place
            // from what is used later only when its own use is near: it gains time by it, but the
            // other has to be read again.
            let gives_way = !alone && declared.is_near(bytes);
            let beyond = if gives_way { distance } else { u64::MAX };
            Some(Coming { schedule: *id, chunk, distance, beyond })
        });
        each.min_by_key(|coming| coming.distance)
    }

    /// What [`Schedules::next_ahead`] returned last was read ahead for.
    pub(super) fn took_ahead(&mut self, id: ScheduleId) {
        if let Some((_, declared)) = self.0.iter_mut().find(|(other, _)| *other == id) {
            declared.took_ahead();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Key, Object};
    use crate::dtype::DType;
    use crate::id::ObjectId;
    use std::sync::Arc;

    const BYTES: u64 = 4096;

    fn chunks(id: u64, count: u64) -> Vec<ChunkRef> {
        let key = Key::new("k").unwrap();
        let object = Object::new(ObjectId(id), key, DType::U8, &[count * BYTES], BYTES).unwrap();
        Arc::new(object).chunks().collect()
    }

    fn declared(this: &[ChunkRef]) -> Declared {
        Declared::new(this.to_vec(), &[], (u64::MAX, 0), |_| false)
    }

    #[test]
    fn the_faster_schedule_s_chunks_are_nearer() {
        let (fast, slow) = (chunks(1, 20), chunks(2, 20));
        let mut schedules = Schedules::default();
        schedules.set(ScheduleId(2), declared(&slow));
        schedules.set(ScheduleId(1), declared(&fast));
        for i in 0..5_u32 {
            let now = Duration::from_millis(i.into());
            assert_eq!(schedules.used(fast[i as usize].id(), now), Fate::Unknown);
            schedules.used(slow[i as usize].id(), now * 10);
        }
        let at = |chunk: &ChunkRef| schedules.distance(chunk.id()).unwrap();
        assert_eq!(at(&fast[5]), 0);
        assert!(at(&fast[8]) < at(&slow[6]), "three of the fast before one of the slow");
        assert!(at(&slow[6]) < at(&fast[19]));
        assert_eq!(schedules.distance(fast[0].id()), None);
    }

    #[test]
    fn reading_ahead_takes_turns_by_distance_and_ends_with_its_schedule() {
        let (a, b) = (chunks(1, 4), chunks(2, 2));
        let mut schedules = Schedules::default();
        schedules.set(ScheduleId(1), declared(&a));
        schedules.set(ScheduleId(2), declared(&b));
        let mut order = Vec::new();
        while let Some(coming) = schedules.next_ahead() {
            schedules.took_ahead(coming.schedule);
            order.push(coming.schedule.0);
        }
        assert_eq!(order, [1, 2, 1, 2, 1, 1]);
        schedules.end(ScheduleId(1));
        assert!(schedules.is_one());
        assert_eq!(schedules.distance(a[0].id()), None);
        assert_eq!(schedules.used(b[0].id(), Duration::ZERO), Fate::Release);
    }
}
