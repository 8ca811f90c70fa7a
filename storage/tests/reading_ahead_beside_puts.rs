//! What was read ahead stays for its reader while somebody else puts more than memory holds.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;

use common::{PATIENCE, builder, contents, eventually};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::path::PathStore as _;
use tensortier_storage::path::memory::MemoryPath;

const CHUNK: u64 = 1 << 20;

#[test]
fn puts_do_not_cost_what_was_read_ahead() {
    let paths = [Arc::new(MemoryPath::new("one", 1e9)), Arc::new(MemoryPath::new("two", 1e9))];
    let store = builder(12 * CHUNK / GRANULE, &paths).chunk_bytes(CHUNK).open().unwrap();
    let data = contents(1, 4 * CHUNK);
    store.put("read", DType::U8, &[4 * CHUNK], &data).unwrap();
    store.evict("read").unwrap();
    store.prefetch("read").unwrap();
    eventually("it was read ahead", || {
        store.barrier().unwrap();
        paths.iter().map(|path| path.counters().read_bytes).sum::<u64>() == 4 * CHUNK
    });
    let other = contents(2, 40 * CHUNK);
    store.put("put", DType::U8, &[40 * CHUNK], &other).unwrap();
    let mut got = Vec::new();
    for part in store.get("read").unwrap() {
        got.extend_from_slice(&part.unwrap());
    }
    assert!(got == data);
    let read = paths.iter().map(|path| path.counters().read_bytes).sum::<u64>();
    assert_eq!(read, 4 * CHUNK, "nothing was read twice");
    store.close(PATIENCE).unwrap();
}
