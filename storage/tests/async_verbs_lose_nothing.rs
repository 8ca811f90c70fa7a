//! The asynchronous verbs do what the blocking ones do, on any thread; they give buffers back in
//! either outcome, and one that is dropped half done leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::{
    block_on, builder, eventually, memory, one_chunk, pattern, poll_times, put, read, soon,
};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::PathStore;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::store::Store;

const LEN: usize = 6 * 4096 + 77;

/// Returns a store of six granules in chunks of one, over a path that takes its time.
fn store() -> (Store, Arc<MemoryPath>) {
    let mischief = Mischief { delay: Duration::from_micros(200), ..Mischief::default() };
    let path = memory("path", mischief);
    let builder = builder(6, std::slice::from_ref(&path)).chunk_bytes(GRANULE);
    (builder.open().unwrap(), path)
}

/// Requires what every executor may require.
fn anywhere<T: Send + 'static>(future: T) -> T {
    future
}

#[test]
fn buffers_come_back_when_it_worked() {
    let (store, _) = store();
    let bytes = pattern(LEN, 1);
    let put = anywhere(store.put_async("a", DType::U8, &[LEN as u64], bytes.clone()));
    let (object, back) = block_on(put).unwrap();
    assert_eq!(back, bytes);
    let into = block_on(anywhere(store.get_into_async(&object, vec![0; LEN]))).unwrap();
    assert_eq!(into, bytes);
    let written: Box<[u8]> = vec![9; 5000].into();
    let written = anywhere(store.write_range_async("a", 4000..9000, written));
    assert_eq!(block_on(written).unwrap().len(), 5000);
    block_on(store.evict_async("a")).unwrap();
    let range = anywhere(store.get_range_into_async("a", 3999..9001, [0; 5002]));
    let range = block_on(range).unwrap();
    assert_eq!((range[0], range[5001]), (bytes[3999], bytes[9000]));
    assert!(range[1..5001].iter().all(|byte| *byte == 9));
    block_on(store.flush_async()).unwrap();
    block_on(store.barrier_async()).unwrap();
    let parts = block_on(anywhere(async move {
        let (mut parts, mut all) = (store.get("a").unwrap(), Vec::new());
        while let Some(part) = parts.next_async().await {
            all.extend_from_slice(&part.unwrap());
        }
        all
    }));
    assert_eq!((&parts[..4000], &parts[9000..]), (&bytes[..4000], &bytes[9000..]));
}

#[test]
fn what_is_overwritten_whole_is_not_loaded() {
    let (store, path) = store();
    let mut bytes = pattern(LEN, 3);
    let object = store.put("a", DType::U8, &[LEN as u64], &bytes).unwrap();
    store.evict(&object).unwrap();
    let reads = path.counters().reads;
    store.write_range(&object, 4096..4 * 4096, &[1; 3 * 4096]).unwrap();
    assert_eq!(path.counters().reads, reads);
    bytes[4096..4 * 4096].fill(1);
    assert_eq!(read(&store, "a").unwrap(), bytes);
    store.evict(&object).unwrap();
    let reads = path.counters().reads;
    store.write_range(&object, 10..LEN as u64 - 10, &[2; LEN - 20]).unwrap();
    assert_eq!(path.counters().reads, reads + 2, "the first and the last alone");
    bytes[10..LEN - 10].fill(2);
    store.evict(&object).unwrap();
    assert_eq!(read(&store, "a").unwrap(), bytes);
}

#[test]
fn buffers_come_back_when_it_failed() {
    let (store, _) = store();
    let failed = block_on(store.put_async("a", DType::F32, &[2], vec![7; 9])).unwrap_err();
    assert_eq!((failed.buffer, failed.error.kind()), (vec![7; 9], ErrorKind::InvalidInput));
    let failed = block_on(store.get_into_async("none", vec![7; 9])).unwrap_err();
    assert_eq!(failed.buffer, [7; 9]);
    assert!(matches!(Error::from(failed), Error::NotFound { .. }));
    let failed = block_on(store.write_range_async("none", 0..1, vec![3])).unwrap_err();
    assert_eq!(failed.buffer, [3]);
    // Everything is held: the put fails in its middle, at once, and hands back what it took.
    let held = soon(store.lease_write(&one_chunk(&store, "held", 4), 0)).unwrap();
    let view = soon(store.lease_read(&one_chunk(&store, "viewed", 2), 0)).unwrap().into_bytes();
    let bytes = pattern(LEN, 2);
    let failed = block_on(store.put_async("a", DType::U8, &[LEN as u64], bytes.clone()));
    let failed = failed.unwrap_err();
    assert_eq!((failed.buffer, failed.error.kind()), (bytes, ErrorKind::Budget));
    drop((held, view));
    store.close(common::PATIENCE).unwrap();
    let failed = block_on(store.put_async("a", DType::U8, &[1], [5])).unwrap_err();
    assert_eq!((failed.buffer, failed.error.kind()), ([5], ErrorKind::Closed));
}

#[test]
fn a_future_that_is_begun_on_one_thread_may_end_on_another() {
    let (store, path) = store();
    let bytes = pattern(LEN, 3);
    // Its last chunk waits for memory until the path answers.
    path.stall();
    let mut put = store.put_async("a", DType::U8, &[LEN as u64], bytes.clone());
    assert!(poll_times(put.as_mut(), 1).is_pending());
    path.release();
    let put = std::thread::spawn(move || block_on(put).unwrap().1);
    assert_eq!(put.join().unwrap(), bytes);
    assert_eq!(read(&store, "a").unwrap(), bytes);
}

