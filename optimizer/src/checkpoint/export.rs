//! Writing a checkpoint: subgroup by subgroup, each leased once, block by block into the tensors of
//! its parameters.

use std::path::PathBuf;

use bytemuck::cast_slice;
use tensortier_storage::codec::checksum;
use tensortier_storage::source::TensorFileWriter;

use crate::error::{Error, Result};
use crate::gathered::Gathered;
use crate::kernel::{Input, split};
use crate::optimizer::Optimizer;
use crate::precision::{Plane, StatePrecision};
use crate::step_io::{StepIo, Weight, WeightMut};
use crate::subgroup::{BLOCK_ELEMS, Run};

use super::header::Header;
use super::tensors::{Kind, blocks, checksums};

/// A checkpoint being written.
struct Out {
    writer: TensorFileWriter,
    /// For each parameter, its tensors: the kind, the place in the file, the first checksum.
    tensors: Vec<Vec<(Kind, usize, usize)>>,
    /// One of each block of each tensor.
    checksums: Vec<u64>,
}

impl Optimizer {
    /// Writes weights and state as one safetensors file (docs/format.md), from which
    /// [`Optimizer::import`] goes on with the same bits. `io` is asked for the weights alone. The
    /// file appears under its name only when it is whole and durable, and replaces one that is
    /// there. Reads each subgroup once; takes some 2 MiB beside the store's budget. Gradients that
    /// were handed over for the next step are no part of it.
    ///
    /// With several ranks each writes its own file, after the same step.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tensortier_optimizer::kernel::Input;
    /// use tensortier_optimizer::{Optimizer, Options, Param, Plan, Slices, WeightMut};
    /// use tensortier_storage::{dtype::DType, path::Path, store::Store};
    ///
    /// let open = || -> Result<Optimizer, Box<dyn std::error::Error>> {
    ///     let params = vec![Param::new("w", [1000], DType::F32)];
    ///     let plan = Plan::new(params, Options::default(), 8 << 20)?;
    ///     let path = Path::new(std::env::temp_dir());
    ///     Ok(Optimizer::open(Store::builder().host_budget(8 << 20).path(path).open()?, plan)?)
    /// };
    /// let (mut weights, gradients) = (vec![1.0; 1000], vec![0.5; 1000]);
    /// let mut io = Slices::new().param(WeightMut::F32(&mut weights), Input::F32(&gradients));
    /// let mut optimizer = open()?;
    /// optimizer.step(&mut io)?;
    /// # let dir = tempfile::tempdir()?;
    /// # let file = dir.path().join("after-1.safetensors");
    /// optimizer.export(&file, &mut io)?;
    ///
    /// let mut resumed = open()?;
    /// resumed.import(&[&file], &mut io)?;
    /// assert_eq!(resumed.updates(0), Some(1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfinished`] while a step is unfinished; [`Error::WeightsChanged`] when weights that
    /// are half of a split master were changed; [`Error::Parameter`] and [`Error::Tied`] when the
    /// weights that `io` hands over do not fit; the store's errors, those of the file included. No
    /// file is left behind then.
    pub fn export(&self, path: impl Into<PathBuf>, io: &mut dyn StepIo) -> Result<()> {
        self.refuse_unfinished()?;
        self.check_all_weights(io)?;
        let all: Vec<usize> = (0..self.plan.subgroups.len()).collect();
        self.check_weights(&all, &vec![true; self.plan.params.len()], io)?;
        let mut out = Out::create(path.into(), &Header::of(self))?;
        for index in all {
            self.export_subgroup(index, io, &mut out)?;
        }
        out.finish()
    }

    fn export_subgroup(&self, index: usize, io: &mut dyn StepIo, out: &mut Out) -> Result<()> {
        let group = &self.plan.subgroups[index];
        let has_state = group.runs.iter().any(|run| self.progress[run.param].updates > 0);
        let lease = match self.resident.get(index) {
            None if has_state => {
                if let Some(next) = self.objects.get(index + 1) {
                    // Why a hint failed is said by the lease that follows it.
                    let _ = self.store.prefetch(next);
                }
                Some(self.store.lease_read(&self.objects[index], 0).wait()?)
            }
            _ => None,
        };
        let resident = self.resident.get(index).map(|lease| &lease[..]);
        let chunk = resident.or(lease.as_deref()).unwrap_or_default();
        for run in &group.runs {
            let weight = io.segment(run.param, run.range.clone()).weight;
            match self.progress[run.param].updates {
                0 => self.export_run(run, &[], weight, out)?,
                _ => {
                    let planes = group.planes(run).map(|(plane, bytes)| (plane, &chunk[bytes]));
                    self.export_run(run, &planes.collect::<Vec<_>>(), weight, out)?;
                }
            }
        }
        Ok(())
    }

