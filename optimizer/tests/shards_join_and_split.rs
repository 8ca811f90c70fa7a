//! Checkpoints of some ranks are taken by others: 4, 1, 2, 3, 8, in boxes along any dimension, in flat
//! ranges, whole, and mixed; the bits are those of the whole model in memory, and what lies around the
//! caller's buffers is never touched or saved.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::ops::Range;
use std::path::{Path, PathBuf};

use common::{Reference, Tensor, store, values};
use proptest::prelude::*;
use tensortier_optimizer::{
    Gradient, Hyper, Optimizer, Options, Param, Plan, Plane, Rounding, Segment, Shard,
    StatePrecision, StepIo,
};
use tensortier_storage::dtype::DType;
use tensortier_storage::source::{Access, TensorFile};

/// What lies around the elements of a buffer.
const POISON: f32 = 1.0e30;
const AROUND: usize = 37;

/// How a parameter is cut.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// Each rank has all of it.
    Whole,
    /// Boxes along a dimension.
    Box(usize),
    /// Flat ranges.
    Flat,
    /// Rank after rank another way; together they have all of it.
    Mixed,
}

fn cut() -> impl Strategy<Value = Cut> {
    prop_oneof![Just(Cut::Whole), (0usize..3).prop_map(Cut::Box), Just(Cut::Flat), Just(Cut::Mixed)]
}

impl Cut {
    fn shard(self, shape: &[u64], rank: u64, ranks: u64) -> Shard {
        // Unequal parts, some of them empty if there are many.
        let part = |n: u64| {
            let edge = |r: u64| if r == ranks { n } else { (n * r / ranks + r % 2).min(n) };
            edge(rank)..edge(rank + 1).max(edge(rank))
        };
        match self {
            Cut::Whole => Shard::Whole,
            Cut::Box(d) => {
                let d = d % shape.len();
                let range = part(shape[d]);
                let (mut offset, mut extent) = (vec![0; shape.len()], shape.to_vec());
                (offset[d], extent[d]) = (range.start, range.end - range.start);
                Shard::Box { offset, shape: extent }
            }
            Cut::Flat => Shard::Flat { range: part(shape.iter().product()) },
            // Rows, said in two ways: both cut along the slowest dimension.
            Cut::Mixed if rank.is_multiple_of(2) => Cut::Box(0).shard(shape, rank, ranks),
            Cut::Mixed => {
                let rows: u64 = shape[1..].iter().product();
                let range = part(shape[0]);
                Shard::Flat { range: range.start * rows..range.end * rows }
            }
        }
    }
}

/// One rank: its optimizer and buffers with something around them.
struct Rank {
    optimizer: Optimizer,
    buffers: Buffers,
}

struct Buffers {
    weights: Vec<Tensor>,
    gradients: Vec<Option<Tensor>>,
}

impl StepIo for Buffers {
    fn has_gradient(&self, param: usize) -> bool {
        self.gradients[param].is_some()
    }

    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        let range = range.start as usize + AROUND..range.end as usize + AROUND;
        let gradient = self.gradients[param].as_ref();
        let gradient = gradient.map_or(Gradient::None, |g| g.input(range.clone()).into());
        Segment::new(gradient, self.weights[param].weight(range))
    }
}

/// The global index of each element of a parameter's shard.
fn globals(param: &Param) -> Vec<usize> {
    let stretches = param.stretches(0..param.elements().unwrap());
    stretches.flat_map(|s| s.global as usize..(s.global + s.elems) as usize).collect()
}

/// A shard of a whole tensor, with poison around it.
fn padded(whole: &Tensor, param: &Param) -> Tensor {
    fn take<T: Copy>(raw: &[T], at: &[usize], poison: T) -> Vec<T> {
        let around = std::iter::repeat_n(poison, AROUND);
        around.clone().chain(at.iter().map(|i| raw[*i])).chain(around).collect()
    }
    match whole {
        Tensor::F32(raw) => Tensor::F32(take(raw, &globals(param), POISON)),
        Tensor::Half(dtype, raw) => Tensor::Half(*dtype, take(raw, &globals(param), 0x7177)),
    }
}

/// The models' tensors: shape and type.
const TENSORS: [(&str, &[u64], DType); 5] = [
    ("large", &[70, 41, 30], DType::BF16),
    ("full", &[301, 263], DType::F32),
    ("small/er", &[7, 3, 2], DType::BF16),
    ("norm", &[11], DType::F32),
    ("nothing", &[0, 4], DType::BF16),
];

