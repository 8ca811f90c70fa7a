//! Several threads on shared and own keys with hardly any memory: every byte is right, nothing hangs,
//! nothing is left.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::collections::HashMap;
use std::time::Duration;

use common::{PATIENCE, builder, eventually, memory, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{ErrorKind, Result};
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::path::{Path, PathStore};
use tensortier_storage::store::{Compression, Store};

const THREADS: u64 = 4;
const OPERATIONS: u64 = 2_000;
const SHARED_KEYS: u64 = 6;

/// A small generator of numbers that look random; each thread has its own.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

/// Does it until memory is there: other threads' leases come and go.
fn persist<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    let begin = std::time::Instant::now();
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Budget => {
                assert!(begin.elapsed() < PATIENCE, "{error}");
                std::thread::yield_now();
            }
            other => return other,
        }
    }
}

/// Every shared object holds, in each chunk, one value in all bytes: whoever wrote it last.
fn on_shared(store: &Store, numbers: &mut Numbers, own: u8) {
    let key = format!("shared/{}", numbers.below(SHARED_KEYS));
    let Ok(object) = store.object(&key) else { return };
    let chunk = numbers.below(u64::from(object.chunks())) as u32;
    let uniform = |bytes: &[u8]| bytes.iter().all(|byte| *byte == bytes[0]);
    let done = match numbers.below(6) {
        0 | 1 => persist(|| {
            let mut lease = soon(store.lease_write(&object, chunk))?;
            assert!(uniform(&lease), "{key}");
            lease.fill(own);
            Ok(())
        }),
        2 | 3 => persist(|| {
            let lease = soon(store.lease_read(&object, chunk))?;
            assert!(uniform(&lease), "{key}");
            Ok(())
        }),
        4 => {
            drop(store.lease_read(&object, chunk));
            drop(store.lease_write(&object, chunk));
            store.prefetch(&object).unwrap();
            Ok(())
        }
        _ => {
            let len = 1 + numbers.below(3 * GRANULE);
            persist(|| store.put(&key, DType::U8, &[len], &vec![own; len as usize]).map(drop))
        }
    };
    // It may be replaced by others at any time.
    assert!(done.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::NotFound), "{done:?}");
}

fn on_own(store: &Store, numbers: &mut Numbers, own: u8, model: &mut HashMap<String, Vec<u8>>) {
    let key = format!("own/{own}/{}", numbers.below(5));
    match numbers.below(6) {
        0 | 1 => {
            let (len, seed) = (numbers.below(3 * GRANULE), numbers.below(256) as u8);
            let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_add(seed)).collect();
            persist(|| store.put(&key, DType::U8, &[len], &bytes)).unwrap();
            model.insert(key, bytes);
        }
        2 | 3 => {
            let Some(expect) = model.get(&key) else { return };
            let mut got = vec![0; expect.len()];
            persist(|| store.get_into(&key, &mut got)).unwrap();
            assert!(got == *expect, "{key}");
        }
        4 => {
            let known = model.remove(&key).is_some();
            assert_eq!(store.delete(&key).is_ok(), known);
        }
        _ => match numbers.below(3) {
            0 => store.flush().unwrap(),
            1 => drop(store.evict(&key)),
            _ => store.barrier().unwrap(),
        },
    }
}

fn hammer(store: &Store) {
    for i in 0..SHARED_KEYS {
        store.create(&format!("shared/{i}"), DType::U8, &[2 * GRANULE + 77]).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15 + thread);
                let mut model = HashMap::new();
                for _ in 0..OPERATIONS {
                    if numbers.below(2) == 0 {
                        on_shared(store, &mut numbers, thread as u8 + 1);
                    } else {
                        on_own(store, &mut numbers, thread as u8, &mut model);
                    }
                }
                for (key, expect) in &model {
                    let mut got = vec![0; expect.len()];
                    persist(|| store.get_into(key, &mut got)).unwrap();
                    assert!(got == *expect, "{key} at the end");
                }
            });
        }
    });
    for key in store.list("") {
        store.delete(&key).unwrap();
    }
    eventually("all memory is free", || store.stats().host.in_use == 0);
    let used = |store: &Store| store.stats().paths.iter().map(|path| path.used_bytes).sum::<u64>();
    eventually("all space is free", || used(store) == 0);
    store.close(PATIENCE).unwrap();
}

#[test]
fn on_paths_in_memory_that_fail_and_answer_late() {
    let delay = Duration::from_micros(20);
    let paths = [
        memory("late", Mischief { reorder: 2, delay, ..Mischief::default() }),
        memory("flaky", Mischief { fail_write_every: 9, ..Mischief::default() }),
    ];
    hammer(&builder(9, &paths).chunk_bytes(GRANULE).open().unwrap());
    assert!(paths.iter().all(|path| path.counters().used_bytes == 0));
}

#[test]
fn with_chunks_that_are_compressed() {
    for packing in [0, 2 * GRANULE] {
        let paths = [
            memory("late", Mischief { reorder: 2, ..Mischief::default() }),
            memory("flaky", Mischief { fail_write_every: 9, ..Mischief::default() }),
        ];
        let builder = builder(14, &paths).compression(Compression::Lz4).packing_bytes(packing);
        let store = builder.chunk_bytes(3 * GRANULE).open().unwrap();
        hammer(&store);
        assert!(store.stats().packing.is_none_or(|packing| packing.in_use == 0));
        assert!(packing == 0 || store.stats().counters.packed > 0);
    }
}

#[test]
fn on_a_directory() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = Path::new(dir.path());
    let builder = Store::builder().host_budget(12 * GRANULE).chunk_bytes(6000);
    hammer(&builder.path(path).open().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