    /// Writes one run, given the bytes of its planes, if there is anything in them.
    fn export_run(
        &self,
        run: &Run,
        planes: &[(Plane, &[u8])],
        mut weight: Weight<'_>,
        out: &mut Out,
    ) -> Result<()> {
        let mut gathered = Gathered::default();
        let mut words = Vec::new();
        let kinds = out.tensors[run.param].clone();
        for start in run.range.clone().step_by(BLOCK_ELEMS as usize) {
            let tile = start..(start + BLOCK_ELEMS).min(run.range.end);
            let at = (start - run.range.start) as usize;
            let within = at..at + (tile.end - tile.start) as usize;
            let tile_weight = match &mut weight {
                Weight::Elements(raw) => raw.part(within.clone()),
                Weight::Strided(raw, strides) => gathered.weight(raw, strides, tile),
            };
            let stored = |plane: Plane| {
                let of_plane = planes.iter().find(|(other, _)| *other == plane);
                let width = plane.bytes() as usize;
                of_plane.map(|(_, bytes)| &bytes[within.start * width..within.end * width])
            };
            for tensor in &kinds {
                let bytes =
                    self.bytes_of((run.param, tensor.0), &tile_weight, stored, &mut words)?;
                out.put(*tensor, start, bytes)?;
            }
        }
        Ok(())
    }

    /// Returns what a file has of one kind of a tile, given its weights and the bytes of its planes.
    fn bytes_of<'a, 'p: 'a>(
        &self,
        (param, kind): (usize, Kind),
        weight: &'a WeightMut<'_>,
        stored: impl Fn(Plane) -> Option<&'p [u8]>,
        words: &'a mut Vec<f32>,
    ) -> Result<&'a [u8]> {
        let split = self.plan.forms[param].precision == StatePrecision::SplitMaster;
        let plane = |plane: Plane| stored(plane).unwrap_or_default();
        words.resize(weight.len(), 0.0);
        Ok(match (kind, weight.as_input()) {
            (Kind::Param, Input::F32(raw)) => cast_slice(raw),
            (Kind::Param, Input::Bf16(raw) | Input::F16(raw)) => cast_slice(raw),
            (Kind::Master, Input::Bf16(hi)) if split => {
                let (lo, v) = (cast_slice(plane(Plane::Lo)), cast_slice(plane(Plane::V)));
                split::join_all(hi, lo, v, words)?;
                cast_slice(words)
            }
            (Kind::ExpAvgSq, _) if split => {
                split::unmark_all(cast_slice(plane(Plane::V)), words)?;
                cast_slice(words)
            }
            (Kind::Master, _) => plane(Plane::P),
            (Kind::ExpAvg, _) => plane(Plane::M),
            (Kind::ExpAvgSq, _) => plane(Plane::V),
            (Kind::MaxExpAvgSq, _) => plane(Plane::VMax),
        })
    }
}

impl Out {
    /// Creates the file of a header.
    fn create(path: PathBuf, header: &Header) -> Result<Self> {
        let (mut specs, mut tensors, mut count) = (Vec::new(), Vec::new(), 0);
        for param in &header.parameters {
            let mut of_param = Vec::new();
            for kind in Kind::of(param, header.amsgrad(param)) {
                of_param.push((kind, specs.len(), count as usize));
                count += blocks(param.shard.elements(&param.global_shape).unwrap_or(0));
                specs.push(kind.spec(param));
            }
            tensors.push(of_param);
        }
        specs.push(checksums(count));
        let metadata = header.to_metadata().map_err(|why| Error::Checkpoint {
            what: format!("writing {}", path.display()),
            why,
        })?;
        let writer = TensorFileWriter::create(path, &specs, &metadata)?;
        Ok(Out { writer, tensors, checksums: vec![0; count as usize] })
    }

    /// Writes the block of a tensor that begins with element `start`.
    fn put(
        &mut self,
        (_, tensor, first): (Kind, usize, usize),
        start: u64,
        bytes: &[u8],
    ) -> Result<()> {
        self.checksums[first + (start / BLOCK_ELEMS) as usize] = checksum(bytes);
        Ok(self.writer.write_to(tensor, bytes)?)
    }

    fn finish(mut self) -> Result<()> {
        let last = self.tensors.iter().map(Vec::len).sum();
        self.writer.write_to(last, cast_slice(&self.checksums))?;
        Ok(self.writer.finish()?)
    }
}
