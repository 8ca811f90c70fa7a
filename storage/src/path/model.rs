//! Models of one path: each request is answered once, also when its deadline passes meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Kind;
use super::admission::Limits;
use super::profile::PathProfile;
use super::pump::{Part, Pump};
use super::request::{Answer, Request};
use super::segment::{Making, Segments};
use super::store::TransferError;
use crate::arena::{Arena, GRANULE};
use crate::clock::Clock;
use crate::error::Errno;
use crate::id::Class;
use crate::io::{Completion, EngineKind, IoEngine, Operation, Transfer};
use crate::sync::{any_of, channel, check, thread};

#[test]
fn the_last_part_tells_whichever_it_is() {
    check(1, || {
        let answer = Answer::Read(Box::new(|_| {}));
        let request = Arc::new(Request::new(answer, 3, 3));
        let error = |offset| TransferError { errno: Errno(libc::EIO), offset };
        let results = [Ok(()), Err(error(9)), Err(error(5))];
        let parts = results.map(|result| {
            let request = Arc::clone(&request);
            thread::spawn(move || request.part_done(result))
        });
        let told: Vec<_> = parts.into_iter().filter_map(|part| part.join().unwrap()).collect();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].1, Err(error(5)));
    });
}

/// An engine that has a thread complete each operation, well or not.
#[derive(Debug)]
struct Engine(channel::Sender<Operation>);

impl Engine {
    fn start() -> Arc<Self> {
        let (send, operations) = channel::unbounded::<Operation>();
        for _ in 0..2 {
            let operations = operations.clone();
            thread::spawn(move || {
                for operation in operations {
                    let Operation { transfer, done, .. } = operation;
                    let (bytes, result) = match any_of(4) {
                        0 => (0, Err(Errno(libc::EIO))),
                        _ => (transfer.bytes(), Ok(())),
                    };
                    done(Completion { result, bytes, took: Duration::ZERO, transfer });
                }
            });
        }
        Arc::new(Engine(send))
    }
}

impl IoEngine for Engine {
    fn submit(&self, operation: Operation) {
        assert!(self.0.send(operation).is_ok());
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Threads
    }
}

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn a_request_is_answered_once_also_when_the_path_hangs_or_closes() {
    let file = Arc::new(tempfile::tempfile().unwrap());
    check(4, move || {
        let clock = Clock::manual();
        let limits = (Limits::new(Kind::Nvme, None, None), DEADLINE);
        let seed = PathProfile::new(1e9, 1e9, 0.0);
        let making = Making { direct: false, fallocate: false, quota: u64::MAX };
        let segments = Arc::new(Segments::new(making));
        let clocked = clock.clone();
        let pump = Pump::start(Engine::start(), clocked, segments, limits, seed, None).unwrap();
        let arena = Arena::new(2 * GRANULE).unwrap();
        let frame = arena.try_alloc(2 * GRANULE).unwrap().unwrap().share();
        let (told, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let threads = [0, 1].map(|_| {
            let (pump, frame, file) = (Arc::clone(&pump), frame.clone(), Arc::clone(&file));
            let (told, refused) = (Arc::clone(&told), Arc::clone(&refused));
            thread::spawn(move || {
                let tell = move |_| {
                    told.fetch_add(1, Ordering::SeqCst);
                };
                let answer = Answer::Write(Box::new(tell));
                let request = Arc::new(Request::new(answer, 2 * GRANULE, 2));
                let part = |offset| Part {
                    request: Arc::clone(&request),
                    file: Arc::clone(&file),
                    offset,
                    transfer: Transfer::Write(frame.whole()),
                };
                if pump.submit(Class::WriteBack, vec![part(0), part(GRANULE)]).is_err() {
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        for _ in 0..any_of(3) {
            clock.advance(DEADLINE);
        }
        if any_of(2) == 0 {
            let (operations, answered) = pump.close(DEADLINE);
            assert!(!answered || operations == 0 || told.load(Ordering::SeqCst) > 0);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let weak = Arc::downgrade(&pump);
        drop(pump);
        // Whoever still has an operation holds the pump.
        while weak.upgrade().is_some() {
            thread::yield_now();
        }
        let (told, refused) = (told.load(Ordering::SeqCst), refused.load(Ordering::SeqCst));
        assert_eq!(told + refused, 2);
        drop(frame);
        assert_eq!(arena.usage().in_use, 0);
    });
}
