//! The threads that work on one run together: it is cut into equal parts, one kernel call each. The
//! bits do not depend on the cut.

use std::iter;
use std::mem;
use std::num::NonZero;
use std::ops::Range;
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::kernel::{Isa, KernelError, Scalars};
use crate::subgroup::BLOCK_ELEMS;

/// A part below this many elements is not worth a thread's wake-up (about as long as the update).
const LEAST_PART_ELEMS: usize = 32 << 10;

/// Parts are cut here, so that no cache line is written by two threads.
const PART_ALIGN_ELEMS: usize = 64;

/// More threads than any machine has cores for.
const MOST_THREADS: usize = 1024;

/// Kernel threads and the instruction set they use. The calling thread is one of them: nobody is woken
/// for its part, nor it by another, which takes as long as a hundred thousand elements.
#[derive(Debug)]
pub(crate) struct Team {
    /// The others; one that never has work if there is none.
    pool: ThreadPool,
    threads: usize,
    isa: Isa,
}

/// One kernel call, or several next to each other.
pub(crate) trait Job: Sized + Send {
    /// Returns how many elements it updates.
    fn len(&self) -> usize;
    /// Cuts it in two; `at` is below its length.
    fn split_at(self, at: usize) -> (Self, Self);
    /// Does it.
    fn run(self, isa: Isa, k: &Scalars) -> Result<(), KernelError>;
}

/// Refuses a number of threads that no machine has use for, before any is started: starting tens of
/// thousands takes minutes, in which the process cannot even be ended.
///
/// # Errors
/// [`Error::Config`].
pub(crate) fn check_threads(threads: Option<usize>) -> Result<()> {
    match threads {
        Some(threads) if threads > MOST_THREADS => Err(Error::Config {
            what: format!("{threads} kernel threads"),
            why: format!("at most {MOST_THREADS} work; leave it out for one per core"),
        }),
        _ => Ok(()),
    }
}

impl Team {
    /// Starts `threads` threads (what the machine has if `None`).
    ///
    /// # Errors
    /// [`Error::Config`] when the system refuses threads, [`Error::Kernel`] when an instruction set
    /// is asked for by name that is not there.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self> {
        check_threads(threads)?;
        let cores = || thread::available_parallelism().map_or(1, NonZero::get);
        let threads = threads.filter(|threads| *threads > 0).unwrap_or_else(cores);
        let pool = ThreadPoolBuilder::new()
            .num_threads((threads - 1).max(1))
            .thread_name(|index| format!("tensortier-kernel-{index}"))
            .build()
            .map_err(|error| Error::Config {
                what: String::from("kernel threads"),
                why: format!("{error}; ask for fewer"),
            })?;
        Ok(Team { pool, threads, isa: Isa::detect()? })
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// Does a job in parts.
    pub(crate) fn update(&self, k: &Scalars, job: impl Job) -> Result<(), KernelError> {
        let elems = job.len();
        let parts = (elems / LEAST_PART_ELEMS).clamp(1, self.threads());
        if parts == 1 {
            return job.run(self.isa, k);
        }
        let each = elems.div_ceil(parts).next_multiple_of(PART_ALIGN_ELEMS);
        let mut results = vec![Ok(()); elems.div_ceil(each)];
        let mut rest = Some(job);
        let parts = iter::from_fn(|| {
            let job = rest.take()?;
            if job.len() <= each {
                return Some(job);
            }
            let (part, tail) = job.split_at(each);
            rest = Some(tail);
            Some(part)
        });
        let isa = self.isa;
        self.together(parts.zip(&mut results), |(part, result)| *result = part.run(isa, k));
        results.into_iter().collect()
    }

    /// Does `each` of all parts at the same time, of the last on the calling thread.
    fn together<P: Send>(&self, mut parts: impl Iterator<Item = P>, each: impl Fn(P) + Sync) {
        let each = &each;
        let Some(mut last) = parts.next() else { return };
        self.pool.in_place_scope(|scope| {
            for next in parts {
                let part = mem::replace(&mut last, next);
                scope.spawn(move |_| each(part));
            }
            each(last);
        });
    }

    /// Fills `out`, one value for each block of `elems` elements, by `of`, which is given the
    /// block's elements as a range.
    pub(crate) fn each_block<T: Send>(
        &self,
        elems: usize,
        out: &mut [T],
        of: impl Fn(Range<usize>) -> T + Sync,
    ) {
        let (block, blocks) = (BLOCK_ELEMS as usize, self.blocks_per_part(out.len()));
        self.together(out.chunks_mut(blocks).enumerate(), |(part, out)| {
            for (index, out) in (part * blocks..).zip(out) {
                *out = of(index * block..((index + 1) * block).min(elems));
            }
        });
    }

    /// Calls `each` for each block of `data`, with its number, and the value of `out` that belongs to
    /// it.
    pub(crate) fn each_block_mut<A: Send, T: Send>(
        &self,
        data: &mut [A],
        out: &mut [T],
        each: impl Fn(usize, &mut [A], &mut T) + Sync,
    ) {
        let (block, blocks) = (BLOCK_ELEMS as usize, self.blocks_per_part(out.len()));
        let parts = data.chunks_mut(blocks * block).zip(out.chunks_mut(blocks)).enumerate();
        self.together(parts, |(part, (data, out))| {
            let of_part = data.chunks_mut(block).zip(out);
            (part * blocks..).zip(of_part).for_each(|(index, (data, out))| each(index, data, out));
        });
    }

    fn blocks_per_part(&self, blocks: usize) -> usize {
        blocks.div_ceil(self.threads).max(1)
    }
}
