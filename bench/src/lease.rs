//! Lease and drop of a chunk that is in memory: nanoseconds of one, on one thread and on two.
//!
//! The figure is processor time of the thread: on a shared machine the clock also counts others'
//! turns. What passed on the clock stands beside it.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::{ObjectRef, Store};

use crate::Failure;
use crate::machine::thread_cpu_time;
use crate::options::{Options, Scratch};
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

/// What it is called, what each thread does, and with which chunks.
type Case<'a> = (&'static str, How, &'a [(&'a ObjectRef, u32)]);

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
    let _between = put("a key of 41 bytes, as tensors have: w.0.k")?;
    let b = put("a key of 41 bytes, as tensors have: w.0.v")?;
    let cases: [Case<'_>; 8] = [
        ("read, one thread", How::Read, &[(&a, 0)]),
        ("write, one thread", How::Write, &[(&a, 0)]),
        ("by key, one thread", How::ByKey, &[(&a, 0)]),
        ("read, two threads, own objects", How::Read, &[(&a, 0), (&b, 0)]),
        ("write, two threads, own objects", How::Write, &[(&a, 0), (&b, 0)]),
        ("read, two threads, own chunks", How::Read, &[(&a, 0), (&a, 1)]),
        ("read, two threads, one chunk", How::Read, &[(&a, 0), (&a, 0)]),
        ("by key, two threads, own objects", How::ByKey, &[(&a, 0), (&b, 0)]),
    ];
    for (case, how, chunks) in cases {
        let mut times = Vec::new();
        options.repeat(REPEATS, || {
            times.push(nanos(&store, how, chunks)?);
            Ok(())
        })?;
        let clock = Spread::of(times.iter().map(|(_, clock)| *clock));
        let figure = Figure::new(ROW, case, "ns", Spread::of(times.iter().map(|(cpu, _)| *cpu)));
        table.push(&figure.bar(Bar::AtMost(500.0)).note(format!("on the clock {clock} ns")));
    }
    Ok(())
}

/// Returns the nanoseconds that one lease and its drop take a thread, of processor time and on the
/// clock, of the slowest thread.
fn nanos(store: &Store, how: How, chunks: &[(&ObjectRef, u32)]) -> Result<(f64, f64), Failure> {
    let barrier = Barrier::new(chunks.len());
    let one = |(object, chunk): (&ObjectRef, u32)| -> Result<(f64, f64), Failure> {
        let key = object.stat().key;
        barrier.wait();
        let (begin, cpu) = (Instant::now(), thread_cpu_time());
        for _ in 0..LEASES {
            match how {
                How::Read => drop(store.lease_read(object, chunk).wait()?),
                How::Write => drop(store.lease_write(object, chunk).wait()?),
                How::ByKey => drop(store.lease_read(&store.object(&key)?, chunk).wait()?),
            }
        }
        let cpu = thread_cpu_time() - cpu;
        let each = |all: std::time::Duration| all.as_secs_f64() * 1e9 / f64::from(LEASES);
        Ok((each(cpu), each(begin.elapsed())))
    };
    let times = thread::scope(|scope| {
        let handles: Vec<_> = chunks.iter().map(|chunk| scope.spawn(|| one(*chunk))).collect();
        let joined = handles.into_iter().map(|handle| handle.join());
        joined
            .map(|time| time.map_err(|_| "a thread panicked")?)
            .collect::<Result<Vec<_>, Failure>>()
    })?;
    let slowest =
        |(cpu, clock): (f64, f64), time: &(f64, f64)| (cpu.max(time.0), clock.max(time.1));
    Ok(times.iter().fold((0.0, 0.0), slowest))
}
