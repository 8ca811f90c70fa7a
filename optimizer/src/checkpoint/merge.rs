//! One checkpoint out of its files: what they say of steps, groups and parameters has to agree among
//! them and with the plan, and every element has to be there and to make sense. All of it is looked at
//! before anything is changed.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use bytemuck::{Pod, cast_slice_mut};
use tensortier_storage::dtype::DType;

use crate::error::{Error, Result};
use crate::hyper::Hyper;
use crate::options::Rounding;
use crate::param::Param;
use crate::plan::Plan;
use crate::precision::{Form, StatePrecision};
use crate::shard::Shard;
use crate::subgroup::BLOCK_ELEMS;

use super::header::SavedParam;
use super::reshard::{pieces, uncovered};
use super::source::{Saved, Source, Sources};
use super::tensors::Kind;

/// How much is looked at at a time: more than a block, so that of files that each have a part of every
/// row whole blocks are taken in turn.
const VERIFIED_ELEMS: u64 = 16 * BLOCK_ELEMS;

/// A checkpoint that fits a plan.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) steps: u64,
    pub(super) rounding: Rounding,
    pub(super) groups: Vec<Hyper>,
    /// One of each parameter of the plan.
    pub(super) params: Vec<Merged>,
    sources: Sources,
}

/// What the files have of one parameter of the plan.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub(super) updates: u64,
    pub(super) master: bool,
    /// Shards that have elements; the first that has one counts.
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    file: usize,
    shard: Shard,
    tensors: Vec<Saved>,
}

fn refuse<T>(what: String, why: String) -> Result<T> {
    Err(Error::Checkpoint { what, why })
}

impl Checkpoint {
    /// Opens the files of a checkpoint and compares what they say with the plan.
    pub(super) fn open<P: AsRef<Path>>(paths: &[P], plan: &Plan) -> Result<Self> {
        let files = paths.iter().map(|path| Source::open(path.as_ref()));
        let files = files.collect::<Result<Vec<_>>>()?;
        let Some(first) = files.first() else {
            return refuse(String::from("a checkpoint of no files"), String::from("name them all"));
        };
        for file in &files[1..] {
            check_same(first, file)?;
        }
        let groups: Vec<Hyper> = first.header.groups().copied().collect();
        check_groups(&first.shown(), &groups, plan)?;
        let (steps, rounding) = (first.header.steps, first.header.rounding);
        let params = merge(&files, plan)?;
        Ok(Checkpoint { steps, rounding, groups, params, sources: Sources::new(files) })
    }