fn ranks(n: u64, cuts: &[Cut], way: Way, blocks: u64) -> Vec<Rank> {
    let open = |rank: u64| {
        let param = |((name, shape, dtype), cut): (&(&str, &[u64], DType), &Cut)| {
            let shard = cut.shard(shape, rank, n);
            Param::new(*name, *shape, *dtype)
                .with_shard(shard)
                .in_group(usize::from(*name == "norm"))
        };
        let params: Vec<_> = TENSORS.iter().zip(cuts).map(param).collect();
        let options = Options {
            groups: groups().to_vec(),
            precision: way.precision,
            rounding: way.rounding,
            subgroup_elems: Some(blocks * 65_536),
            threads: Some(1),
            ..Options::default()
        };
        let weights = params.iter().map(|p| {
            let all: u64 = p.global_shape.iter().product();
            padded(&Tensor::new(p.weight_dtype, &vec![0.25; all as usize]), p)
        });
        let weights: Vec<_> = weights.collect();
        let host = 8 << 20;
        let plan = Plan::new(params, options, host).unwrap();
        let gradients = vec![None; weights.len()];
        let optimizer = Optimizer::open(store(host, 1), plan).unwrap();
        Rank { optimizer, buffers: Buffers { weights, gradients } }
    };
    (0..n).map(open).collect()
}

fn groups() -> [Hyper; 2] {
    [
        Hyper { lr: 1e-2, amsgrad: true, ..Hyper::default() },
        Hyper { lr: 3e-3, weight_decay: 0.0, ..Hyper::default() },
    ]
}

#[derive(Debug, Clone, Copy)]
struct Way {
    precision: Option<StatePrecision>,
    rounding: Rounding,
}

/// Checks all of a rank against the whole model, and that nothing around its buffers was touched.
fn check(rank: &mut Rank, reference: &Reference) {
    let Rank { optimizer, buffers } = rank;
    for (index, param) in optimizer.plan().params.clone().iter().enumerate() {
        let name = (&param.name, &param.shard);
        let expect = padded(&reference.weights[index], param);
        assert!(buffers.weights[index].bits() == expect.bits(), "weights of {name:?}");
        let at = globals(param);
        let mut got = vec![0.0; at.len()];
        let bits = |got: &[f32]| got.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let [p, m, v, _] = &reference.planes[index];
        let whole = |plane: &[f32]| at.iter().map(|i| plane[*i].to_bits()).collect::<Vec<_>>();
        for (plane, expect) in [(Plane::M, m), (Plane::V, v)] {
            optimizer.read_plane(index, plane, 0..at.len() as u64, &mut got).unwrap();
            assert!(bits(&got) == whole(expect), "{plane} of {name:?}");
        }
        let weights = buffers.weights[index].input(AROUND..AROUND + at.len());
        optimizer.read_master(index, 0..at.len() as u64, weights, &mut got).unwrap();
        assert!(bits(&got) == whole(p), "master of {name:?}");
        if !at.is_empty() {
            assert_eq!(optimizer.updates(index), Some(reference.counts[index]), "{name:?}");
        }
    }
}

