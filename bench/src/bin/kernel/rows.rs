//! The rows: what a kernel does to the arrays, and probe and kernel run in turns over them.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use tensortier::optimizer::hyper::Hyper;
use tensortier::optimizer::kernel::norm::{BLOCK, block_sum};
use tensortier::optimizer::kernel::{
    Accumulator, HalfWeights, Input, Isa, KernelError, Output, Planes, Scalars, SplitPlanes,
    Stochastic, WeightPlanes, accumulate, update, update_split, update_stochastic,
};

use crate::work::{Part, Work};
use crate::{Failure, probe};

/// One kernel over one mix of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row {
    /// fp32 master, no weights written.
    Fp32,
    /// fp32 master, bf16 weights written in the same pass.
    Fp32Bf16,
    /// The fp32 weights are the master, the gradient is fp32.
    Weights,
    /// Split master.
    Split,
    /// bf16 weights are the master, stochastically rounded.
    Stochastic,
    /// Sum of squares of a bf16 gradient.
    Norm,
    /// bf16 gradient added to a bf16 accumulator.
    Accumulate,
}

impl Row {
    pub(crate) const ALL: [Row; 7] = [
        Row::Fp32,
        Row::Fp32Bf16,
        Row::Weights,
        Row::Split,
        Row::Stochastic,
        Row::Norm,
        Row::Accumulate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Row::Fp32 => "fp32",
            Row::Fp32Bf16 => "fp32+bf16",
            Row::Weights => "weights",
            Row::Split => "split",
            Row::Stochastic => "stochastic",
            Row::Norm => "norm",
            Row::Accumulate => "accumulate",
        }
    }

    /// Bytes that are read and written, of all streams; what the processor reads only because it writes
    /// parts of lines is not counted.
    pub(crate) fn bytes_per_param(self) -> f64 {
        match self {
            Row::Fp32 => 26.0,
            Row::Fp32Bf16 | Row::Weights => 28.0,
            Row::Split => 26.0,
            Row::Stochastic => 22.0,
            Row::Norm => 2.0,
            Row::Accumulate => 6.0,
        }
    }

    fn probe(self, part: Part<'_>) {
        let Part { p, m, v, lo, weights, grad, grad32 } = part;
        match self {
            Row::Fp32 => probe::planes(p, m, v, grad),
            Row::Weights => probe::full(p, m, v, grad32),
            Row::Fp32Bf16 => probe::planes_and_weights(p, m, v, grad, weights),
            Row::Split => probe::halves(m, v, grad, lo, weights),
            Row::Stochastic => probe::weights(m, v, grad, weights),
            Row::Norm => {
                black_box(probe::read(grad));
            }
            Row::Accumulate => probe::sums(weights, grad),
        }
    }

    fn kernel(self, isa: Isa, k: &Scalars, part: Part<'_>) -> Result<(), KernelError> {
        let Part { p, m, v, lo, weights, grad: raw, grad32 } = part;
        let (vmax, grad) = (None, Input::Bf16(raw));
        match self {
            Row::Fp32 => update(isa, k, Planes { p, m, v, vmax }, grad, Output::None),
            Row::Weights => {
                update(isa, k, Planes { p, m, v, vmax }, Input::F32(grad32), Output::None)
            }
            Row::Fp32Bf16 => update(isa, k, Planes { p, m, v, vmax }, grad, Output::Bf16(weights)),
            Row::Split => update_split(isa, k, SplitPlanes { lo, m, v, vmax, hi: weights }, grad),
            Row::Stochastic => {
                let weights = HalfWeights::Bf16(weights);
                let rounding = Stochastic { key: 1, first: 0 };
                update_stochastic(isa, k, WeightPlanes { weights, m, v, vmax }, grad, rounding)
            }
            Row::Norm => {
                let sums = raw.chunks(BLOCK).map(|block| block_sum(isa, Input::Bf16(block)));
                let sum = sums.sum::<Result<f64, _>>()?;
                black_box(sum);
                Ok(())
            }
            Row::Accumulate => accumulate(isa, Accumulator::Bf16(weights), grad),
        }
    }
}

/// Bytes of a part: long against a stream's start, short against what disturbs a machine.
const PART_BYTES: f64 = 32e6;

