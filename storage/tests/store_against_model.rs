//! The store against a map of byte vectors: random operations, budgets, chunk sizes and paths that
//! answer late, out of order, or not at all.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail like the test itself")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::PathStore;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::store::{Compression, ReadLease, Store};

#[derive(Debug, Clone)]
enum Op {
    Create { key: u8, len: u16 },
    Put { key: u8, len: u16, dtype: DType, seed: u8, cached: bool },
    Get { key: u8 },
    GetRange { key: u8, from: u16, len: u16 },
    WriteRange { key: u8, from: u16, len: u16, seed: u8 },
    Change { key: u8, chunk: u8, at: u16, value: u8 },
    HoldRead { key: u8, chunk: u8 },
    DropOldest,
    Prefetch { key: u8 },
    Evict { key: u8 },
    Delete { key: u8 },
    Rename { from: u8, to: u8 },
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u8..6;
    prop_oneof![
        (key.clone(), 0u16..20_000).prop_map(|(key, len)| Op::Create { key, len }),
        (key.clone(), 0u16..20_000, dtype(), any::<u8>(), prop::bool::weighted(0.2))
            .prop_map(|(key, len, dtype, seed, cached)| Op::Put { key, len, dtype, seed, cached }),
        (key.clone(), any::<u16>(), any::<u16>(), any::<u8>())
            .prop_map(|(key, from, len, seed)| Op::WriteRange { key, from, len, seed }),
        key.clone().prop_map(|key| Op::Get { key }),
        (key.clone(), any::<u16>(), any::<u16>()).prop_map(|(key, from, len)| Op::GetRange {
            key,
            from,
            len
        }),
        (key.clone(), any::<u8>(), any::<u16>(), any::<u8>())
            .prop_map(|(key, chunk, at, value)| Op::Change { key, chunk, at, value }),
        (key.clone(), any::<u8>()).prop_map(|(key, chunk)| Op::HoldRead { key, chunk }),
        Just(Op::DropOldest),
        key.clone().prop_map(|key| Op::Prefetch { key }),
        key.clone().prop_map(|key| Op::Evict { key }),
        key.clone().prop_map(|key| Op::Delete { key }),
        (key.clone(), key).prop_map(|(from, to)| Op::Rename { from, to }),
        Just(Op::Flush),
    ]
}

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::U8), Just(DType::BF16), Just(DType::F32), Just(DType::F64)]
}

struct World {
    store: Store,
    chunk: usize,
    model: BTreeMap<String, Vec<u8>>,
    /// Objects whose chunks may be dropped.
    cached: BTreeSet<String>,
    held: VecDeque<(ReadLease, Vec<u8>)>,
}

fn name(key: u8) -> String {
    format!("tensor/{key}")
}

/// Returns what compresses well, in its upper half alone, by its byte planes alone, or not at all, as
/// `seed` says.
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed);
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let one = |i: usize| match seed % 4 {
        0 => (i as u8).wrapping_mul(31).wrapping_add(seed),
        1 if i >= len / 2 => seed,
        2 if i % 4 >= 2 => 0x3F,
        _ => noise(),
    };
    (0..len).map(one).collect()
}

