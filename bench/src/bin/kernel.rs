//! Measures the update kernel: parameters per second and bytes per second of each instruction set,
//! in cache and from memory, on one and two threads.
//!
//! The variant is the common one: `AdamW`, bf16 gradient in, fp32 planes, bf16 weights out, so 28 bytes
//! move per parameter (2 read; 12 read and written; 2 written). From memory, pages decide: on a
//! machine whose transparent huge pages are set to `madvise`, run it under glibc with
//! `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`. The best of several passes is printed; an argument
//! names one instruction set to measure instead of all.

use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tensortier::optimizer::hyper::Hyper;
use tensortier::optimizer::kernel::{Input, Isa, KernelError, Output, Planes, Scalars, update};

const BYTES_PER_PARAM: f64 = 28.0;
/// Parameters per thread whose planes stay in the second-level cache, and that do not in any.
const IN_CACHE: usize = 16 << 10;
const IN_MEMORY: usize = 16 << 20;
const PASSES: usize = 7;

/// One thread's planes, gradient and weights.
struct Work {
    p: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    grad: Vec<u16>,
    weights: Vec<u16>,
}

impl Work {
    fn new(n: usize) -> Self {
        // bf16 patterns from 2^-7 to 1 of either sign: nothing subnormal, nothing the same.
        let grad = (0..n).map(|i| (i as u16 & 0x8000) | 0x3C00 | (i as u16 & 0x037F)).collect();
        let p = (0..n).map(|i| (i % 1000) as f32 * 1e-3 - 0.5).collect();
        Work { p, m: vec![1e-3; n], v: vec![1e-4; n], grad, weights: vec![0; n] }
    }

    fn update(&mut self, isa: Isa, k: &Scalars) -> Result<(), KernelError> {
        let planes = Planes { p: &mut self.p, m: &mut self.m, v: &mut self.v, vmax: None };
        update(isa, k, planes, Input::Bf16(&self.grad), Output::Bf16(&mut self.weights))
    }
}

/// The shortest time for one pass of `repeats` updates of `n` parameters on each of `threads`.
fn fastest(isa: Isa, threads: usize, n: usize, repeats: usize) -> Result<Duration, Box<dyn Error>> {
    let barrier = Barrier::new(threads);
    let pass_times = || -> Result<Vec<Duration>, KernelError> {
        let mut work = Work::new(n);
        let k = Scalars::at(&Hyper::default(), 10, 1.0);
        let mut times = Vec::with_capacity(PASSES);
        let mut result = work.update(isa, &k);
        for _ in 0..PASSES {
            barrier.wait();
            let start = Instant::now();
            for _ in 0..repeats {
                result = result.and(work.update(isa, &k));
            }
            barrier.wait();
            times.push(start.elapsed());
        }
        result.map(|()| times)
    };
    let all = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(pass_times)).collect();
        handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
    });
    let mut best = Duration::MAX;
    for times in all {
        let times = times.map_err(|_| "a measuring thread panicked")??;
        best = times.into_iter().fold(best, Duration::min);
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn Error>> {
    let wanted: Option<Isa> = std::env::args().nth(1).map(|name| name.parse()).transpose()?;
    println!("{:8} {:>7} {:>7} {:>12} {:>8}", "isa", "threads", "where", "Mparams/s", "GB/s");
    for isa in Isa::available().filter(|isa| wanted.is_none_or(|wanted| wanted == *isa)) {
        for (place, n, repeats) in [("cache", IN_CACHE, 512), ("memory", IN_MEMORY, 1)] {
            for threads in [1, 2] {
                let time = fastest(isa, threads, n, repeats)?;
                let rate = (n * repeats * threads) as f64 / time.as_secs_f64();
                println!(
                    "{:8} {threads:>7} {place:>7} {:>12.0} {:>8.1}",
                    isa.name(),
                    rate / 1e6,
                    rate * BYTES_PER_PARAM / 1e9,
                );
            }
        }
    }
    Ok(())
}
