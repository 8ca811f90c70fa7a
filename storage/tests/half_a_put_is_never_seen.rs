//! A reader sees the old tensor or the new one, whole, however long a put takes, however it ends and
//! whatever the paths do meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{builder, eventually, memory, poll_times};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::ErrorKind;
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::Store;

/// Several chunks, more than a third of the budget.
const LEN: usize = 5 * 4096 + 100;

/// Returns the tensor of a generation: each byte says which.
fn tensor(generation: u64) -> Vec<u8> {
    vec![generation as u8; LEN - (generation % 3) as usize]
}

/// Reads the tensor by one of the ways there are.
fn read_some_way(store: &Store, way: u64) -> Result<Vec<u8>, ErrorKind> {
    let object = store.object("t").map_err(|error| error.kind())?;
    let len = object.bytes();
    let mut into = vec![0; len as usize];
    let read = match way % 4 {
        0 => store.get_into(&object, &mut into),
        1 => store.get_range_into(&object, 0..len, &mut into),
        2 => store.lease_range_read(&object, 0..len).wait().map(|lease| {
            into = lease.slices().flatten().copied().collect();
        }),
        _ => store.get(&object).and_then(|parts| {
            into.clear();
            parts.into_iter().try_for_each(|part| part.map(|part| into.extend_from_slice(&part)))
        }),
    };
    read.map(|()| into).map_err(|error| error.kind())
}

/// Reads until told to stop. What is read is whole, and never older than what was read before.
fn poll(store: &Store, stop: &AtomicBool, way: u64) -> u64 {
    let (mut newest, mut reads) = (0, 0);
    while !stop.load(Ordering::SeqCst) {
        match read_some_way(store, way + reads) {
            Ok(bytes) => {
                let generation = u64::from(bytes[0]);
                assert_eq!(bytes, tensor(generation), "a mix");
                assert!(generation >= newest, "{generation} after {newest}");
                newest = generation;
                reads += 1;
            }
            // It was replaced between the look-up and the lease; or the readers hold everything.
            Err(ErrorKind::NotFound | ErrorKind::Budget) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    reads
}

#[test]
fn readers_see_whole_tensors_in_order() {
    let slow = Mischief { delay: Duration::from_micros(300), reorder: 2, ..Mischief::default() };
    let failing = Mischief { fail_write_every: 5, ..slow };
    let paths = [memory("slow", slow), memory("failing", failing)];
    let builder = builder(20, &paths).chunk_bytes(GRANULE);
    let store = builder.wait_for_leases(Duration::from_secs(10)).open().unwrap();
    store.put("t", DType::U8, &[tensor(0).len() as u64], &tensor(0)).unwrap();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for way in 0..3 {
            let (store, stop, reads) = (&store, &stop, &reads);
            scope.spawn(move || reads.fetch_add(poll(store, stop, way), Ordering::SeqCst));
        }
        for generation in 1..100 {
            let bytes = tensor(generation);
            let shape = [bytes.len() as u64];
            // Every other one is given up in its middle first.
            if generation % 2 == 0 {
                let mut half = store.put_async("t", DType::U8, &shape, bytes.clone());
                let _ = poll_times(half.as_mut(), 1 + (generation % 5) as usize);
            }
            store.put("t", DType::U8, &shape, &bytes).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(reads.load(Ordering::SeqCst) > 0);
    store.delete("t").unwrap();
    eventually("nothing is left in memory", || store.stats().host.in_use == 0);
    eventually("nothing is left on the paths", || {
        store.stats().paths.iter().all(|path| path.used_bytes == 0)
    });
}