fn export(ranks: &mut [Rank], dir: &Path, stage: usize) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let file = dir.join(format!("{stage}-{number}.safetensors"));
        rank.optimizer.export(&file, &mut rank.buffers).unwrap();
        files.push(file);
    }
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
    ))]

    #[test]
    fn any_ranks_go_on_from_any_others(
        cuts in prop::collection::vec(prop::collection::vec(cut(), TENSORS.len()), 6),
        ways in prop_oneof![
            prop::collection::vec(
                prop_oneof![Just(StatePrecision::Fp32), Just(StatePrecision::SplitMaster)]
                    .prop_map(|p| Way { precision: Some(p), rounding: Rounding::Nearest }),
                6,
            ),
            any::<u64>().prop_map(|seed| {
                vec![Way { precision: None, rounding: Rounding::Stochastic { seed } }; 6]
            }),
        ],
        blocks in prop::collection::vec(1u64..4, 6),
        reversed in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let whole: Vec<_> =
            TENSORS.iter().map(|(name, shape, dtype)| Param::new(*name, *shape, *dtype)).collect();
        let sizes: Vec<usize> = whole.iter().map(|p| p.elements().unwrap() as usize).collect();
        let start = sizes.iter().zip(&whole).enumerate();
        let start: Vec<_> =
            start.map(|(i, (n, p))| Tensor::new(p.weight_dtype, &values(i as u64, *n, 0.1))).collect();
        let mut reference = Reference::new(&whole, &start, ways[0].rounding);
        let hypers: Vec<_> =
            TENSORS.iter().map(|(name, ..)| groups()[usize::from(*name == "norm")]).collect();
        let mut files: Vec<PathBuf> = Vec::new();
        for (stage, n) in [4u64, 1, 2, 3, 8, 4].into_iter().enumerate() {
            let mut ranks = ranks(n, &cuts[stage], ways[stage], blocks[stage]);
            for rank in &mut ranks {
                if stage == 0 {
                    let params = rank.optimizer.plan().params.iter().zip(&start);
                    rank.buffers.weights = params.map(|(p, w)| padded(w, p)).collect();
                } else {
                    rank.optimizer.import(&files, &mut rank.buffers).unwrap();
                    check(rank, &reference);
                }
            }
            let given: Vec<_> = sizes.iter().enumerate().map(|(i, n)| {
                let seed = (stage * 100 + i) as u64 + 7;
                // The small one begins to train late.
                (i != 2 || stage > 1).then(|| Tensor::new(DType::BF16, &values(seed, *n, 1e-2)))
            }).collect();
            reference.step(&hypers, 1.0, &given);
            for rank in &mut ranks {
                // Who holds no element has no gradient.
                let params = rank.optimizer.plan().params.iter().zip(&given);
                rank.buffers.gradients = params.map(|(p, g)| {
                    g.as_ref().filter(|_| p.elements() != Some(0)).map(|g| padded(g, p))
                }).collect();
                rank.optimizer.step(&mut rank.buffers).unwrap();
                check(rank, &reference);
            }
            files = export(&mut ranks, dir.path(), stage);
            if reversed {
                files.reverse();
            }
        }
    }
}

#[test]
fn padding_is_never_saved_and_a_rank_may_hold_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let way = Way { precision: Some(StatePrecision::SplitMaster), rounding: Rounding::Nearest };
    // Of two ranks, the second holds no element of anything.
    let mut two = ranks(1, &[Cut::Flat; 5], way, 1);
    let none = |(name, shape, dtype): &(&str, &[u64], DType)| {
        let group = usize::from(*name == "norm");
        Param::new(*name, *shape, *dtype).with_shard(Shard::Flat { range: 0..0 }).in_group(group)
    };
    let options =
        Options { groups: groups().to_vec(), precision: way.precision, ..Options::default() };
    let plan = Plan::new(TENSORS.iter().map(none).collect(), options, 1 << 20).unwrap();
    let optimizer = Optimizer::open(store(1 << 20, 1), plan).unwrap();
    let nothing =
        |(_, _, dtype): &(&str, &[u64], DType)| Tensor::new(*dtype, &[POISON; 2 * AROUND]);
    let weights: Vec<_> = TENSORS.iter().map(nothing).collect();
    two.push(Rank {
        optimizer,
        buffers: Buffers { gradients: weights.iter().cloned().map(Some).collect(), weights },
    });
    let poisoned = two[0].optimizer.plan().params.iter().map(|p| {
        let all: u64 = p.global_shape.iter().product();
        Some(padded(&Tensor::new(DType::BF16, &vec![0.5; all as usize]), p))
    });
    two[0].buffers.gradients = poisoned.collect();
    for rank in &mut two {
        rank.optimizer.step(&mut rank.buffers).unwrap();
    }
    let files = export(&mut two, dir.path(), 0);
    let elements: u64 = TENSORS.iter().map(|(_, shape, _)| shape.iter().product::<u64>()).sum();
    let saved = TensorFile::open(&files[0], Access::Direct).unwrap();
    let params = saved.entries().iter().filter(|entry| entry.name.starts_with("param/"));
    assert_eq!(params.map(|entry| entry.elements()).sum::<u64>(), elements);
    let empty = TensorFile::open(&files[1], Access::Direct).unwrap();
    assert_eq!(empty.entries().iter().map(|entry| entry.bytes()).sum::<u64>(), 0);
    // Each may take both files.
    for rank in &mut two {
        let before: Vec<_> = rank.buffers.weights.iter().map(Tensor::bits).collect();
        rank.buffers.weights.iter_mut().for_each(|weights| {
            let n = weights.len();
            match weights {
                Tensor::F32(raw) => raw[AROUND..n - AROUND].fill(0.0),
                Tensor::Half(_, raw) => raw[AROUND..n - AROUND].fill(0),
            }
        });
        rank.optimizer.import(&files, &mut rank.buffers).unwrap();
        let after: Vec<_> = rank.buffers.weights.iter().map(Tensor::bits).collect();
        assert!(before == after);
        assert_eq!(rank.optimizer.steps(), 1);
    }
}
