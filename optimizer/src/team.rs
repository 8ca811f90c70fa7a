//! The threads that work on one run together: it is cut into equal parts, one kernel call each. The
//! bits do not depend on the cut.

use rayon::prelude::*;
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

/// Kernel threads and the instruction set they use.
#[derive(Debug)]
pub(crate) struct Team {
    pool: ThreadPool,
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
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.unwrap_or(0))
            .thread_name(|index| format!("tensortier-kernel-{index}"))
            .build()
            .map_err(|error| Error::Config {
                what: String::from("kernel threads"),
                why: format!("{error}; ask for fewer"),
            })?;
        Ok(Team { pool, isa: Isa::detect()? })
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.current_num_threads()
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
        let isa = self.isa;
        self.pool.scope(|scope| {
            let mut rest = Some(job);
            for result in &mut results {
                let part = match rest.take() {
                    Some(job) if job.len() > each => {
                        let (part, tail) = job.split_at(each);
                        rest = Some(tail);
                        part
                    }
                    Some(job) => job,
                    None => break,
                };
                scope.spawn(move |_| *result = part.run(isa, k));
            }
        });
        results.into_iter().collect()
    }

    /// Fills `out`, one value for each block of `elems` elements, by `of`, which is given the
    /// block's elements as a range.
    pub(crate) fn each_block<T: Send>(
        &self,
        elems: usize,
        out: &mut [T],
        of: impl Fn(std::ops::Range<usize>) -> T + Sync,
    ) {
        let block = BLOCK_ELEMS as usize;
        let one = |(index, out): (usize, &mut T)| {
            *out = of(index * block..((index + 1) * block).min(elems));
        };
        if out.len() <= 1 {
            out.iter_mut().enumerate().for_each(one);
        } else {
            self.pool.install(|| out.par_iter_mut().enumerate().for_each(one));
        }
    }

    /// Calls `each` for each block of `data`, with its number, and the value of `out` that belongs to
    /// it.
    pub(crate) fn each_block_mut<A: Send, T: Send>(
        &self,
        data: &mut [A],
        out: &mut [T],
        each: impl Fn(usize, &mut [A], &mut T) + Sync,
    ) {
        let block = BLOCK_ELEMS as usize;
        if out.len() <= 1 {
            let blocks = data.chunks_mut(block).zip(out).enumerate();
            return blocks.for_each(|(index, (data, out))| each(index, data, out));
        }
        self.pool.install(|| {
            let blocks = data.par_chunks_mut(block).zip(out).enumerate();
            blocks.for_each(|(index, (data, out))| each(index, data, out));
        });
    }
}
