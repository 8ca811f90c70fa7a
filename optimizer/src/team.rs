//! The threads that update one run together: it is cut into equal parts, one kernel call each. The
//! bits do not depend on the cut.

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::kernel::{self, Input, Isa, KernelError, Output, Planes, Scalars};

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

/// One part of a run, on its way to a thread.
struct Part<'a> {
    planes: Planes<'a>,
    grad: Input<'a>,
    out: Output<'a>,
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

    /// Updates one run; see [`kernel::update`].
    pub(crate) fn update(
        &self,
        k: &Scalars,
        planes: Planes<'_>,
        grad: Input<'_>,
        out: Output<'_>,
    ) -> Result<(), KernelError> {
        let elems = planes.p.len();
        let parts = (elems / LEAST_PART_ELEMS).clamp(1, self.threads());
        if parts == 1 || grad.len() != elems {
            return kernel::update(self.isa, k, planes, grad, out);
        }
        let each = elems.div_ceil(parts).next_multiple_of(PART_ALIGN_ELEMS);
        let mut results = vec![Ok(()); elems.div_ceil(each)];
        let mut rest = Part { planes, grad, out };
        self.pool.scope(|scope| {
            for result in &mut results {
                let (part, tail) = rest.split_at(each);
                rest = tail;
                let isa = self.isa;
                scope.spawn(move |_| {
                    *result = kernel::update(isa, k, part.planes, part.grad, part.out);
                });
            }
        });
        results.into_iter().collect()
    }
}

impl<'a> Part<'a> {
    fn split_at(self, at: usize) -> (Part<'a>, Part<'a>) {
        let Planes { p, m, v, vmax } = self.planes;
        let (p, p_rest) = cut(p, at);
        let (m, m_rest) = cut(m, at);
        let (v, v_rest) = cut(v, at);
        let (vmax, vmax_rest) = vmax.map(|vmax| cut(vmax, at)).unzip();
        let (grad, grad_rest) = match self.grad {
            Input::Bf16(raw) => (Input::Bf16(head(raw, at)), Input::Bf16(tail(raw, at))),
            Input::F16(raw) => (Input::F16(head(raw, at)), Input::F16(tail(raw, at))),
            Input::F32(raw) => (Input::F32(head(raw, at)), Input::F32(tail(raw, at))),
        };
        let (out, out_rest) = match self.out {
            Output::None => (Output::None, Output::None),
            Output::Bf16(raw) => both(cut(raw, at), Output::Bf16),
            Output::F16(raw) => both(cut(raw, at), Output::F16),
            Output::F32(raw) => both(cut(raw, at), Output::F32),
        };
        let rest = Planes { p: p_rest, m: m_rest, v: v_rest, vmax: vmax_rest };
        (
            Part { planes: Planes { p, m, v, vmax }, grad, out },
            Part { planes: rest, grad: grad_rest, out: out_rest },
        )
    }
}

fn cut<T>(slice: &mut [T], at: usize) -> (&mut [T], &mut [T]) {
    let at = at.min(slice.len());
    slice.split_at_mut(at)
}

fn head<T>(slice: &[T], at: usize) -> &[T] {
    &slice[..at.min(slice.len())]
}

fn tail<T>(slice: &[T], at: usize) -> &[T] {
    &slice[at.min(slice.len())..]
}

fn both<T, U>((left, right): (T, T), make: impl Fn(T) -> U) -> (U, U) {
    (make(left), make(right))
}
