//! Measures what checksums and compression cost and save: on one core alone, and through a store.
//!
//! Data: fp32 moments (`exp_avg` and `exp_avg_sq` of a normal gradient) and a tensor of which one
//! element in twenty is not zero. The first table is the codec by itself, per logical byte, the best
//! of several passes. The second puts a tensor through a store with a budget of a quarter of it on the
//! directory named by the argument (/var/tmp otherwise) and reads it back; CPU is that of the whole
//! process, its copies in and out included.

use std::error::Error;
use std::time::{Duration, Instant};

use tensortier::storage::codec::{Checksums, Encoding, Packed, Scratch, Trial};
use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::{Compression, Store};
use tensortier_bench::contents::{self, Random};

const CHUNK: usize = 16 << 20;
const TENSOR: usize = 512 << 20;
const PASSES: usize = 5;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn data() -> [(&'static str, Vec<u8>); 3] {
    let sparse = |random: &mut Random, _| {
        if random.uniform() < 0.05 { random.normal() } else { 0.0 }
    };
    [
        ("exp_avg", contents::first_moments(CHUNK)),
        ("exp_avg_sq", contents::second_moments(CHUNK)),
        ("5 % non-zero", contents::fp32(CHUNK, sparse)),
    ]
}

/// Returns bytes per second, in GB, of the fastest pass over a chunk.
fn fastest(mut pass: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        pass();
        start.elapsed()
    };
    let best = (0..PASSES).map(time).min().unwrap_or(Duration::MAX);
    CHUNK as f64 / best.as_secs_f64() / 1e9
}

fn codec_alone(name: &str, bytes: &[u8]) -> Outcome<()> {
    let mut scratch = Scratch::default();
    let sums = fastest(|| drop(Checksums::of(bytes)));
    for width in [1, 4] {
        let mut trial = None;
        let tried = fastest(|| trial = Trial::of(bytes, width, &mut scratch));
        print!("{name:13} {width:>5} {sums:>9.1} {tried:>9.1}");
        // What stays raw is measured as if it did not.
        let encoding = match (trial, width) {
            (Some(Trial { encoding, .. }), _) => encoding,
            (None, 1) => Encoding::Lz4,
            (None, width) => Encoding::ShuffledLz4 { width },
        };
        let (mut stored, mut packed) = (vec![0; CHUNK], None);
        let pack = fastest(|| packed = Packed::pack(bytes, encoding, &mut stored, &mut scratch));
        let packed = packed.ok_or("a chunk grew")?;
        let mut ok = true;
        let stored = &stored[..packed.stored_bytes() as usize];
        let mut into = vec![0; CHUNK];
        let unpack = fastest(|| {
            into[..stored.len()].copy_from_slice(stored);
            ok &= packed.unpack_in_place(&mut into, &mut scratch).is_ok();
        });
        if !ok || into != bytes {
            return Err("the bytes did not come back".into());
        }
        let ratio = stored.len() as f64 / CHUNK as f64;
        let verdict = if trial.is_none() { ", does not pay" } else { "" };
        println!(" {pack:>9.2} {unpack:>9.2} {ratio:>7.3}  {encoding:?}{verdict}");
    }
    Ok(())
}

/// Returns the processor time of this process so far.
fn cpu() -> Outcome<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields.get(11).ok_or("no utime")?.parse::<u64>()?
        + fields.get(12).ok_or("no stime")?.parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Runs `work` on the whole tensor; returns GB/s and processor seconds per GB.
fn through(work: impl FnOnce() -> Outcome<()>) -> Outcome<[f64; 2]> {
    let (start, cpu_before) = (Instant::now(), cpu()?);
    work()?;
    let gigabytes = TENSOR as f64 / 1e9;
    let spent = cpu()? - cpu_before;
    Ok([gigabytes / start.elapsed().as_secs_f64(), spent.as_secs_f64() / gigabytes])
}

fn store(name: &str, bytes: &[u8], dir: &str, checksums: bool, on: Compression) -> Outcome<()> {
    let store = Store::builder()
        .host_budget(TENSOR as u64 / 4)
        .chunk_bytes(CHUNK as u64)
        .checksums(checksums)
        .compression(on)
        .packing_bytes(2 * CHUNK as u64)
        .path(Path::new(dir))
        .open()?;
    let tensor = bytes.repeat(TENSOR / CHUNK);
    let mut back = vec![1; TENSOR];
    let [put, put_cpu] = through(|| {
        store.put("tensor", DType::F32, &[TENSOR as u64 / 4], &tensor)?;
        store.evict("tensor")?;
        Ok(())
    })?;
    let [get, get_cpu] = through(|| Ok(store.get_into("tensor", &mut back)?))?;
    if back != tensor {
        return Err("the store returned other bytes".into());
    }
    let ratio = store.stats().counters.stored_ratio().unwrap_or(f64::NAN);
    let sums = if checksums { "on" } else { "off" };
    let on = if on == Compression::Off { "off" } else { "lz4" };
    print!("{name:13} {sums:>5} {on:>5} {ratio:>7.3}");
    println!(" {put:>9.2} {put_cpu:>9.2} {get:>9.2} {get_cpu:>9.2}");
    store.close(Duration::from_secs(20))?;
    Ok(())
}

fn main() -> Outcome<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| String::from("/var/tmp"));
    let data = data();
    println!("data          width  sum GB/s  try GB/s pack GB/s  unp GB/s   ratio");
    data.iter().try_for_each(|(name, bytes)| codec_alone(name, bytes))?;
    println!("\ndata           sums   lz4   ratio  put GB/s  CPU s/GB  get GB/s  CPU s/GB");
    for (name, bytes) in &data {
        for checksums in [false, true] {
            for on in [Compression::Off, Compression::Lz4] {
                store(name, bytes, &dir, checksums, on)?;
            }
        }
    }
    Ok(())
}
