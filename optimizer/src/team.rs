//! The threads that work on one run together: it is cut into parts, one kernel call each, and each
//! thread takes the next. The bits do not depend on the cut.

use std::iter;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::kernel::{Isa, KernelError, Scalars};
use crate::subgroup::BLOCK_ELEMS;

/// A part below this many elements is not worth a thread's wake-up (about as long as the update).
const LEAST_PART_ELEMS: usize = 32 << 10;

/// So many parts of a run for each thread, that none waits long for another's last.
const PARTS_PER_THREAD: usize = 4;

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
        let most = if self.threads == 1 { 1 } else { self.threads * PARTS_PER_THREAD };
        let count = (elems / LEAST_PART_ELEMS).clamp(1, most);
        let each = elems.div_ceil(count).next_multiple_of(PART_ALIGN_ELEMS);
        let (mut parts, mut rest) = (Vec::with_capacity(count), job);
        while rest.len() > each {
            let (part, tail) = rest.split_at(each);
            parts.push(part);
            rest = tail;
        }
        parts.push(rest);
        let mut results = vec![Ok(()); parts.len()];
        let isa = self.isa;
        let of_parts = parts.into_iter().zip(&mut results);
        self.together(of_parts, |(part, result)| *result = part.run(isa, k));
        results.into_iter().collect()
    }

    /// Does `each` of all parts, the calling thread among those who do. Whoever is free takes the next:
    /// a thread that wakes up late, or is kept from its work by another's, holds up one part and no
    /// more.
    fn together<P: Send>(
        &self,
        parts: impl ExactSizeIterator<Item = P> + Send,
        each: impl Fn(P) + Sync,
    ) {
        let others = (self.threads - 1).min(parts.len().saturating_sub(1));
        let parts = Mutex::new(parts);
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || iter::from_fn(next).for_each(&each);
        self.pool.in_place_scope(|scope| {
            (0..others).for_each(|_| scope.spawn(|_| work()));
            work();
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
        let block = BLOCK_ELEMS as usize;
        self.together(out.iter_mut().enumerate(), |(index, out)| {
            *out = of(index * block..((index + 1) * block).min(elems));
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
        let blocks = data.chunks_mut(BLOCK_ELEMS as usize).zip(out).enumerate();
        self.together(blocks, |(index, (data, out))| each(index, data, out));
    }
}
