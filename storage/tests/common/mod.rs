//! What the tests of the store share: stores over memory paths, patterns, patience.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

pub(crate) mod apart;
pub(crate) mod device;
pub(crate) mod refused;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use proptest::prelude::ProptestConfig;
use tensortier_storage::arena::GRANULE;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::Result;
use tensortier_storage::path::PathStore;
use tensortier_storage::path::memory::{MemoryPath, Mischief};
use tensortier_storage::store::{LeaseTicket, ObjectRef, Store, StoreBuilder};

/// Longer than anything may take; a test that waits so long found a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Returns how many cases a property runs: `usual`, or what TENSORTIER_CASES says. Failures are
/// printed whole, so none is kept in a file.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let cases = std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases.unwrap_or(usual))
    }
}

/// Returns how many rounds a long test runs: `usual`, or what TENSORTIER_CASES says.
pub(crate) fn rounds(usual: u32) -> u64 {
    cases(usual).cases.into()
}

/// A cheap sequence of numbers that is the same every time.
pub(crate) fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns a path in memory that behaves as told.
pub(crate) fn memory(name: &str, mischief: Mischief) -> Arc<MemoryPath> {
    let path = Arc::new(MemoryPath::new(name, 1e9));
    path.set_mischief(mischief);
    path
}

/// Returns the settings of a store of so many granules over these paths.
pub(crate) fn builder(granules: u64, paths: &[Arc<MemoryPath>]) -> StoreBuilder {
    let builder = Store::builder().host_budget(granules * GRANULE);
    paths.iter().fold(builder, |b, path| b.path_store(Arc::clone(path) as Arc<dyn PathStore>))
}

/// Makes an object of one chunk of so many granules.
pub(crate) fn one_chunk(store: &Store, key: &str, granules: u64) -> ObjectRef {
    let bytes = granules * GRANULE;
    store.create_chunked(key, DType::U8, &[bytes], bytes).unwrap()
}

/// Puts an object of one chunk of so many granules, filled with `byte`.
pub(crate) fn put(store: &Store, key: &str, granules: u64, byte: u8) -> ObjectRef {
    let bytes = granules * GRANULE;
    store.put(key, DType::U8, &[bytes], &vec![byte; bytes as usize]).unwrap()
}

/// Returns the object's bytes.
pub(crate) fn read(store: &Store, key: &str) -> Result<Vec<u8>> {
    let mut all = vec![0; store.stat(key)?.bytes as usize];
    store.get_into(key, &mut all).map(|()| all)
}

/// Returns bytes that follow from `seed`.
pub(crate) fn contents(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| ((i >> 9) * 37 + i * 3 + seed * 11) as u8).collect()
}

/// Puts, evicts and reads objects of odd lengths of 2 MiB, several times over; leaves none.
pub(crate) fn exercise(store: &Store) {
    let bytes = |i: u64| (2 << 20) + i * 70_001;
    for round in 0..3 {
        for i in 0..5 {
            let data = contents(i + round, bytes(i));
            store.put(&format!("t{i}"), DType::U8, &[bytes(i)], &data).unwrap();
        }
        (0..5).for_each(|i| store.evict(&format!("t{i}")).unwrap());
        for i in 0..5 {
            assert!(read(store, &format!("t{i}")).unwrap() == contents(i + round, bytes(i)));
        }
    }
    (0..5).for_each(|i| store.delete(&format!("t{i}")).unwrap());
    store.barrier().unwrap();
}

/// Waits for a lease, but not forever.
pub(crate) fn soon<L>(ticket: LeaseTicket<L>) -> Result<L> {
    ticket.wait_timeout(PATIENCE).unwrap_or_else(|_| panic!("a lease was never answered"))
}

/// Runs `call` on a thread of its own and fails if it does not return in time.
pub(crate) fn within_patience<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(call()));
    told.recv_timeout(PATIENCE).expect("it did not return")
}

/// Waits until `holds`, or fails saying what does not.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The smallest executor: polls, and sleeps until woken. Fails if that takes too long.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    match poll_times(pin!(future), usize::MAX) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it was polled often enough"),
    }
}

/// Polls a future so many times, each time but the first after it was woken, or until it is ready.
pub(crate) fn poll_times<F: Future + ?Sized>(
    mut future: Pin<&mut F>,
    times: usize,
) -> Poll<F::Output> {
    struct Tell(Sender<()>);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    let (tell, woken): (_, Receiver<()>) = channel();
    let waker = Waker::from(Arc::new(Tell(tell)));
    for time in 0..times {
        if time > 0 {
            woken.recv_timeout(PATIENCE).expect("it was never woken");
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Poll::Ready(output);
        }
    }
    Poll::Pending
}

/// Returns bytes that differ by place and by `seed`.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
