//! The verification: the same steps once more, wholly in memory with the scalar kernel and piece by
//! piece of each parameter, so that it shares neither subgroups nor store nor vector kernels with
//! the run it checks. Every bit of weights and planes is compared.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use indicatif::ProgressBar;
use tensortier::optimizer::kernel::{self, Isa, Output, Planes, Scalars};
use tensortier::optimizer::{Hyper, Optimizer, Plane};
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
    /// What the gradients of each step were multiplied with.
    pub(super) factors: Vec<f64>,
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
        self.replay(index, range, scratch)?;
        if let Some(difference) = self.compare_weights(index, range, scratch) {
            return Ok(Some(difference));
        }
        for (which, plane) in [Plane::P, Plane::M, Plane::V].into_iter().enumerate() {
            if let Some(difference) = self.compare_plane(index, range, (which, plane), scratch)? {
                return Ok(Some(difference));
            }
        }
        Ok(None)
    }

    /// Runs all steps over a piece, from its initial weights, leaving the result in the scratch.
    fn replay(
        &self,
        index: usize,
        range: &Range<u64>,
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        let param = &self.description.params[index];
        let n = (range.end - range.start) as usize;
        let Scratch { weights, gradients, planes: [p, m, v], .. } = scratch;
        self.description.source.read(index, param, range.clone(), weights, 0..n)?;
        let (p, m, v) = (&mut p[..n], &mut m[..n], &mut v[..n]);
        kernel::widen(input(param.weight_dtype, weights, 0..n), p)?;
        m.fill(0.0);
        v.fill(0.0);
        for step in 1..=self.steps {
            let out = elements_mut(self.grad_dtype, gradients, 0..n);
            gradient::fill(self.seed, step, index as u64, range.clone(), out);
            let factor = self.factors.get(step as usize - 1).copied().unwrap_or(1.0);
            let k = Scalars::at(&self.hyper, step, factor);
            let out = match param.weight_dtype {
                DType::F32 => Output::F32(&mut weights.as_mut_slice()[..n]),
                DType::F16 => Output::F16(&mut weights.as_mut_slice()[..n]),
                _ => Output::Bf16(&mut weights.as_mut_slice()[..n]),
            };
            let planes = Planes { p, m, v, vmax: None };
            kernel::update(Isa::Scalar, &k, planes, input(self.grad_dtype, gradients, 0..n), out)?;
        }
        Ok(())
    }

    /// Returns the first difference between the model's weights and the replayed ones.
    fn compare_weights(
        &self,
        index: usize,
        range: &Range<u64>,
        scratch: &Scratch,
    ) -> Option<String> {
        let param = &self.description.params[index];
        let width = param.weight_dtype.bytes() as usize;
        let bytes = range.start as usize * width..range.end as usize * width;
        let ours = &self.model.weight_bytes(index)[bytes];
        let theirs = &scratch.weights.as_slice::<u8>()[..ours.len()];
        let element = ours.iter().zip(theirs).position(|(a, b)| a != b)? / width;
        let hex = |bytes: &[u8]| -> String {
            let little_endian = bytes[element * width..][..width].iter().rev();
            little_endian.map(|byte| format!("{byte:02x}")).collect()
        };
        Some(self.difference(
            "weights",
            index,
            range.start + element as u64,
            hex(ours),
            hex(theirs),
        ))
    }

    /// Returns the first difference between a stored plane and the replayed one.
    fn compare_plane(
        &self,
        index: usize,
        range: &Range<u64>,
        (which, plane): (usize, Plane),
        scratch: &mut Scratch,
    ) -> Result<Option<String>, Failure> {
        let n = (range.end - range.start) as usize;
        let (theirs, ours) = (&scratch.planes[which][..n], &mut scratch.stored[..n]);
        if plane == Plane::P {
            let weights = self.model.weights(index, range.clone());
            self.optimizer.read_master(index, range.clone(), weights, ours)?;
        } else {
            self.optimizer.read_plane(index, plane, range.clone(), ours)?;
        }
        let differs =
            |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        let Some(i) = ours.iter().zip(theirs).position(differs) else { return Ok(None) };
        let hex = |values: &[f32]| format!("{:08x}", values[i].to_bits());
        let (what, element) = (format!("plane {plane}"), range.start + i as u64);
        Ok(Some(self.difference(&what, index, element, hex(ours), hex(theirs))))
    }

    fn difference(
        &self,
        what: &str,
        index: usize,
        element: u64,
        ours: String,
        theirs: String,
    ) -> String {
        let name = &self.description.params[index].name;
        format!("{what} of {name}, element {element}: {ours} on the paths, {theirs} in memory")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adam::model::dtype;
    use crate::adam::places;
    use crate::args::{AdamArgs, Command, parse};
    use tensortier::optimizer::{Options, Plan, StepIo, Weight, WeightMut};

    fn args(dir: &std::path::Path) -> AdamArgs {
        let dir = dir.display().to_string();
        let line = ["tensortier", "adam", "--params", "70000", "--host-memory", "16MiB", "--path"];
        match parse(line.into_iter().chain([dir.as_str()])).unwrap().command {
            Command::Adam(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_flipped_bit_is_found_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let args = args(dir.path());
        let description = Description::new(&args).unwrap();
        let plan = Plan::new(description.params.clone(), Options::default(), 16 << 20).unwrap();
        let hyper = plan.options.groups[0];
        let store = places::open(&args, &places::paths(&args)).unwrap();
        let mut optimizer = Optimizer::open(store.clone(), plan).unwrap();
        let grad_dtype = dtype(args.grads);
        let mut model = description.load(grad_dtype).unwrap();
        model.make_gradients(args.seed, 1, 1);
        optimizer.step(&mut model).unwrap();
        let verdict = |model: &Model| {
            let (description, optimizer) = (&description, &optimizer);
            let (seed, steps, stop) = (args.seed, 1, &AtomicBool::new(false));
            let factors = vec![1.0];
            Verification {
                description,
                model,
                optimizer,
                hyper,
                factors,
                seed,
                steps,
                grad_dtype,
                stop,
            }
            .run(2, &ProgressBar::hidden())
            .unwrap()
        };
        assert_eq!(verdict(&model), Verdict::Same);

        let flip = |model: &mut Model| match model.segment(2, 5..6).weight {
            Weight::Elements(WeightMut::Bf16(weight)) => weight[0] ^= 1,
            other => panic!("{other:?}"),
        };
        flip(&mut model);
        let Verdict::Different(what) = verdict(&model) else { panic!("a flipped weight") };
        let name = &description.params[2].name;
        assert!(
            what.contains("weights") && what.contains(name) && what.contains("element 5"),
            "{what}"
        );
        flip(&mut model);

        let chunk = store.object("optimizer/subgroup/000000").unwrap();
        // The last byte belongs to v of the last parameter.
        let elems = optimizer.plan().subgroups[0].elems as usize;
        let at = 2 * (elems * 4).next_multiple_of(64) + elems * 4 - 1;
        store.lease_write(&chunk, 0).wait().unwrap()[at] ^= 1;
        let Verdict::Different(what) = verdict(&model) else { panic!("a flipped plane") };
        assert!(what.contains("plane v"), "{what}");
    }
}
