//! Reading the state back: planes of a parameter by logical range, whatever subgroups hold them.

use std::ops::Range;

use bytemuck::cast_slice;

use crate::error::{Error, Result};
use crate::kernel::{self, Input, split};
use crate::optimizer::Optimizer;
use crate::precision::{Plane, StatePrecision};
use crate::subgroup::{BLOCK_ELEMS, Run};

impl Optimizer {
    /// Copies elements `range` of a plane of a parameter into `out`, which is as long as the range:
    /// moments, maxima, or the master weights of [`StatePrecision::Fp32`]. Master weights that were
    /// never updated read as zeros: the caller's weights are still newer.
    ///
    /// # Errors
    /// [`Error::Unfinished`] while a step is unfinished, [`Error::OutOfRange`], and the store's
    /// errors.
    pub fn read_plane(
        &self,
        param: usize,
        plane: Plane,
        range: Range<u64>,
        out: &mut [f32],
    ) -> Result<()> {
        self.check_range(param, &range, out.len())?;
        let form = self.plan.forms[param];
        if plane == Plane::Lo || !form.planes().contains(&plane) {
            let why = match (plane, form.precision) {
                (Plane::P, StatePrecision::SplitMaster) => {
                    String::from("half of it are the caller's weights: use read_master")
                }
                (Plane::Lo, _) => String::from("it is half of the master: use read_master"),
                _ => format!("state precision {} does not store it here", form.precision),
            };
            return Err(Error::OutOfRange { what: format!("plane {plane}"), why });
        }
        let marked = form.precision == StatePrecision::SplitMaster && plane == Plane::V;
        self.each_run(param, range, |bytes, planes, at| {
            let of_plane = planes.into_iter().find(|(other, _)| *other == plane);
            let stored: &[f32] = of_plane.map_or(&[], |(_, range)| cast_slice(&bytes[range]));
            let out = &mut out[at];
            if marked {
                split::unmark_all(stored, out)?;
            } else {
                out.copy_from_slice(stored);
            }
            Ok(())
        })
    }

    /// Computes elements `range` of the fp32 master weights of a parameter into `out`, whatever its
    /// state precision, from what is stored and the caller's `weights`; both are as long as the
    /// range.
    ///
    /// # Errors
    /// As [`Optimizer::read_plane`]; [`Error::WeightsChanged`] when weights that are half of a split
    /// master were changed, as far as the range has whole blocks of 65,536 of them.
    pub fn read_master(
        &self,
        param: usize,
        range: Range<u64>,
        weights: Input<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        self.check_range(param, &range, out.len())?;
        if weights.len() != out.len() {
            let what = format!("elements {range:?} of {}", self.plan.params[param].name);
            return Err(Error::OutOfRange {
                what,
                why: format!("{} weights given", weights.len()),
            });
        }
        let precision = self.plan.forms[param].precision;
        let fresh = self.progress[param].fresh;
        match (precision, weights) {
            (StatePrecision::Fp32, _) if !fresh => self.read_plane(param, Plane::P, range, out),
            (StatePrecision::SplitMaster, Input::Bf16(hi)) if !fresh => {
                self.check_blocks(param, &range, hi)?;
                self.each_run(param, range, |bytes, planes, at| {
                    let (mut lo, mut v): (&[u16], &[f32]) = (&[], &[]);
                    for (plane, range) in planes {
                        match plane {
                            Plane::Lo => lo = cast_slice(&bytes[range]),
                            Plane::V => v = cast_slice(&bytes[range]),
                            Plane::P | Plane::M | Plane::VMax => {}
                        }
                    }
                    Ok(split::join_all(&hi[at.clone()], lo, v, &mut out[at])?)
                })
            }
            _ => Ok(kernel::widen(weights, out)?),
        }
    }

    /// Refuses split weights, elements `range`, of which a whole block was changed.
    fn check_blocks(&self, param: usize, range: &Range<u64>, hi: &[u16]) -> Result<()> {
        let elems = self.plan.params[param].elements().unwrap_or(0);
        let first = range.start.next_multiple_of(BLOCK_ELEMS);
        let last = if range.end == elems { elems } else { range.end / BLOCK_ELEMS * BLOCK_ELEMS };
        if first >= last {
            return Ok(());
        }
        let at = (first - range.start) as usize..(last - range.start) as usize;
        let mut hashes = vec![0; (last - first).div_ceil(BLOCK_ELEMS) as usize];
        self.hash_elements(&hi[at], &mut hashes);
        let known = &self.progress[param].hashes[(first / BLOCK_ELEMS) as usize..];
        if known.iter().zip(&hashes).all(|(known, hash)| known == hash) {
            return Ok(());
        }
        Err(Error::WeightsChanged { param: self.plan.params[param].name.clone() })
    }

    /// Calls `each` for every run of a parameter within `range`, with the bytes of its subgroup, where
    /// in them the part of each of its planes lies, and where that part lies in `range`.
    fn each_run(
        &self,
        param: usize,
        range: Range<u64>,
        mut each: impl FnMut(&[u8], Vec<(Plane, Range<usize>)>, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        for (index, run) in self.runs_of(param) {
            let (from, to) = (run.range.start.max(range.start), run.range.end.min(range.end));
            if from >= to {
                continue;
            }
            let (skip, take) = ((from - run.range.start) as usize, (to - from) as usize);
            let part = |(plane, bytes): (Plane, Range<usize>)| {
                let width = plane.bytes() as usize;
                let start = bytes.start + skip * width;
                (plane, start..start + take * width)
            };
            let planes = self.plan.subgroups[index].planes(run).map(part).collect();
            let at = (from - range.start) as usize;
            match self.resident.get(index) {
                Some(lease) => each(lease, planes, at..at + take)?,
                None => {
                    let lease = self.store.lease_read(&self.objects[index], 0).wait()?;
                    each(&lease, planes, at..at + take)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the runs of a parameter in order, each with its subgroup.
    pub(crate) fn runs_of(&self, param: usize) -> impl Iterator<Item = (usize, &Run)> {
        let places = self.plan.places[param].iter();
        places.map(|(index, number)| (*index, &self.plan.subgroups[*index].runs[*number]))
    }

    fn check_range(&self, param: usize, range: &Range<u64>, out: usize) -> Result<()> {
        self.refuse_unfinished()?;
        let Some(known) = self.plan.params.get(param) else {
            return Err(Error::OutOfRange {
                what: format!("parameter number {param}"),
                why: format!("there are {}", self.plan.params.len()),
            });
        };
        let elems = known.elements().unwrap_or(0);
        if range.start > range.end || range.end > elems || range.end - range.start != out as u64 {
            return Err(Error::OutOfRange {
                what: format!("elements {range:?} of {} into a buffer of {out}", known.name),
                why: format!("it has {elems} elements"),
            });
        }
        Ok(())
    }
}
