//! The verification: the same steps once more, wholly in memory with the scalar kernel and piece by
//! piece of each parameter, so that it shares neither subgroups nor store nor vector kernels with
//! the run it checks. Every bit of weights and planes is compared.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use indicatif::ProgressBar;
use tensortier::optimizer::kernel::{self, Isa, Output, Planes, Scalars};
use tensortier::optimizer::{Error, Hyper, Optimizer, Plane};
use tensortier::storage::dtype::DType;

use super::model::{Description, Model, PIECE_ELEMS, elements_mut, input, pieces};
use crate::buffer::Buffer;
use crate::{Failure, gradient};

/// What is to be verified.
pub(super) struct Verification<'a> {
    pub(super) description: &'a Description,
    pub(super) model: &'a Model,
    pub(super) optimizer: &'a Optimizer,
    pub(super) hyper: Hyper,
    pub(super) seed: u64,
    pub(super) steps: u64,
    pub(super) grad_dtype: DType,
    pub(super) stop: &'a AtomicBool,
}

/// How a verification ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every bit is the same.
    Same,
    /// The first difference, in words.
    Different(String),
    /// A signal came.
    Interrupted,
}

/// The memory one thread of the verification needs: one piece of everything.
struct Scratch {
    weights: Buffer,
    gradients: Buffer,
    planes: [Vec<f32>; 3],
    stored: Vec<f32>,
}

impl Verification<'_> {
    /// Runs and compares on `threads` threads.
    pub(super) fn run(&self, threads: usize, bar: &ProgressBar) -> Result<Verdict, Failure> {
        let work: Vec<(usize, Range<u64>)> = (0..self.description.params.len())
            .flat_map(|p| {
                pieces(self.description.params[p].elements().unwrap_or(0)).map(move |r| (p, r))
            })
            .collect();
        let next = AtomicUsize::new(0);
        // The difference of the lowest piece, whichever thread finds one first.
        let found: Mutex<Option<(usize, Result<String, Failure>)>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let mut scratch = None;
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some((param, range)) = work.get(index) else { break };
                        if self.stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let outcome = Scratch::ready(&mut scratch)
                            .and_then(|scratch| self.piece(*param, range, scratch));
                        bar.inc((range.end - range.start) * self.steps);
                        let answer = match outcome {
                            Ok(None) => continue,
                            Ok(Some(difference)) => Ok(difference),
                            Err(error) => Err(error),
                        };
                        // No piece beyond this one matters any more.
                        next.fetch_max(work.len(), Ordering::Relaxed);
                        let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
                        if found.as_ref().is_none_or(|(first, _)| index < *first) {
                            *found = Some((index, answer));
                        }
                    }
                });
            }
        });
        match found.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some((_, answer)) => answer.map(Verdict::Different),
            None if self.stop.load(Ordering::Relaxed) => Ok(Verdict::Interrupted),
            None => Ok(Verdict::Same),
        }
    }

    /// Recomputes a piece of a parameter and compares it; returns the first difference.
    fn piece(
        &self,
        index: usize,
        range: &Range<u64>,
        scratch: &mut Scratch,
    ) -> Result<Option<String>, Failure> {
        let param = &self.description.params[index];
        let n = (range.end - range.start) as usize;
        let Scratch { weights, gradients, planes: [p, m, v], stored } = scratch;
        self.description.source.read(index, param, range.clone(), weights, 0..n)?;
        let (p, m, v) = (&mut p[..n], &mut m[..n], &mut v[..n]);
        kernel::widen(input(param.weight_dtype, weights, 0..n), p)?;
        m.fill(0.0);
        v.fill(0.0);
        for step in 1..=self.steps {
            let out = elements_mut(self.grad_dtype, gradients, 0..n);
            gradient::fill(self.seed, step, index as u64, range.clone(), out);
            let k = Scalars::at(&self.hyper, step, 1.0);
            let out = match param.weight_dtype {
                DType::F32 => Output::F32(&mut weights.as_mut_slice()[..n]),
                DType::F16 => Output::F16(&mut weights.as_mut_slice()[..n]),
                _ => Output::Bf16(&mut weights.as_mut_slice()[..n]),
            };
            let planes = Planes { p, m, v, vmax: None };
            kernel::update(Isa::Scalar, &k, planes, input(self.grad_dtype, gradients, 0..n), out)?;
        }
        let at = |plane: &str, element: usize, ours: String, theirs: String| {
            let element = range.start + element as u64;
            Some(format!(
                "{} of {}, element {element}: {ours} on the paths, {theirs} in memory",
                plane, param.name
            ))
        };
        let width = param.weight_dtype.bytes() as usize;
        let bytes = range.start as usize * width..range.end as usize * width;
        let (ours, theirs) =
            (&self.model.weight_bytes(index)[bytes], &weights.as_slice::<u8>()[..n * width]);
        if let Some(byte) = (0..n * width).find(|i| ours[*i] != theirs[*i]) {
            let element = byte / width;
            let hex = |bytes: &[u8]| {
                bytes[element * width..][..width]
                    .iter()
                    .rev()
                    .map(|b| format!("{b:02x}"))
                    .collect::<String>()
            };
            return Ok(at("weights", element, hex(ours), hex(theirs)));
        }
        for (plane, theirs) in [(Plane::P, p), (Plane::M, m), (Plane::V, v)] {
            match self.optimizer.read_plane(index, plane, range.clone(), &mut stored[..n]) {
                Ok(()) => {}
                // The weights are the master: they were compared above.
                Err(Error::OutOfRange { .. }) if plane == Plane::P => continue,
                Err(error) => return Err(error.into()),
            }
            let differs = |i: &usize| {
                let (a, b) = (stored[*i], theirs[*i]);
                a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan())
            };
            if let Some(i) = (0..n).find(differs) {
                let (a, b) = (stored[i].to_bits(), theirs[i].to_bits());
                return Ok(at(
                    &format!("plane {plane}"),
                    i,
                    format!("{a:08x}"),
                    format!("{b:08x}"),
                ));
            }
        }
        Ok(None)
    }
}

impl Scratch {
    /// Returns a thread's scratch, made on its first piece.
    fn ready(slot: &mut Option<Scratch>) -> Result<&mut Scratch, Failure> {
        if slot.is_none() {
            let n = PIECE_ELEMS as usize;
            *slot = Some(Scratch {
                weights: Buffer::new(4 * n)?,
                gradients: Buffer::new(4 * n)?,
                planes: std::array::from_fn(|_| vec![0.0; n]),
                stored: vec![0.0; n],
            });
        }
        slot.as_mut().ok_or_else(|| "no memory to verify in".into())
    }
}