/// Parameters per second over all parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) median: f64,
    pub(crate) best: f64,
}

/// Seconds of probe and kernel, pair by pair.
pub(crate) struct Pairs {
    times: Vec<(f64, f64)>,
    /// Parameters of a part.
    part: usize,
}

impl Pairs {
    /// Number of pairs.
    pub(crate) fn count(&self) -> usize {
        self.times.len()
    }

    /// Parameters per second and thread of the probe.
    pub(crate) fn probe(&self) -> Rate {
        self.rate(|pair| pair.0)
    }

    /// Parameters per second and thread of the kernel.
    pub(crate) fn kernel(&self) -> Rate {
        self.rate(|pair| pair.1)
    }

    fn rate(&self, seconds: impl Fn(&(f64, f64)) -> f64) -> Rate {
        let rates: Vec<f64> =
            self.times.iter().map(|pair| self.part as f64 / seconds(pair)).collect();
        let best = rates.iter().copied().fold(0.0, f64::max);
        Rate { median: median(rates), best }
    }

    /// The median of the kernel's speed over the probe's.
    pub(crate) fn ratio(&self) -> f64 {
        median(self.ratios().collect())
    }

    /// The quartiles of the ratios.
    pub(crate) fn quartiles(&self) -> (f64, f64) {
        let mut all: Vec<f64> = self.ratios().collect();
        all.sort_by(f64::total_cmp);
        let at = |quarter: usize| all.get(all.len() * quarter / 4).copied().unwrap_or(f64::NAN);
        (at(1), at(3))
    }

    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.times.iter().map(|(probe, kernel)| probe / kernel)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Parameters whose state stays in a second-level cache, and how often they are updated there.
const IN_CACHE: usize = 16 << 10;
const REPEATS: usize = 64;

/// Parameters per second of the kernel on one thread, from a cache: what its arithmetic allows.
pub(crate) fn in_cache(row: Row, isa: Isa) -> Result<f64, Failure> {
    let mut work = Work::new(IN_CACHE, IN_CACHE);
    let k = Scalars::at(&Hyper::default(), 10, 1.0);
    let mut best = f64::INFINITY;
    for _ in 0..25 {
        let start = Instant::now();
        for _ in 0..REPEATS {
            row.kernel(isa, &k, work.part(0..IN_CACHE))?;
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((IN_CACHE * REPEATS) as f64 / best)
}

/// Runs probe and kernel in turns over the parts of `n` parameters of each thread, all of them `walks`
/// times. While the probe is at one part the kernel's turn is at one that lies half the arrays away,
/// so neither finds in a cache what the other left.
pub(crate) fn pairs(
    row: Row,
    isa: Isa,
    threads: usize,
    n: usize,
    walks: usize,
) -> Result<Pairs, Failure> {
    let barrier = Barrier::new(threads);
    let part = ((PART_BYTES / row.bytes_per_param()) as usize).next_multiple_of(BLOCK);
    let count = n / part;
    if count < 2 {
        return Err(
            format!("{}: each thread needs at least {} parameters", row.name(), 2 * part).into()
        );
    }
    let passes = || -> Result<Vec<(f64, f64)>, KernelError> {
        let mut work = Work::new(n, if row == Row::Weights { n } else { 0 });
        let k = Scalars::at(&Hyper::default(), 10, 1.0);
        let mut result = Ok(());
        let mut all = Vec::with_capacity(count * walks);
        for turn in 0..count * walks {
            let [here, there] = [turn % count, (turn + count / 2) % count];
            barrier.wait();
            let start = Instant::now();
            row.probe(work.part(here * part..(here + 1) * part));
            barrier.wait();
            let probe = start.elapsed().as_secs_f64();
            let start = Instant::now();
            let there = work.part(there * part..(there + 1) * part);
            result = result.and(row.kernel(isa, &k, there));
            barrier.wait();
            all.push((probe, start.elapsed().as_secs_f64()));
        }
        result.map(|()| all)
    };
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(passes)).collect();
        let mut last = Err("no threads were asked for".into());
        for handle in handles {
            last = match handle.join() {
                Ok(times) => times.map(|times| Pairs { times, part }).map_err(Failure::from),
                Err(_) => Err("a measuring thread panicked".into()),
            };
        }
        last
    })
}