#[test]
fn a_put_dropped_after_any_poll_leaves_the_old_object_and_nothing_else() {
    let (store, path) = store();
    let (old, new) = (pattern(2 * 4096, 4), pattern(LEN, 5));
    store.put("a", DType::U8, &[old.len() as u64], &old).unwrap();
    store.flush().unwrap();
    let used = path.counters().used_bytes;
    let require_only_the_old = || {
        assert_eq!(read(&store, "a").unwrap(), old);
        store.flush().unwrap();
        eventually("no chunk of it is on the path", || path.counters().used_bytes == used);
        let in_memory = || store.stats().host.in_use;
        eventually("no chunk of it is in memory", || in_memory() <= 2 * GRANULE);
    };
    // Dropped in its middle for certain: its last chunk waits for memory, and no path answers.
    path.stall();
    let mut put = store.put_async("a", DType::U8, &[LEN as u64], new.clone());
    assert!(poll_times(put.as_mut(), 1).is_pending());
    drop(put);
    path.release();
    require_only_the_old();
    // Dropped before the answer that it waits for has come, and after.
    for (polls, late) in (0..).flat_map(|polls| [(polls, false), (polls, true)]) {
        let mut put = store.put_async("a", DType::U8, &[LEN as u64], new.clone());
        if poll_times(put.as_mut(), polls).is_ready() {
            break;
        }
        std::thread::sleep(Duration::from_millis(if late { 3 } else { 0 }));
        drop(put);
        require_only_the_old();
    }
    assert_eq!(read(&store, "a").unwrap(), new);
    // No frame counts as lent any more: who asks for too much is told so at once.
    let all = soon(store.lease_read(&one_chunk(&store, "all", 6), 0)).unwrap();
    let error = soon(store.lease_read(&one_chunk(&store, "more", 1), 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    drop(all);
}

#[test]
fn reads_and_writes_dropped_after_any_poll_harm_nobody() {
    let (store, _) = store();
    let bytes = pattern(LEN, 6);
    let object = store.put("a", DType::U8, &[LEN as u64], &bytes).unwrap();
    for polls in 0.. {
        store.evict(&object).unwrap();
        let mut get = store.get_into_async(&object, vec![0; LEN]);
        let Poll::Ready(into) = poll_times(get.as_mut(), polls) else { continue };
        assert_eq!(into.unwrap(), bytes);
        break;
    }
    for polls in 0.. {
        store.evict(&object).unwrap();
        let mut write = store.write_range_async(&object, 10..LEN as u64, vec![1; LEN - 10]);
        let done = poll_times(write.as_mut(), polls).is_ready();
        drop(write);
        let now = read(&store, "a").unwrap();
        let written = now.iter().zip(&bytes).position(|(now, old)| now != old).is_some();
        // Chunks are written whole or not at all, in order.
        let whole = (1..=7).map(|chunks| (chunks * 4096).min(LEN));
        let ends: Vec<usize> = std::iter::once(10).chain(whole).collect();
        let is_split = |end: &&usize| {
            now[10..**end].iter().all(|byte| *byte == 1) && now[**end..] == bytes[**end..]
        };
        assert!(ends.iter().any(|end| is_split(&end)), "after {polls} polls, {written}");
        if done {
            assert_eq!(now[10..], vec![1; LEN - 10]);
            break;
        }
    }
    assert_eq!(read(&store, "a").unwrap()[..10], bytes[..10]);
}

#[test]
fn a_part_that_nobody_waited_for_to_the_end_is_not_lost() {
    let (store, _) = store();
    let bytes = pattern(LEN, 7);
    store.put("a", DType::U8, &[LEN as u64], &bytes).unwrap();
    store.evict("a").unwrap();
    let (mut parts, mut all) = (store.get("a").unwrap(), Vec::new());
    while parts.len() > 0 {
        let _ = poll_times(std::pin::pin!(parts.next_async()), 0);
        let mut part = Box::pin(parts.next_async());
        match poll_times(part.as_mut(), 1) {
            Poll::Ready(part) => all.extend_from_slice(&part.unwrap().unwrap()),
            Poll::Pending => drop(part),
        }
    }
    assert_eq!(all, bytes);
    assert!(parts.next().is_none());
}

#[test]
fn many_at_once_on_one_thread() {
    // A lease that was granted and not yet polled holds its memory: the others must wait for it.
    let builder = builder(6, &[memory("path", Mischief::default())]).chunk_bytes(GRANULE);
    let store = builder.wait_for_leases(common::PATIENCE).open().unwrap();
    let verbs: Vec<_> = (0..40u64)
        .map(|i| {
            let store = store.clone();
            Box::pin(async move {
                let (key, len) = (format!("t{i}"), 100 + 400 * i);
                let bytes = pattern(len as usize, i);
                let (object, bytes) = store.put_async(&key, DType::U8, &[len], bytes).await?;
                let into = store.get_into_async(&object, vec![0; bytes.len()]).await?;
                store.evict_async(&key).await?;
                Ok::<_, Error>(into == bytes)
            })
        })
        .collect();
    let mut verbs: Vec<_> = verbs.into_iter().collect();
    let mut ended = 0;
    let all = std::future::poll_fn(|cx| {
        verbs.retain_mut(|verb| match verb.as_mut().poll(cx) {
            Poll::Ready(same) => {
                assert!(same.unwrap());
                ended += 1;
                false
            }
            Poll::Pending => true,
        });
        if verbs.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    block_on(all);
    assert_eq!(ended, 40);
    put(&store, "after", 1, 1);
}
