//! Reading the state back: a plane of a parameter by logical range, whatever subgroups hold it.

use std::ops::Range;

use bytemuck::cast_slice;

use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::precision::{Plane, plane_range};

impl Optimizer {
    /// Copies elements `range` of a plane of a parameter into `out`, which is as long as the range.
    /// Master weights of a subgroup that was never updated read as zeros: the caller's weights are
    /// still newer.
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
        if self.unfinished.is_some() {
            return Err(Error::Unfinished { step: self.steps + 1 });
        }
        let number = self.check_range(param, plane, &range, out.len())?;
        let first = self.plan.subgroups.partition_point(|group| {
            group.runs.last().is_none_or(|run| {
                run.param < param || run.param == param && run.range.end <= range.start
            })
        });
        for (index, group) in self.plan.subgroups.iter().enumerate().skip(first) {
            if group.runs.first().is_none_or(|run| run.param > param) {
                break;
            }
            let touched = group.runs.iter().filter(|run| {
                run.param == param && run.range.start < range.end && range.start < run.range.end
            });
            for run in touched {
                let (from, to) = (run.range.start.max(range.start), run.range.end.min(range.end));
                let lease = self.store.lease_read(&self.objects[index], 0).wait()?;
                let values: &[f32] = cast_slice(&lease[plane_range(number, group.elems)]);
                let at = (run.start + from - run.range.start) as usize;
                let len = (to - from) as usize;
                let start = (from - range.start) as usize;
                out[start..start + len].copy_from_slice(&values[at..at + len]);
            }
        }
        Ok(())
    }

    /// Checks a request and returns the plane's number in its chunks.
    fn check_range(
        &self,
        param: usize,
        plane: Plane,
        range: &Range<u64>,
        out: usize,
    ) -> Result<usize> {
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
        let planes = self.plan.precision.planes(self.plan.options.hyper.amsgrad);
        planes.iter().position(|known| *known == plane).ok_or_else(|| Error::OutOfRange {
            what: format!("plane {plane}"),
            why: format!("state precision {} does not store it", self.plan.precision),
        })
    }
}
