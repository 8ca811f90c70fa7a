//! Leases on a device and on the host in any order: one thread against a model of every byte, and several
//! threads that count, of which no count may be lost.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::device::{Watched, answer, watched};
use common::{PATIENCE, builder, cases, eventually, memory, soon};
use proptest::prelude::*;
use tensortier_gpu::Device;
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::{DeviceReadLease, DeviceTier, ObjectRef, Store};

/// Lengths of the chunks: odd ones too.
const CHUNK: u64 = 3000;
const CHUNKS: usize = 6;
/// The device takes three and a half.
const BUDGET: u64 = 10_500;

#[derive(Debug, Clone)]
enum Op {
    HostWrite(usize, u8),
    HostRead(usize),
    DeviceWrite(usize, u8),
    /// An exclusive lease that changes nothing.
    DeviceTouch(usize),
    DeviceRead(usize),
    DeviceHold(usize),
    DropOldest,
    DropTickets(usize),
    Prefetch,
    Evict,
    Flush,
    Replace(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let chunk = 0..CHUNKS;
    prop_oneof![
        (chunk.clone(), any::<u8>()).prop_map(|(chunk, byte)| Op::HostWrite(chunk, byte)),
        chunk.clone().prop_map(Op::HostRead),
        (chunk.clone(), any::<u8>()).prop_map(|(chunk, byte)| Op::DeviceWrite(chunk, byte)),
        chunk.clone().prop_map(Op::DeviceTouch),
        chunk.clone().prop_map(Op::DeviceRead),
        chunk.clone().prop_map(Op::DeviceHold),
        Just(Op::DropOldest),
        chunk.prop_map(Op::DropTickets),
        Just(Op::Prefetch),
        Just(Op::Evict),
        Just(Op::Flush),
        any::<u8>().prop_map(Op::Replace),
    ]
}

struct World {
    store: Store,
    device: Arc<Watched>,
    tier: DeviceTier,
    object: ObjectRef,
    model: [u8; CHUNKS],
    held: VecDeque<(DeviceReadLease, u8)>,
}

impl World {
    fn put(store: &Store, byte: u8) -> ObjectRef {
        let bytes = vec![byte; CHUNK as usize * CHUNKS];
        store.put("tensor", DType::U8, &[bytes.len() as u64], &bytes).unwrap()
    }

    /// Unwraps a lease; only what is held here can be a reason for there to be none.
    fn expect<T>(&self, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Err(error) if error.kind() == ErrorKind::Budget => {
                assert!(self.held.len() >= 3, "{error} with {} leases held", self.held.len());
                None
            }
            answer => Some(answer.unwrap()),
        }
    }

    fn apply(&mut self, op: Op) {
        let uniform = |bytes: &[u8], byte| bytes.iter().all(|one| *one == byte);
        let full = |byte| vec![byte; CHUNK as usize];
        match op {
            Op::HostWrite(chunk, byte) => {
                soon(self.store.lease_write(&self.object, chunk as u32)).unwrap().fill(byte);
                self.model[chunk] = byte;
            }
            Op::HostRead(chunk) => {
                let lease = soon(self.store.lease_read(&self.object, chunk as u32)).unwrap();
                assert!(uniform(&lease, self.model[chunk]), "host, chunk {chunk}");
            }
            Op::DeviceWrite(chunk, byte) => {
                let ticket = self.tier.lease_write(&self.object, chunk as u32);
                let Some(mut lease) = self.expect(answer(ticket)) else { return };
                assert!(uniform(&self.device.read(&lease), self.model[chunk]));
                let written = self.device.fill(&mut lease, full(byte));
                drop(lease.end_after(&written));
                self.model[chunk] = byte;
            }
            Op::DeviceTouch(chunk) => {
                drop(self.expect(answer(self.tier.lease_write(&self.object, chunk as u32))));
            }
            Op::DeviceRead(chunk) | Op::DeviceHold(chunk) => {
                let ticket = self.tier.lease_read(&self.object, chunk as u32);
                let Some(lease) = self.expect(answer(ticket)) else { return };
                assert!(uniform(&self.device.read(&lease), self.model[chunk]), "chunk {chunk}");
                if matches!(op, Op::DeviceHold(_)) {
                    self.held.push_back((lease, self.model[chunk]));
                }
            }
            Op::DropOldest => {
                let Some((lease, byte)) = self.held.pop_front() else { return };
                assert!(uniform(&self.device.read(&lease), byte), "a lease's bytes changed");
            }
            Op::DropTickets(chunk) => {
                drop(self.tier.lease_read(&self.object, chunk as u32));
                drop(self.tier.lease_write(&self.object, chunk as u32));
            }
            Op::Prefetch => self.tier.prefetch(&self.object),
            Op::Evict => self.store.evict("tensor").unwrap(),
            Op::Flush => self.store.flush().unwrap(),
            Op::Replace(byte) => {
                self.object = World::put(&self.store, byte);
                self.model = [byte; CHUNKS];
            }
        }
        assert!(self.device.peak.load(Ordering::SeqCst) <= BUDGET);
    }
}

