//! Subgroups: the flat parameter space cut into runs that move as one chunk each.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::param::Param;

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
    /// Where the run starts in the subgroup's planes, in elements.
    pub start: u64,
}

/// One subgroup: runs in the order of the parameters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subgroup {
    /// The runs; together they are all of its elements.
    pub runs: Vec<Run>,
    /// How many elements it has.
    pub elems: u64,
}

/// Cuts the parameters into subgroups of at most `target` elements (a multiple of
/// [`BLOCK_ELEMS`]), whole blocks first; empty parameters belong to none.
///
/// # Errors
/// [`Error::NoParameters`] when all are empty, [`Error::Config`] when a size overflows or `target`
/// is out of range.
pub fn cut(params: &[Param], target: u64) -> Result<Vec<Subgroup>> {
    let (least, most) = SUBGROUP_ELEMS;
    if !(least..=most).contains(&target) || !target.is_multiple_of(BLOCK_ELEMS) {
        return Err(Error::Config {
            what: format!("subgroups of {target} parameters"),
            why: format!("use a multiple of {BLOCK_ELEMS} from 64Ki to 64Mi"),
        });
    }
    let mut groups = vec![Subgroup::default()];
    for (index, param) in params.iter().enumerate() {
        let elems = param.elements().ok_or_else(|| Error::Config {
            what: format!("parameter {}", param.name),
            why: format!("its shape {:?} has more elements than can be counted", param.shape),
        })?;
        let mut at = 0;
        while at < elems {
            let group = last(&mut groups);
            let take = room_for(target - group.elems, elems - at);
            if take == 0 {
                groups.push(Subgroup::default());
                continue;
            }
            group.runs.push(Run { param: index, range: at..at + take, start: group.elems });
            group.elems += take;
            at += take;
        }
    }
    groups.retain(|group| group.elems > 0);
    if groups.is_empty() { Err(Error::NoParameters) } else { Ok(groups) }
}

fn last(groups: &mut Vec<Subgroup>) -> &mut Subgroup {
    if groups.is_empty() {
        groups.push(Subgroup::default());
    }
    let index = groups.len() - 1;
    &mut groups[index]
}

/// Returns how much of a parameter's `left` elements goes into `room`: all, or whole blocks.
fn room_for(room: u64, left: u64) -> u64 {
    if left <= room { left } else { room / BLOCK_ELEMS * BLOCK_ELEMS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tensortier_storage::dtype::DType;

    fn params(sizes: &[u64]) -> Vec<Param> {
        let one = |(i, n): (usize, &u64)| Param::new(format!("p{i}"), [*n], DType::F32);
        sizes.iter().enumerate().map(one).collect()
    }

    proptest! {
        #[test]
        fn every_element_is_in_exactly_one_run(
            sizes in prop::collection::vec(prop_oneof![0u64..300, 65_000u64..66_000, 0u64..500_000], 1..20),
            blocks in 1u64..9,
        ) {
            let params = params(&sizes);
            let target = blocks * BLOCK_ELEMS;
            let groups = match cut(&params, target) {
                Ok(groups) => groups,
                Err(Error::NoParameters) => {
                    prop_assert!(sizes.iter().all(|n| *n == 0));
                    return Ok(());
                }
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            };
            let mut next = vec![0; sizes.len()];
            for group in &groups {
                prop_assert!(group.elems > 0 && group.elems <= target);
                let mut start = 0;
                for run in &group.runs {
                    prop_assert_eq!(run.start, start);
                    prop_assert_eq!(run.range.start, next[run.param]);
                    prop_assert_eq!(run.range.start % BLOCK_ELEMS, 0);
                    start += run.range.end - run.range.start;
                    next[run.param] = run.range.end;
                }
                prop_assert_eq!(start, group.elems);
            }
            prop_assert_eq!(next, sizes);
            // Nothing but a block edge keeps a subgroup from being full.
            let full = groups.windows(2).all(|pair| pair[0].elems + BLOCK_ELEMS > target);
            prop_assert!(full);
        }
    }

    #[test]
    fn odd_targets_and_overflowing_shapes_are_refused() {
        assert!(cut(&params(&[5]), 1000).is_err());
        assert!(cut(&params(&[5]), 128 << 20).is_err());
        let huge = Param::new("huge", [u64::MAX, 2], DType::F32);
        assert!(cut(&[huge], BLOCK_ELEMS).unwrap_err().to_string().contains("huge"));
        assert!(matches!(cut(&params(&[0, 0]), BLOCK_ELEMS), Err(Error::NoParameters)));
    }
}
