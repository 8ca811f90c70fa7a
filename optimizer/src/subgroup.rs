//! Subgroups: the flat parameter space cut into runs that move as one chunk each.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::precision::{Form, Plane};

/// Elements of a block: cuts inside a parameter fall on its block edges, so that whatever is summed
/// per block (the gradient norm) is the same for every subgroup size.
pub const BLOCK_ELEMS: u64 = 65_536;

/// The smallest and largest subgroup, in elements.
pub const SUBGROUP_ELEMS: (u64, u64) = (BLOCK_ELEMS, 64 << 20);

/// A run of one parameter's elements inside a subgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The parameter's index.
    pub param: usize,
    /// Its elements, in row-major order.
    pub range: Range<u64>,
    /// The section of the subgroup whose planes hold its state.
    pub section: usize,
    /// Where the run starts in the section's planes, in elements.
    pub start: u64,
}

/// Neighbouring runs of one form, whose planes lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// What is stored.
    pub form: Form,
    /// How many elements it has.
    pub elems: u64,
    /// Where its first plane starts in the chunk, in bytes.
    pub at: u64,
}

/// One subgroup: runs in the order of the parameters, one of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subgroup {
    /// The runs; together they are all of its elements.
    pub runs: Vec<Run>,
    /// The sections, in the order of the runs.
    pub sections: Vec<Section>,
    /// How many elements it has.
    pub elems: u64,
    /// The bytes of its chunk.
    pub bytes: u64,
}

impl Subgroup {
    /// Adds elements of a parameter, to its run if they go on with the last one.
    fn push(&mut self, param: usize, range: Range<u64>, form: Form) {
        let elems = range.end - range.start;
        let start = match self.sections.last_mut() {
            Some(section) if section.form == form => {
                section.elems += elems;
                section.elems - elems
            }
            _ => {
                self.sections.push(Section { form, elems, at: 0 });
                0
            }
        };
        self.elems += elems;
        match self.runs.last_mut() {
            Some(run) if run.param == param && run.range.end == range.start => {
                run.range.end = range.end;
            }
            _ => self.runs.push(Run { param, range, section: self.sections.len() - 1, start }),
        }
    }

    /// Returns one subgroup of both, in the order of the parameters.
    fn join(self, other: Subgroup, params: &[(u64, Form)]) -> Subgroup {
        let mut runs: Vec<_> = self.runs.into_iter().chain(other.runs).collect();
        runs.sort_unstable_by_key(|run| (run.param, run.range.start));
        let mut joined = Subgroup::default();
        for Run { param, range, .. } in runs {
            joined.push(param, range, params[param].1);
        }
        joined
    }

    /// Lays the sections one after the other.
    fn seal(&mut self) {
        for section in &mut self.sections {
            section.at = self.bytes;
            self.bytes += section.form.bytes(section.elems);
        }
    }

    /// Returns the planes of a run that are stored and the byte range of each in the chunk.
    pub(crate) fn planes(&self, run: &Run) -> impl Iterator<Item = (Plane, Range<usize>)> {
        let Section { form, elems, at } = self.sections[run.section];
        let (start, len) = (run.start as usize, (run.range.end - run.range.start) as usize);
        form.ranges(at, elems).map(move |(plane, range)| {
            let width = plane.bytes() as usize;
            let from = range.start + start * width;
            (plane, from..from + len * width)
        })
    }
}

/// Cuts parameters, given by their number of elements and form, into subgroups of at most `target`
/// elements, a multiple of [`BLOCK_ELEMS`]; empty parameters belong to none. Whole blocks come first and
/// fill theirs to the brim: chunks of one size take each other's place in memory, where others would
/// have to be moved together again and again. What is less than a block of each parameter comes last, in
/// subgroups of its own or in the last of the others.
///
/// # Errors
/// [`Error::Config`] when `target` is out of range.
pub fn cut(params: &[(u64, Form)], target: u64) -> Result<Vec<Subgroup>> {
    let (least, most) = SUBGROUP_ELEMS;
    if !(least..=most).contains(&target) || !target.is_multiple_of(BLOCK_ELEMS) {
        return Err(Error::Config {
            what: format!("subgroups of {target} parameters"),
            why: format!("use a multiple of {BLOCK_ELEMS} from 64Ki to 64Mi"),
        });
    }
    let mut groups = cut_parts(params, target, |elems| 0..elems / BLOCK_ELEMS * BLOCK_ELEMS);
    let mut rest = cut_parts(params, target, |elems| elems / BLOCK_ELEMS * BLOCK_ELEMS..elems);
    if let (Some(last), [first]) = (groups.last_mut(), &mut rest[..])
        && last.elems + first.elems <= target
    {
        *last = std::mem::take(last).join(std::mem::take(first), params);
        rest.clear();
    }
    groups.extend(rest);
    groups.iter_mut().for_each(Subgroup::seal);
    Ok(groups)
}