proptest! {
    #![proptest_config(cases(48))]
    #[test]
    fn any_order_of_operations_reads_what_was_written(
        ops in proptest::collection::vec(op(), 1..60),
        host in 2u64..8,
        late in 0u64..400,
        reorder in 0usize..3,
    ) {
        let mischief = Mischief { reorder, ..Mischief::default() };
        let store = builder(host, &[memory("path", mischief)]).chunk_bytes(CHUNK).open().unwrap();
        let device = watched(Duration::from_micros(late));
        let tier = store.attach_device(Arc::clone(&device) as Arc<dyn Device>, BUDGET).unwrap();
        let object = World::put(&store, 0);
        let model = [0; CHUNKS];
        let mut world = World { store, device, tier, object, model, held: VecDeque::new() };
        for op in ops {
            world.apply(op);
        }
        world.held.clear();
        (0..CHUNKS).for_each(|chunk| world.apply(Op::DeviceRead(chunk)));
        (0..CHUNKS).for_each(|chunk| world.apply(Op::HostRead(chunk)));
        world.store.close(PATIENCE).unwrap();
        prop_assert_eq!(world.store.stats().host.in_use, 0);
        eventually("the device's memory is free", || world.device.in_use() == 0);
    }
}

/// Does it until memory is there: other threads' leases come and go.
fn persist<T>(call: impl Fn() -> Result<T, Error>) -> T {
    let begin = std::time::Instant::now();
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Budget => {
                assert!(begin.elapsed() < PATIENCE, "{error}");
                std::thread::yield_now();
            }
            other => return other.unwrap(),
        }
    }
}

/// Returns the count that all words of a chunk hold.
fn count(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let all: Vec<u64> = words.collect();
    assert!(all.iter().all(|word| *word == all[0]), "a torn chunk");
    all[0]
}

fn counted(count: u64) -> Vec<u8> {
    count.to_le_bytes().repeat(GRANULE as usize / 8)
}

#[test]
fn no_count_of_several_threads_is_lost() {
    const THREADS: u64 = 4;
    const OBJECTS: usize = 5;
    const ROUNDS: u64 = 400;
    let store = builder(3, &[memory("path", Mischief { reorder: 2, ..Mischief::default() })]);
    let store = store.open().unwrap();
    let device = watched(Duration::from_micros(50));
    let tier = store.attach_device(Arc::clone(&device) as Arc<dyn Device>, 3 * GRANULE).unwrap();
    let create = |i| store.create(&format!("t{i}"), DType::U64, &[GRANULE / 8]).unwrap();
    let objects: Vec<ObjectRef> = (0..OBJECTS).map(create).collect();
    let written: Vec<AtomicU64> = (0..OBJECTS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (objects, written) = (&objects, &written);
            let (store, device, tier) = (&store, &device, &tier);
            scope.spawn(move || {
                let mut seen = [0; OBJECTS];
                let mut state = 0x9E37_79B9_7F4A_7C15 + thread;
                for _ in 0..ROUNDS {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let (at, kind) = ((state >> 16) as usize % OBJECTS, (state >> 40) % 6);
                    let object = &objects[at];
                    let found = match kind {
                        0 | 1 => {
                            let mut lease = persist(|| answer(tier.lease_write(object, 0)));
                            let found = count(&device.read(&lease));
                            let work = device.fill(&mut lease, counted(found + 1));
                            drop(lease.end_after(&work));
                            written[at].fetch_add(1, Ordering::SeqCst);
                            found
                        }
                        2 => {
                            let mut lease = persist(|| soon(store.lease_write(object, 0)));
                            let found = count(&lease);
                            lease.copy_from_slice(&counted(found + 1));
                            written[at].fetch_add(1, Ordering::SeqCst);
                            found
                        }
                        3 => count(&persist(|| soon(store.lease_read(object, 0)))),
                        4 => count(&device.read(&persist(|| answer(tier.lease_read(object, 0))))),
                        _ => {
                            tier.prefetch(object);
                            drop(store.evict(&format!("t{at}")));
                            continue;
                        }
                    };
                    assert!(found >= seen[at], "{found} after {}", seen[at]);
                    seen[at] = found;
                }
            });
        }
    });
    for (object, written) in objects.iter().zip(&written) {
        let on_device = count(&device.read(&answer(tier.lease_read(object, 0)).unwrap()));
        assert_eq!(on_device, written.load(Ordering::SeqCst));
        assert_eq!(count(&soon(store.lease_read(object, 0)).unwrap()), on_device);
    }
    assert!(device.peak.load(Ordering::SeqCst) <= 3 * GRANULE);
    let counters = tier.usage().counters;
    assert!(counters.hits > 0 && counters.evictions > 0, "{counters:?}");
    store.close(PATIENCE).unwrap();
    eventually("the device's memory is free", || device.in_use() == 0);
}
