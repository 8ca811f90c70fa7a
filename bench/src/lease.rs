//! Lease and drop of a chunk that is in memory: nanoseconds of one, on one thread and on two, and of
//! a get of the same bytes from another cache in turns with it (see `peer.rs`).
//!
//! The figure is processor time of the thread: on a shared machine the clock also counts others'
//! turns. What passed on the clock stands beside it.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::{ObjectRef, Store};

use crate::Failure;
use crate::machine::thread_cpu_time;
use crate::options::{Options, Scratch};
use crate::peer;
use crate::table::{Bar, Figure, Spread, Table};

const ROW: &str = "lease";
const CHUNK: u64 = 64 << 10;
const LEASES: u32 = 300_000;
const REPEATS: usize = 7;

#[derive(Clone, Copy)]
enum How {
    Read,
    Write,
    ByKey,
}

/// The case in which nothing can be done at the same time.
const ONE_CHUNK: &str = "read, two threads, one chunk";

/// What it is called, what each thread does, and with which chunks.
type Case<'a> = (&'static str, How, &'a [(&'a ObjectRef, u32)]);

/// Nanoseconds of one call: processor time, and on the clock.
type Nanos = (f64, f64);

/// Measures the row.
///
/// # Errors
/// Those of the store.
pub fn run(options: &Options, table: &Table) -> Result<(), Failure> {
    let scratch = Scratch::new(&options.dir(), "lease")?;
    let builder = Store::builder().host_budget(64 << 20).chunk_bytes(CHUNK);
    let store = builder.path(Path::new(scratch.path())).open()?;
    let put = |key: &str| store.put(key, DType::U8, &[2 * CHUNK], &vec![1; 2 * CHUNK as usize]);
    let a = put("a key of 41 bytes, as tensors have: w.0.q")?;
    // Between two tensors of use there are others, as in memory.
    let between = put("a key of 41 bytes, as tensors have: w.0.k")?;
    let b = put("a key of 41 bytes, as tensors have: w.0.v")?;
    let value = || Bytes::from(vec![1; CHUNK as usize]);
    let entries = [&a, &between, &b].into_iter().flat_map(|object| [(object, 0), (object, 1)]);
    let peer = peer::of(entries.map(|chunk| (name(chunk), value())).collect());
    let cases: [Case<'_>; 8] = [
        ("read, one thread", How::Read, &[(&a, 0)]),
        ("write, one thread", How::Write, &[(&a, 0)]),
        ("by key, one thread", How::ByKey, &[(&a, 0)]),
        ("read, two threads, own objects", How::Read, &[(&a, 0), (&b, 0)]),
        ("write, two threads, own objects", How::Write, &[(&a, 0), (&b, 0)]),
        ("read, two threads, own chunks", How::Read, &[(&a, 0), (&a, 1)]),
        (ONE_CHUNK, How::Read, &[(&a, 0), (&a, 0)]),
        ("by key, two threads, own objects", How::ByKey, &[(&a, 0), (&b, 0)]),
    ];
    for (case, how, chunks) in cases {
        let keys: Vec<_> = chunks.iter().map(|(object, _)| object.stat().key).collect();
        let names: Vec<_> = chunks.iter().map(|chunk| name(*chunk)).collect();
        let lease = |thread: usize| lease(&store, how, chunks[thread], &keys[thread]);
        let (mut own, mut others) = (Vec::new(), Vec::new());
        options.repeat(REPEATS, || {
            own.push(nanos(chunks.len(), lease)?);
            if let Some(get) = &peer {
                let once = |thread: usize| get(&names[thread]).then_some(()).ok_or("it is gone");
                others.push(nanos(chunks.len(), |thread| Ok(once(thread)?))?);
            }
            Ok(())
        })?;
        table.push(&figure(case, &own, &others));
    }
    if peer.is_none() {
        eprintln!("foyer's get of the same bytes beside each: build with --features foyer");
    }
    Ok(())
}

/// Returns what the other cache has a chunk under: it knows no objects of several.
fn name((object, chunk): (&ObjectRef, u32)) -> String {
    let mut name = object.stat().key.to_string();
    // As long as the key, so that to find it takes as long.
    name.pop();
    name + &chunk.to_string()
}

fn lease(
    store: &Store,
    how: How,
    (object, chunk): (&ObjectRef, u32),
    key: &str,
) -> Result<(), Failure> {
    match how {
        How::Read => drop(store.lease_read(object, chunk).wait()?),
        How::Write => drop(store.lease_write(object, chunk).wait()?),
        How::ByKey => drop(store.lease_read(&store.object(key)?, chunk).wait()?),
    }
    Ok(())
}

fn figure(case: &str, own: &[Nanos], others: &[Nanos]) -> Figure {
    let clock = |times: &[Nanos]| Spread::of(times.iter().map(|(_, clock)| *clock));
    let note = format!("on the clock {} ns", clock(own));
    let figure = if others.is_empty() {
        let cpu = Spread::of(own.iter().map(|(cpu, _)| *cpu));
        Figure::new(ROW, case, "ns", cpu).note(note)
    } else {
        let pairs: Vec<_> =
            own.iter().zip(others).map(|((own, _), (other, _))| (*own, *other)).collect();
        let note = format!("{note}; limit: foyer's get, on the clock {} ns", clock(others));
        Figure::of_pairs(ROW, case, "ns", &pairs).note(note)
    };
    // Two threads that count in one place wait for each other, whoever does the counting.
    if case == ONE_CHUNK { figure } else { figure.bar(Bar::AtMost(500.0)) }
}

/// Returns the nanoseconds that one call takes a thread, of the slowest thread; each calls with its
/// number.
fn nanos(
    threads: usize,
    call: impl Fn(usize) -> Result<(), Failure> + Sync,
) -> Result<Nanos, Failure> {
    let barrier = Barrier::new(threads);
    let one = |thread: usize| -> Result<Nanos, Failure> {
        barrier.wait();
        let (begin, cpu) = (Instant::now(), thread_cpu_time());
        for _ in 0..LEASES {
            call(thread)?;
        }
        let cpu = thread_cpu_time() - cpu;
        let each = |all: Duration| all.as_secs_f64() * 1e9 / f64::from(LEASES);
        Ok((each(cpu), each(begin.elapsed())))
    };
    let times = thread::scope(|scope| {
        let one = &one;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let joined = handles.into_iter().map(|handle| handle.join());
        joined
            .map(|time| time.map_err(|_| "a thread panicked")?)
            .collect::<Result<Vec<_>, Failure>>()
    })?;
    let slowest = |(cpu, clock): Nanos, time: &Nanos| (cpu.max(time.0), clock.max(time.1));
    Ok(times.iter().fold((0.0, 0.0), slowest))
}