/// Cuts a part of each parameter, `part` of its elements, into subgroups. None is cut but at a block.
fn cut_parts(
    params: &[(u64, Form)],
    target: u64,
    part: impl Fn(u64) -> Range<u64>,
) -> Vec<Subgroup> {
    let (mut groups, mut group) = (Vec::new(), Subgroup::default());
    for (param, &(elems, form)) in params.iter().enumerate() {
        let Range { start: mut at, end } = part(elems);
        while at < end {
            let room = target - group.elems;
            let take = if end - at <= room { end - at } else { room / BLOCK_ELEMS * BLOCK_ELEMS };
            if take == 0 {
                groups.push(std::mem::take(&mut group));
                continue;
            }
            group.push(param, at..at + take, form);
            at += take;
        }
    }
    groups.push(group);
    groups.retain(|group| group.elems > 0);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::precision::StatePrecision;
    use proptest::prelude::*;

    const FORMS: [Form; 3] = [
        Form { precision: StatePrecision::Fp32, amsgrad: false },
        Form { precision: StatePrecision::SplitMaster, amsgrad: false },
        Form { precision: StatePrecision::Weights, amsgrad: true },
    ];

    fn params(sizes: &[(u64, usize)]) -> Vec<(u64, Form)> {
        sizes.iter().map(|(n, form)| (*n, FORMS[*form])).collect()
    }

    proptest! {
        #[test]
        fn every_element_is_in_exactly_one_run(
            sizes in prop::collection::vec(
                (prop_oneof![0u64..300, 65_000u64..66_000, 0u64..500_000], 0usize..3),
                1..20,
            ),
            blocks in 1u64..9,
        ) {
            let target = blocks * BLOCK_ELEMS;
            let groups = cut(&params(&sizes), target).unwrap();
            let mut next = vec![0; sizes.len()];
            for group in &groups {
                prop_assert!(group.elems > 0 && group.elems <= target);
                let mut bytes: Vec<Range<usize>> = Vec::new();
                // One of each parameter at most, in their order.
                prop_assert!(group.runs.windows(2).all(|pair| pair[0].param < pair[1].param));
                for run in &group.runs {
                    prop_assert_eq!(group.sections[run.section].form, FORMS[sizes[run.param].1]);
                    prop_assert_eq!(run.range.start, next[run.param]);
                    prop_assert_eq!(run.range.start % BLOCK_ELEMS, 0);
                    next[run.param] = run.range.end;
                    bytes.extend(group.planes(run).map(|(_, range)| range));
                }
                bytes.sort_by_key(|range| range.start);
                prop_assert!(bytes.windows(2).all(|pair| pair[0].end <= pair[1].start));
                prop_assert!(bytes.last().is_some_and(|last| last.end as u64 <= group.bytes));
                let elems: u64 = group.sections.iter().map(|section| section.elems).sum();
                prop_assert_eq!(elems, group.elems);
            }
            let sizes: Vec<u64> = sizes.iter().map(|(n, _)| *n).collect();
            prop_assert_eq!(&next, &sizes);
            // Whole blocks fill their subgroups, all but the last; what is less, as far as it can.
            let blocks: u64 = sizes.iter().map(|elems| elems / BLOCK_ELEMS).sum();
            let full = (blocks * BLOCK_ELEMS / target) as usize;
            prop_assert!(groups[..full].iter().all(|group| group.elems == target));
            let rest = &groups[full.min(groups.len())..];
            let is_full = |group: &Subgroup| group.elems + BLOCK_ELEMS > target;
            let loose = rest.iter().filter(|group| !is_full(group)).count();
            prop_assert!(loose <= 2, "{loose} of {} are not full", rest.len());
        }
    }

    #[test]
    fn neighbours_of_one_form_share_their_planes() {
        let groups = cut(&params(&[(10, 0), (20, 0), (5, 2), (7, 0)]), BLOCK_ELEMS).unwrap();
        let sections: Vec<_> = groups[0].sections.iter().map(|s| (s.elems, s.at)).collect();
        assert_eq!(sections, [(30, 0), (5, 384), (7, 576)]);
        assert_eq!(groups[0].bytes, 576 + 3 * 64);
        assert_eq!((groups[0].runs[1].section, groups[0].runs[1].start), (0, 10));
    }

    #[test]
    fn odd_targets_are_refused_and_nothing_gives_nothing() {
        assert!(cut(&params(&[(5, 0)]), 1000).is_err());
        assert!(cut(&params(&[(5, 0)]), 128 << 20).is_err());
        assert!(cut(&params(&[(0, 0), (0, 1)]), BLOCK_ELEMS).unwrap().is_empty());
    }
}