impl World {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Create { key, len } => {
                let known = self.model.contains_key(&name(key));
                match self.store.create(&name(key), DType::U8, &[u64::from(len)]) {
                    Ok(_) => {
                        assert!(!known);
                        self.model.insert(name(key), vec![0; len.into()]);
                    }
                    Err(error) => assert!(known, "{error}"),
                }
            }
            Op::Put { key, len, dtype, seed, cached } => {
                let elements = u64::from(len) / dtype.bytes();
                let new = bytes((elements * dtype.bytes()) as usize, seed);
                match self.store.caching(cached).put(&name(key), dtype, &[elements], &new) {
                    Ok(_) => {
                        self.model.insert(name(key), new);
                        self.cached.remove(&name(key));
                        self.cached.extend(cached.then(|| name(key)));
                    }
                    Err(error) => self.expect_budget(&error),
                }
            }
            Op::Get { key } => self.check(key),
            Op::GetRange { key, from, len } => {
                let Some(all) = self.model.get(&name(key)) else { return };
                let from = usize::from(from) % (all.len() + 1);
                let to = (from + usize::from(len)).min(all.len());
                let mut into = vec![0; to - from];
                match self.store.get_range_into(&name(key), from as u64..to as u64, &mut into) {
                    Ok(()) => assert_eq!(into, all[from..to]),
                    Err(error) => self.expect_miss(key, &error),
                }
            }
            Op::WriteRange { key, from, len, seed } => self.write_range(key, from, len, seed),
            Op::Change { key, chunk, at, value } => self.change(key, chunk, at, value),
            Op::HoldRead { key, chunk } => {
                let Some((object, index, range)) = self.pick(key, chunk) else { return };
                match self.store.lease_read(&object, index).wait() {
                    Ok(lease) => {
                        let expect = self.model[&name(key)][range].to_vec();
                        self.held.push_back((lease, expect));
                    }
                    Err(error) => self.expect_miss(key, &error),
                }
            }
            Op::DropOldest => drop(self.held.pop_front()),
            Op::Prefetch { key } => {
                assert_eq!(self.store.prefetch(&name(key)).is_ok(), self.known(key));
            }
            Op::Evict { key } => assert_eq!(self.store.evict(&name(key)).is_ok(), self.known(key)),
            Op::Delete { key } => {
                assert_eq!(self.store.delete(&name(key)).is_ok(), self.known(key));
                self.model.remove(&name(key));
                self.cached.remove(&name(key));
            }
            Op::Rename { from, to } => {
                let legal = self.known(from) && !self.known(to);
                assert_eq!(self.store.rename(&name(from), &name(to)).is_ok(), legal);
                if legal {
                    let moved = self.model.remove(&name(from)).unwrap();
                    self.model.insert(name(to), moved);
                    if self.cached.remove(&name(from)) {
                        self.cached.insert(name(to));
                    }
                }
            }
            Op::Flush => self.store.flush().unwrap(),
        }
        for (lease, expect) in &self.held {
            assert_eq!(&**lease, &expect[..]);
        }
    }

    fn known(&self, key: u8) -> bool {
        self.model.contains_key(&name(key))
    }

    fn pick(
        &self,
        key: u8,
        chunk: u8,
    ) -> Option<(tensortier_storage::store::ObjectRef, u32, std::ops::Range<usize>)> {
        let object = self.store.object(&name(key)).ok()?;
        let index = u32::from(chunk).checked_rem(object.chunks())?;
        let start = index as usize * self.chunk;
        Some((object, index, start..(start + self.chunk).min(self.model[&name(key)].len())))
    }

    fn change(&mut self, key: u8, chunk: u8, at: u16, value: u8) {
        let Some((object, index, range)) = self.pick(key, chunk) else { return };
        let model = &mut self.model.get_mut(&name(key)).unwrap()[range];
        let mine = self.held.iter().any(|(lease, _)| lease.len() == model.len());
        let ticket = self.store.lease_write(&object, index);
        // Our own shared lease on it would make us wait for ourselves.
        let granted =
            match ticket.wait_timeout(Duration::from_millis(if mine { 20 } else { 20_000 })) {
                Ok(granted) => granted,
                Err(_) => {
                    assert!(mine, "a write lease was never granted");
                    return;
                }
            };
        match granted {
            Ok(mut lease) => {
                assert_eq!(&*lease, &*model);
                let at = usize::from(at) % model.len();
                lease[at] = value;
                model[at] = value;
            }
            Err(error) => self.expect_miss(key, &error),
        }
    }

    /// Writes a range, unless the test holds a lease that it would wait for.
    fn write_range(&mut self, key: u8, from: u16, len: u16, seed: u8) {
        if !self.held.is_empty() || self.cached.contains(&name(key)) {
            return;
        }
        let Some(model) = self.model.get_mut(&name(key)) else { return };
        let from = usize::from(from) % (model.len() + 1);
        let to = (from + usize::from(len)).min(model.len());
        let new = bytes(to - from, seed);
        model[from..to].copy_from_slice(&new);
        self.store.write_range(&name(key), from as u64..to as u64, &new).unwrap();
    }

    fn check(&self, key: u8) {
        let parts = match (self.store.get(&name(key)), self.model.get(&name(key))) {
            (Ok(parts), Some(_)) => parts,
            (Err(error), None) => return assert_eq!(error.kind(), ErrorKind::NotFound),
            (got, model) => panic!("{got:?} {model:?}"),
        };
        let mut got = Vec::new();
        for part in parts {
            match part {
                Ok(part) => got.extend_from_slice(&part),
                Err(error) => return self.expect_miss(key, &error),
            }
        }
        assert_eq!(&got, &self.model[&name(key)]);
    }

    /// What may be dropped may be missing.
    fn expect_miss(&self, key: u8, error: &Error) {
        match error {
            Error::Dropped { .. } => {
                assert!(self.cached.contains(&name(key)), "{error}");
                assert!(!self.store.contains(&name(key)));
            }
            _ => self.expect_budget(error),
        }
    }

    /// Only leases that the test itself holds may exhaust the budget.
    fn expect_budget(&self, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
        assert!(!self.held.is_empty(), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
    ))]

    #[test]
    fn the_store_is_a_map_of_bytes(
        ops in prop::collection::vec(op(), 1..120),
        chunk in prop_oneof![Just(1usize), Just(4095), Just(4096), Just(5000), Just(9000), Just(12_000)]
            .prop_filter("not tiny chunks of large tensors", |chunk| *chunk > 1),
        granules in 3u64..16,
        shares in prop::collection::vec(1.0f64..10.0, 1..4),
        reorder in 0usize..4,
        checksums in any::<bool>(),
        compression in prop_oneof![Just(Compression::Off), Just(Compression::Lz4)],
        packing in 0u64..4,
    ) {
        let paths: Vec<_> = shares
            .iter()
            .enumerate()
            .map(|(i, share)| Arc::new(MemoryPath::new(&format!("memory {i}"), *share)))
            .collect();
        let mut builder = Store::builder()
            .host_budget(match compression {
                Compression::Lz4 => (granules + packing) * GRANULE,
                _ => granules * GRANULE,
            })
            .packing_bytes(packing * GRANULE)
            .chunk_bytes(chunk as u64)
            .checksums(checksums)
            .compression(compression);
        for path in &paths {
            path.set_mischief(Mischief { reorder, fail_write_every: if paths.len() > 1 { 7 } else { 0 }, ..Mischief::default() });
            builder = builder.path_store(Arc::clone(path) as Arc<dyn PathStore>);
        }
        let store = builder.open().unwrap();
        let mut world = World { store, chunk, model: BTreeMap::new(), cached: BTreeSet::new(), held: VecDeque::new() };
        for op in ops {
            world.apply(op);
        }
        world.held.clear();
        for key in 0..6 {
            world.check(key);
        }
        let listed: Vec<String> = world.store.list("").iter().map(|key| key.to_string()).collect();
        prop_assert_eq!(listed, world.model.keys().cloned().collect::<Vec<_>>());
        for key in world.model.keys() {
            world.store.delete(key).unwrap();
        }
        world.store.barrier().unwrap();
        world.store.close(Duration::from_secs(20)).unwrap();
        prop_assert_eq!(world.store.stats().host.in_use, 0);
        for path in &paths {
            prop_assert_eq!(path.counters().used_bytes, 0);
        }
    }
}