    /// Looks at every element that the plan's parameters take: that it is there, is as it was
    /// written, and that no second moment is negative.
    pub(super) fn verify(&mut self, plan: &Plan) -> Result<()> {
        let mut words = Vec::new();
        let tiles = |param: &Param| {
            let elems = param.elements().unwrap_or(0);
            let starts = (0..elems).step_by(VERIFIED_ELEMS as usize);
            starts.map(move |start| start..(start + VERIFIED_ELEMS).min(elems))
        };
        for (merged, param) in self.params.iter().zip(&plan.params) {
            tiles(param).try_for_each(|tile| merged.check_cover(param, tile))?;
        }
        for (index, param) in plan.params.iter().enumerate() {
            for kind in self.params[index].kinds() {
                let half = kind == Kind::Param && param.weight_dtype != DType::F32;
                for tile in tiles(param) {
                    let (start, elems) = (tile.start, (tile.end - tile.start) as usize);
                    words.resize(elems, 0.0_f32);
                    if half {
                        let words: &mut [u16] = cast_slice_mut(&mut words);
                        self.fill((index, kind), param, tile, &mut words[..elems])?;
                    } else {
                        self.fill((index, kind), param, tile, &mut words)?;
                    }
                    if kind.is_square() {
                        check_squares((param, kind), start, &words)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills `out` with elements `range` of one kind of a parameter.
    pub(super) fn fill<T: Pod>(
        &mut self,
        (index, kind): (usize, Kind),
        param: &Param,
        range: Range<u64>,
        out: &mut [T],
    ) -> Result<()> {
        // The first is the last to be copied, so that it counts.
        for part in self.params[index].parts.iter().rev() {
            let Some(tensor) = part.tensors.iter().find(|tensor| tensor.kind == kind) else {
                continue;
            };
            for piece in pieces(&part.shard, param, range.clone()) {
                let out = &mut out[piece.to..piece.to + piece.elems];
                self.sources.copy(part.file, tensor, piece.from, out)?;
            }
        }
        Ok(())
    }
}

impl Merged {
    fn kinds(&self) -> Vec<Kind> {
        let tensors = self.parts.first().map_or(&[][..], |part| &part.tensors);
        tensors.iter().map(|tensor| tensor.kind).collect()
    }

    /// Refuses elements `range` of a parameter that not all are in a file.
    fn check_cover(&self, param: &Param, range: Range<u64>) -> Result<()> {
        let shards: Vec<_> = self.parts.iter().map(|part| &part.shard).collect();
        match uncovered(&shards, param, range) {
            None => Ok(()),
            Some(at) => refuse(
                format!("parameter {:?}", param.name),
                format!("element {at} is in none of the files; name all of them"),
            ),
        }
    }

    /// Adds what a file has; `shown` is the file.
    fn add(&mut self, saved: &SavedParam, part: Part, shown: &str) -> Result<()> {
        // Who holds no element may have counted no update.
        if saved.shard.elements(&saved.global_shape) == Some(0) {
            if self.parts.is_empty() {
                self.updates = self.updates.max(saved.updates);
                self.master |= saved.master;
            }
            return Ok(());
        }
        let known = (self.updates, self.master);
        if !self.parts.is_empty() && known != (saved.updates, saved.master) {
            let what = format!("parameter {:?} in {shown}", saved.name);
            let says = |(updates, master): (u64, bool)| {
                format!("{updates} updates and {} master", if master { "a" } else { "no" })
            };
            let (here, there) = (says((saved.updates, saved.master)), says(known));
            let why = format!("has {here}, and {there} in another file; take files of one run");
            return refuse(what, why);
        }
        (self.updates, self.master) = (saved.updates, saved.master);
        let whole = |part: &Part| part.shard == Shard::Whole || part.shard == saved.shard;
        if !self.parts.iter().any(whole) {
            self.parts.push(part);
        }
        Ok(())
    }
}

/// Refuses files that are not of one checkpoint.
fn check_same(first: &Source, other: &Source) -> Result<()> {
    let (one, two) = (&first.header, &other.header);
    let why = if one.steps != two.steps {
        format!("was written after step {} and {} after step", two.steps, first.shown())
            + &format!(" {}", one.steps)
    } else if !one.groups().eq(two.groups()) {
        format!("has other hyper-parameters than {}", first.shown())
    } else if one.rounding != two.rounding {
        format!("was rounded otherwise than {}", first.shown())
    } else {
        return Ok(());
    };
    refuse(other.shown(), format!("{why}; take files of one checkpoint"))
}

/// Refuses groups that the plan does not have.
fn check_groups(shown: &str, groups: &[Hyper], plan: &Plan) -> Result<()> {
    let planned = &plan.options.groups;
    if groups.len() != planned.len() {
        let why = format!("has {} groups and the plan {}", groups.len(), planned.len());
        return refuse(shown.to_owned(), format!("{why}; plan as many"));
    }
    let differs = groups.iter().zip(planned).position(|(a, b)| a.amsgrad != b.amsgrad);
    let Some(group) = differs else { return Ok(()) };
    let has = |amsgrad: bool| if amsgrad { "amsgrad" } else { "no amsgrad" };
    let (saved, wanted) = (has(groups[group].amsgrad), has(planned[group].amsgrad));
    let why = format!("group {group} has {saved}, and {wanted} in the plan; plan it as it was");
    refuse(shown.to_owned(), why)
}

/// Brings together what the files have of each parameter of the plan.
fn merge(files: &[Source], plan: &Plan) -> Result<Vec<Merged>> {
    let names = plan.params.iter().enumerate().map(|(index, param)| (&param.name[..], index));
    let known: HashMap<&str, usize> = names.collect();
    let mut merged: Vec<Option<Merged>> = Vec::new();
    merged.resize_with(plan.params.len(), || None);
    for (file, source) in files.iter().enumerate() {
        let shown = source.shown();
        for (number, saved) in source.header.parameters.iter().enumerate() {
            let what = || format!("parameter {:?} in {shown}", saved.name);
            let Some(&index) = known.get(&saved.name[..]) else {
                let why =
                    "is not in the plan; if it is trained elsewhere, plan an empty shard of it";
                return refuse(what(), String::from(why));
            };
            if let Err(why) = check_param(saved, &plan.params[index]) {
                return refuse(what(), why);
            }
            let tensors = source.tensors(number).to_vec();
            let part = Part { file, shard: saved.shard.clone(), tensors };
            merged[index].get_or_insert_default().add(saved, part, &shown)?;
        }
    }
    let mut all = Vec::with_capacity(merged.len());
    for ((merged, param), form) in merged.into_iter().zip(&plan.params).zip(&plan.forms) {
        let what = || format!("parameter {:?}", param.name);
        let Some(merged) = merged else {
            return refuse(what(), String::from("is in none of the files; name all of them"));
        };
        check_master(param, *form, merged.master)?;
        all.push(merged);
    }
    Ok(all)
}

/// Says what of a saved parameter is not as the plan has it.
fn check_param(saved: &SavedParam, param: &Param) -> Result<(), String> {
    let differ = |what: &str, saved: String, planned: String| {
        Err(format!("has {what} {saved}, and {planned} in the plan"))
    };
    let dtype = DType::from(saved.weights);
    if saved.global_shape != param.global_shape {
        let shape = |shape: &[u64]| format!("{shape:?}");
        return differ("the shape", shape(&saved.global_shape), shape(&param.global_shape));
    }
    if dtype != param.weight_dtype {
        return differ("weights of type", dtype.to_string(), param.weight_dtype.to_string());
    }
    if saved.group != param.group {
        return differ("the group", saved.group.to_string(), param.group.to_string());
    }
    Ok(())
}

/// Refuses a master where only the weights are kept, in fewer bits.
pub(super) fn check_master(param: &Param, form: Form, master: bool) -> Result<()> {
    let loses = form.precision == StatePrecision::Weights && param.weight_dtype != DType::F32;
    if !(master && loses) {
        return Ok(());
    }
    let why = "has a master, which state precision weights would lose; plan fp32 or split";
    refuse(format!("parameter {:?}", param.name), String::from(why))
}

/// Refuses second moments that are negative: a split master keeps a mark in their sign.
pub(super) fn check_squares(
    (param, kind): (&Param, Kind),
    start: u64,
    squares: &[f32],
) -> Result<()> {
    let negative = |v: &f32| v.is_sign_negative() && !v.is_nan();
    let Some(at) = squares.iter().position(negative) else { return Ok(()) };
    let at = param.stretches(start + at as u64..start + at as u64 + 1).next();
    let at = at.map_or(0, |stretch| stretch.global);
    let why = format!("{} of element {at} is negative, which no square is", kind.name());
    refuse(format!("parameter {:?}", param.name), why)
}
