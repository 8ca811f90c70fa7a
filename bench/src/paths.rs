//! Several paths of unequal speed: put, get, and both at once, against the sum of what the paths may
//! carry.

use std::thread;

use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::Store;
use tensortier::storage::units::BytesPerSecond;

use crate::Failure;
use crate::machine::took;
use crate::options::{Options, Scratch};
use crate::table::{Bar, Figure, Table};

const ROW: &str = "paths";
const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4 * MIB;
const MEMORY: u64 = 256 * MIB;
const REPEATS: usize = 5;

/// How long the given paths are to be busy with an object at least, in seconds: a throttle of the
/// system counts in slices, and one of them more or less is to be a few percent of the whole.
const GIVEN_SECONDS: f64 = 4.0;

/// Token buckets in MB/s, as 1 : 1.7 : 5 and once more the slowest.
const CAPS: [f64; 4] = [100e6, 170e6, 500e6, 100e6];

/// Token buckets in MB/s for reads and for writes, whose ratio differs from path to path.
const UNEQUAL: [[(f64, f64); 2]; 2] =
    [[(200e6, 100e6), (100e6, 200e6)], [(300e6, 100e6), (100e6, 100e6)]];

/// A set of paths and what they carry each way together.
struct Set {
    name: String,
    paths: Vec<Path>,
    sum: f64,
    slowest: f64,
    least_seconds: f64,
    /// Whether reads and writes have the same ratio on all of them. If not, the sum is that of the
    /// slower ways: what is put on a path is got from it, so no more than that goes through for good.
    alike: bool,
}

/// Measures the row.
///
/// # Errors
/// Those of the store.
pub fn run(options: &Options, table: &Table) -> Result<(), Failure> {
    let known = options.known();
    if known.is_empty() {
        for count in 2..=CAPS.len() {
            let caps: Vec<_> = CAPS[..count].iter().map(|cap| (*cap, *cap)).collect();
            measure_capped(options, table, format!("{count} capped"), &caps)?;
        }
        for caps in UNEQUAL {
            let shown = caps.map(|(read, write)| format!("{}r/{}w", read / 1e6, write / 1e6));
            measure_capped(options, table, shown.join(" + "), &caps)?;
        }
    } else {
        let rates: Vec<f64> = known.iter().filter_map(|path| path.bps).collect();
        let paths = known.iter().map(|path| Path::new(&path.dir)).collect();
        let set = Set::new(format!("{} given", known.len()), paths, &rates);
        measure(options, table, &Set { least_seconds: GIVEN_SECONDS, ..set })?;
    }
    Ok(())
}

/// Measures paths with token buckets for reads and writes.
fn measure_capped(
    options: &Options,
    table: &Table,
    name: String,
    caps: &[(f64, f64)],
) -> Result<(), Failure> {
    let dirs: Vec<_> = options.paths.iter().map(|path| path.dir.clone()).collect();
    let own = |i: usize| {
        let parent = dirs.get(i % dirs.len().max(1)).cloned();
        Scratch::new(&parent.unwrap_or_else(std::env::temp_dir), &format!("capped-{i}"))
    };
    let scratch = (0..caps.len()).map(own).collect::<Result<Vec<_>, _>>()?;
    let capped = |(dir, (read, write)): (&Scratch, &(f64, f64))| {
        Path::new(dir.path()).read_cap(BytesPerSecond(*read)).write_cap(BytesPerSecond(*write))
    };
    let paths = scratch.iter().zip(caps).map(capped).collect();
    let slower: Vec<_> = caps.iter().map(|(read, write)| read.min(*write)).collect();
    let alike = caps.iter().all(|(read, write)| read * caps[0].1 == write * caps[0].0);
    measure(options, table, &Set { alike, ..Set::new(name, paths, &slower) })
}

impl Set {
    fn new(name: String, paths: Vec<Path>, rates: &[f64]) -> Self {
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Set { name, paths, sum: rates.iter().sum(), slowest, least_seconds: 0.0, alike: true }
    }

