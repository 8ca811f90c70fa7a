//! A path that answers late, or much at once, has as much to write meanwhile as it moves at a time.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, builder, contents};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::path::PathStore as _;
use tensortier_storage::path::memory::MemoryPath;

const CHUNK: u64 = 64 << 10;

#[test]
fn write_backs_fill_a_path_that_does_not_answer_yet() {
    for sums in [false, true] {
        let path = Arc::new(MemoryPath::new("late", 1e9));
        let bytes = path.depth_bytes() + 4 * CHUNK;
        let store = builder(2 * bytes / GRANULE, std::slice::from_ref(&path));
        let store = store.chunk_bytes(CHUNK).checksums(sums).open().unwrap();
        store.put("object", DType::U8, &[bytes], &contents(1, bytes)).unwrap();
        path.stall();
        let busy = thread::scope(|scope| {
            scope.spawn(|| store.flush().unwrap());
            let begin = Instant::now();
            while path.outstanding().write_bytes < path.depth_bytes() && begin.elapsed() < PATIENCE
            {
                thread::sleep(Duration::from_millis(1));
            }
            let busy = path.outstanding().write_bytes;
            path.release();
            busy
        });
        assert!(
            busy >= path.depth_bytes(),
            "{busy} of {} with checksums {sums}",
            path.depth_bytes()
        );
        // Little more, or the path of a chunk would be chosen early.
        assert!(busy < bytes, "{busy} with checksums {sums}");
        let mut into = vec![0; bytes as usize];
        store.get_into("object", &mut into).unwrap();
        assert_eq!(into, contents(1, bytes));
    }
}
