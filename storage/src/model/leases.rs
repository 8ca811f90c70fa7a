//! A store with its real mover: whoever asks for a lease is answered, whatever else goes on, and at the
//! end nothing holds memory.

use std::sync::Arc;
use std::time::Duration;

use crate::arena::GRANULE;
use crate::clock::Clock;
use crate::dtype::DType;
use crate::error::Error;
use crate::path::PathStore;
use crate::path::memory::MemoryPath;
use crate::store::{ObjectRef, Store};
use crate::sync::{any_of, check, thread};

/// Opens a store of so many granules over a path in memory. Its clock stands still: patience never
/// ends.
fn store(granules: u64) -> Store {
    store_over(granules, &Arc::new(MemoryPath::new("memory", 1e9)))
}

fn store_over(granules: u64, path: &Arc<MemoryPath>) -> Store {
    let builder = Store::builder().host_budget(granules * GRANULE).chunk_bytes(GRANULE);
    let builder = builder.clock(Clock::manual()).wait_for_leases(Duration::from_secs(1));
    builder.path_store(Arc::clone(path) as Arc<dyn PathStore>).open().unwrap()
}

fn put(store: &Store, key: &str, byte: u8) -> ObjectRef {
    store.put(key, DType::U8, &[GRANULE], &[byte; GRANULE as usize]).unwrap()
}

/// Waits until all memory came back. What is being written keeps its own a little longer.
fn expect_all_free(store: &Store) {
    while store.stats().host.in_use > 0 {
        thread::yield_now();
    }
}

/// Closes. A path may not be done within whatever grace.
fn end(store: &Store) {
    let _ = store.close(Duration::from_secs(1));
    expect_all_free(store);
}

/// Reads or rewrites the chunk and looks at its bytes.
fn use_once(store: &Store, object: &ObjectRef, byte: u8) {
    if any_of(2) == 0 {
        let lease = store.lease_read(object, 0).wait().unwrap();
        assert!(lease.iter().all(|b| *b == byte));
    } else {
        let mut lease = store.lease_write(object, 0).wait().unwrap();
        assert!(lease.iter().all(|b| *b == byte));
        lease.fill(byte);
    }
}

#[test]
fn leases_of_more_than_memory_holds_are_all_granted() {
    check(20, || {
        let store = store(1);
        let objects = [put(&store, "a", 1), put(&store, "b", 2)];
        let threads: Vec<_> = [0, 1]
            .map(|first| {
                let (store, objects) = (store.clone(), objects.clone());
                thread::spawn(move || {
                    // Now and then nobody does anything after a lease that another waits for.
                    for index in [first, 1 - first].into_iter().take(1 + any_of(2) as usize) {
                        use_once(&store, &objects[index], index as u8 + 1);
                    }
                })
            })
            .into();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        end(&store);
    });
}

#[test]
fn leases_of_one_chunk_its_eviction_and_its_end_leave_nothing() {
    check(20, || {
        let store = store(2);
        let object = put(&store, "a", 1);
        let leasing = [0, 1].map(|_| {
            let (store, object) = (store.clone(), object.clone());
            thread::spawn(move || {
                let ticket = store.lease_write(&object, 0);
                let ticket = if any_of(3) == 0 {
                    let Err(ticket) = ticket.wait_timeout(Duration::ZERO) else { return };
                    drop(ticket);
                    store.lease_write(&object, 0)
                } else {
                    ticket
                };
                match ticket.wait() {
                    Ok(mut lease) => lease.fill(1),
                    Err(Error::NotFound { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            })
        });
        let evicting = {
            let (store, object) = (store.clone(), object.clone());
            thread::spawn(move || {
                // It may be leased, or gone.
                let _ = store.evict(&object);
            })
        };
        let deleted = any_of(2) == 0;
        if deleted {
            store.delete("a").unwrap();
        }
        leasing.into_iter().for_each(|thread| thread.join().unwrap());
        evicting.join().unwrap();
        store.barrier().unwrap();
        if deleted {
            expect_all_free(&store);
        } else {
            use_once(&store, &object, 1);
        }
        end(&store);
    });
}

#[test]
fn who_waits_while_the_store_closes_is_answered() {
    check(20, || {
        let path = Arc::new(MemoryPath::new("memory", 1e9));
        let store = store_over(1, &path);
        let objects = [put(&store, "a", 1), put(&store, "b", 2)];
        let threads = [0, 1].map(|index| {
            let (store, objects) = (store.clone(), objects.clone());
            thread::spawn(move || {
                for index in [index, any_of(2) as usize] {
                    let object = &objects[index];
                    match store.lease_read(object, 0).wait() {
                        Ok(lease) => assert_eq!(usize::from(lease[0]), index + 1),
                        Err(Error::Closed) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        // What is being read then is not there when all are refused.
        if any_of(2) == 0 {
            path.stall();
        }
        let _ = store.close(Duration::from_secs(1));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        path.release();
        expect_all_free(&store);
    });
}

#[test]
fn a_schedule_that_begins_or_ends_meanwhile_stops_nobody() {
    check(20, || {
        let store = store(3);
        let objects = [put(&store, "a", 1), put(&store, "b", 2), put(&store, "c", 3)];
        let stepping = {
            let (store, objects) = (store.clone(), objects.clone());
            thread::spawn(move || {
                for (index, object) in objects.iter().enumerate() {
                    let mut lease = store.lease_write(object, 0).wait().unwrap();
                    assert_eq!(usize::from(lease[0]), index + 1);
                    lease.fill(index as u8 + 1);
                }
            })
        };
        let schedule = store.schedule();
        schedule.declare(&objects, &objects, 2 * GRANULE).unwrap();
        if any_of(2) == 0 {
            drop(schedule);
        }
        stepping.join().unwrap();
        end(&store);
    });
}