    fn open(&self) -> Result<Store, Failure> {
        let builder = Store::builder().host_budget(MEMORY).chunk_bytes(CHUNK);
        Ok(self.paths.iter().fold(builder, |builder, path| builder.path(path.clone())).open()?)
    }
}

/// What is done, and how often the bytes of an object move.
const CASES: [(&str, f64); 3] = [("put", 1.0), ("get", 1.0), ("put and get", 2.0)];

/// Measures fresh stores, each once with what it learned in the moment it was opened (cold) and once
/// more (warm).
fn measure(options: &Options, table: &Table, set: &Set) -> Result<(), Failure> {
    // As much as the bar asks for: 32 chunks on the slowest path.
    let least = set.least_seconds * set.sum / CHUNK as f64;
    let chunks = least.max(32.0 * set.sum / set.slowest).ceil() as u64;
    let bytes = chunks * CHUNK;
    let buffer: Vec<u8> = (0..bytes / 8).flat_map(u64::to_le_bytes).collect();
    let mut times: [[Vec<f64>; 3]; 2] = Default::default();
    options.repeat(REPEATS, || {
        let store = set.open()?;
        touch_memory(&store)?;
        for times in &mut times {
            for (times, seconds) in times.iter_mut().zip(round(&store, &buffer)?) {
                times.push(seconds);
            }
        }
        Ok(())
    })?;
    for (state, times) in ["cold", "warm"].into_iter().zip(times) {
        for ((case, ways), times) in CASES.iter().zip(times) {
            let mbps = |seconds: f64| ways * bytes as f64 / seconds / 1e6;
            let pairs: Vec<_> = times.iter().map(|s| (mbps(*s), ways * set.sum / 1e6)).collect();
            let case = format!("{}: {case}, {state}", set.name);
            let figure = Figure::of_pairs(ROW, case, "MB/s", &pairs);
            let note = format!("{} MiB in chunks of 4 MiB each way", bytes / MIB);
            let figure = figure.note(note);
            table.push(&if set.alike { figure.bar(Bar::Ratio(0.97)) } else { figure });
        }
    }
    Ok(())
}

/// Has the store use all of its memory once, without a byte on a path: the system's part in that is no
/// property of the paths.
fn touch_memory(store: &Store) -> Result<(), Failure> {
    let bytes = MEMORY - 2 * CHUNK;
    store.create("memory", DType::U8, &[bytes])?;
    for part in store.get("memory")? {
        drop(part?);
    }
    store.delete("memory")?;
    Ok(store.barrier()?)
}

/// Puts an object, gets it, and puts another while it gets the first; returns the seconds of each.
fn round(store: &Store, buffer: &[u8]) -> Result<[f64; 3], Failure> {
    let put = |key: &str| -> Result<(), Failure> {
        store.put(key, DType::U8, &[buffer.len() as u64], buffer)?;
        Ok(store.flush()?)
    };
    let get = |key: &str| -> Result<(), Failure> {
        let mut at = 0;
        for part in store.get(key)? {
            let part = part?;
            if part[..8] != buffer[at..at + 8] {
                return Err(format!("{key} has other bytes at {at}").into());
            }
            at += part.len();
        }
        Ok(())
    };
    let gone = |key: &str| -> Result<(), Failure> {
        store.evict(key)?;
        Ok(store.barrier()?)
    };
    let put_seconds = took(|| put("a"))?.seconds;
    gone("a")?;
    let get_seconds = took(|| get("a"))?.seconds;
    gone("a")?;
    let both_seconds = took(|| both(|| put("b"), || get("a")))?.seconds;
    for key in ["a", "b"] {
        store.delete(key)?;
    }
    store.barrier()?;
    Ok([put_seconds, get_seconds, both_seconds])
}

fn both(
    one: impl FnOnce() -> Result<(), Failure> + Send,
    other: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        one.join().map_err(|_| "a thread panicked")??;
        other
    })
}
