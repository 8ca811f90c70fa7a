//! Tensors that several ranks hold parts of, as boxes or flat ranges, in memory of their own or as
//! strided views of one: together the bits are those of the whole tensor on one rank.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::ops::Range;

use common::{Model, Reference, Tensor, places, store, values};
use proptest::prelude::*;
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Gradient, Hyper, Norm, Optimizer, Options, Param, Plan, Plane, Rounding, Segment, Shard,
    StatePrecision, StepIo, StepOptions, Strides, Weight,
};
use tensortier_storage::dtype::DType;

/// Cuts a tensor into `ranks` parts along a dimension, or flat; some may be empty.
fn cut(shape: &[u64], dim: Option<usize>, ranks: u64) -> Vec<Shard> {
    let extent = dim.map_or(shape.iter().product(), |d| shape[d]);
    // Uneven on purpose.
    let edge = |rank: u64| (extent * rank * (rank + 1) / (ranks * (ranks + 1))).min(extent);
    let part = |rank: u64| {
        let range = edge(rank)..edge(rank + 1);
        let Some(d) = dim else { return Shard::Flat { range } };
        let (mut offset, mut part) = (vec![0; shape.len()], shape.to_vec());
        (offset[d], part[d]) = (range.start, range.end - range.start);
        Shard::Box { offset, shape: part }
    };
    (0..ranks).map(part).collect()
}

/// The whole tensors, of which a rank hands over views of its boxes.
struct Views<'a> {
    params: &'a [Param],
    shapes: Vec<Vec<u64>>,
    strides: Vec<Vec<u64>>,
    offsets: Vec<usize>,
    weights: &'a mut [Tensor],
    gradients: &'a [Tensor],
}

impl<'a> Views<'a> {
    fn new(params: &'a [Param], weights: &'a mut [Tensor], gradients: &'a [Tensor]) -> Self {
        let strides = |param: &Param| -> Vec<u64> {
            let rank = param.global_shape.len();
            (0..rank).map(|d| param.global_shape[d + 1..].iter().product()).collect()
        };
        let strides: Vec<_> = params.iter().map(strides).collect();
        let offset = |(param, strides): (&Param, &Vec<u64>)| match &param.shard {
            Shard::Box { offset, .. } => {
                offset.iter().zip(strides).map(|(at, step)| (at * step) as usize).sum()
            }
            _ => 0,
        };
        let offsets = params.iter().zip(&strides).map(offset).collect();
        let shapes = params.iter().map(Param::shape).collect();
        Views { params, shapes, strides, offsets, weights, gradients }
    }
}

impl StepIo for Views<'_> {
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        assert!(range.start < range.end && range.end <= self.params[param].elements().unwrap());
        let strides = Strides { shape: &self.shapes[param], strides: &self.strides[param] };
        let all = self.offsets[param]..self.weights[param].len();
        Segment::new(
            Gradient::Strided(self.gradients[param].input(all.clone()), strides),
            Weight::Strided(self.weights[param].weight(all), strides),
        )
    }
}

#[derive(Debug, Clone)]
struct Case {
    /// Shape, and along which dimension it is cut; flat if there is no such.
    params: Vec<(Vec<u64>, usize)>,
    dtype: DType,
    options: Options,
}

fn case() -> impl Strategy<Value = Case> {
    let shape = prop_oneof![
        prop::collection::vec(1u64..9, 1..5),
        (300u64..500, 200u64..500).prop_map(|(a, b)| vec![a, b]),
        (2u64..5, 100u64..200, 200u64..300).prop_map(|(a, b, c)| vec![a, b, c]),
    ];
    let params = prop::collection::vec((shape, 0usize..5), 1..4);
    let rule = prop_oneof![
        Just((DType::F32, None, None)),
        Just((DType::F16, None, None)),
        Just((DType::BF16, Some(StatePrecision::SplitMaster), None)),
        any::<u64>().prop_map(|seed| (DType::BF16, None, Some(seed))),
        any::<u64>().prop_map(|seed| (DType::F16, None, Some(seed))),
    ];
    (params, rule, 1usize..3, 1u64..3).prop_map(|(params, rule, threads, blocks)| {
        let (dtype, precision, seed) = rule;
        let options = Options {
            precision,
            rounding: seed.map_or(Rounding::Nearest, |seed| Rounding::Stochastic { seed }),
            threads: Some(threads),
            subgroup_elems: Some(blocks * 65_536),
            ..Options::from(Hyper { lr: 1e-2, amsgrad: blocks == 2, ..Hyper::default() })
        };
        Case { params, dtype, options }
    })
}

/// What one rank has of a tensor: where its elements belong, and their bits.
type Part = (Vec<usize>, Vec<u32>);

/// Puts the parts of all ranks where they belong, and compares.
fn same(what: &str, param: &str, parts: &[Part], whole: &[u32]) {
    let mut joined = vec![None; whole.len()];
    for (places, bits) in parts {
        for (place, bits) in places.iter().zip(bits) {
            assert_eq!(joined[*place].replace(*bits), None, "two ranks have an element");
        }
    }
    let same = joined.iter().zip(whole).all(|(got, expect)| *got == Some(*expect));
    assert!(same, "{what} of {param}");
}

fn plane_of(optimizer: &Optimizer, param: usize, plane: Plane) -> Vec<u32> {
    let n = optimizer.plan().params[param].elements().unwrap();
    let mut out = vec![0.0; n as usize];
    optimizer.read_plane(param, plane, 0..n, &mut out).unwrap();
    out.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn ranks_together_give_the_bits_of_the_whole(
        case in case(),
        ranks in 1u64..4,
        steps in 1u64..4,
        seed in any::<u64>(),
        outside in prop::option::of(0.5f64..50.0),
        views in any::<bool>(),
    ) {
        let whole: Vec<_> = case
            .params
            .iter()
            .enumerate()
            .map(|(i, (shape, _))| Param::new(format!("p{i}"), shape.clone(), case.dtype))
            .collect();
        let shards: Vec<_> = case
            .params
            .iter()
            .map(|(shape, dim)| {
                let last = shape.len() - 1;
                let dim = if views { Some((*dim).min(last)) } else { Some(*dim).filter(|d| *d <= last) };
                cut(shape, dim, ranks)
            })
            .collect();
        let start = Model::new(&whole, seed).weights;
        let mut reference = Reference::new(&whole, &start, case.options.rounding);
        let gradients = |t: u64| -> Vec<Tensor> {
            let one = |(i, w): (usize, &Tensor)| {
                Tensor::new(DType::BF16, &values(seed ^ (t * 64 + i as u64), w.len(), 0.1))
            };
            start.iter().enumerate().map(one).collect()
        };
        let step_options = StepOptions {
            max_norm: outside.map(|_| 1.0),
            norm: outside.map(Norm::from),
            ..StepOptions::default()
        };
        let factor = outside.map_or(1.0, |sum| (1.0 / (sum.sqrt() + 1e-6)).min(1.0));
        for t in 0..steps {
            let given: Vec<_> = gradients(t).into_iter().map(Some).collect();
            reference.step(&vec![case.options.groups[0]; whole.len()], factor, &given);
        }

        let mut shared = start.clone();
        // Weights, m and v of each parameter.
        let mut planes: [Vec<Vec<Part>>; 3] = [(); 3].map(|()| vec![Vec::new(); whole.len()]);
        for rank in 0..ranks as usize {
            let own: Vec<_> = whole
                .iter()
                .zip(&shards)
                .map(|(param, shards)| param.clone().with_shard(shards[rank].clone()))
                .collect();
            let plan = Plan::new(own.clone(), case.options.clone(), 8 << 20).unwrap();
            let mut optimizer = Optimizer::open(store(8 << 20, 1), plan).unwrap();
            let mut model = Model::new(&own, 0);
            model.weights = start.iter().zip(&own).map(|(w, param)| w.shard(param)).collect();
            for t in 0..steps {
                let all = gradients(t);
                if views {
                    let mut io = Views::new(&own, &mut shared, &all);
                    optimizer.step_with(&mut io, &step_options).unwrap();
                } else {
                    let part = |(g, param): (&Tensor, &Param)| Some(g.shard(param));
                    model.set_gradients(&all.iter().zip(&own).map(part).collect::<Vec<_>>());
                    optimizer.step_with(&mut model, &step_options).unwrap();
                }
            }
            for (i, param) in own.iter().enumerate() {
                let weights = if views { shared[i].shard(param) } else { model.weights[i].clone() };
                planes[0][i].push((places(param), weights.bits()));
                planes[1][i].push((places(param), plane_of(&optimizer, i, Plane::M)));
                planes[2][i].push((places(param), plane_of(&optimizer, i, Plane::V)));
            }
        }
        let bits = |plane: &[f32]| plane.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for (i, param) in whole.iter().enumerate() {
            same("weights", &param.name, &planes[0][i], &reference.weights[i].bits());
            same("m", &param.name, &planes[1][i], &bits(&reference.planes[i][1]));
            same("v", &param.name, &planes[2][i], &bits(&reference.planes[i][2]));
            if views {
                prop_assert_eq!(shared[i].bits(), reference.weights[i].bits());
            }
        }
    }
}

#[test]
fn an_expanded_gradient_may_share_places_and_weights_may_not() {
    let shard = Shard::Box { offset: vec![0, 2], shape: vec![4, 3] };
    let params = vec![Param::new("w", [4, 8], DType::F32).with_shard(shard)];
    let plan = Plan::new(params.clone(), Options::default(), 1 << 20).unwrap();
    let mut optimizer = Optimizer::open(store(1 << 20, 1), plan).unwrap();
    struct Expanded(Vec<f32>, [u64; 2]);
    impl StepIo for Expanded {
        fn segment(&mut self, _param: usize, _range: Range<u64>) -> Segment<'_> {
            let one = Strides { shape: &[4, 3], strides: &[0, 0] };
            let own = Strides { shape: &[4, 3], strides: &self.1 };
            Segment::new(
                Gradient::Strided(Input::F32(&[0.5]), one),
                Weight::Strided(tensortier_optimizer::WeightMut::F32(&mut self.0), own),
            )
        }
    }
    let mut io = Expanded(vec![1.0; 12], [0, 1]);
    let text = optimizer.step(&mut io).unwrap_err().to_string();
    assert!(text.contains("parameter w") && text.contains("share places"), "{text}");
    assert_eq!(io.0, vec![1.0; 12]);
    io.1 = [3, 1];
    optimizer.step(&mut io).unwrap();
    let mut reference = Reference::new(&params, &[Tensor::F32(vec![1.0; 12])], Rounding::Nearest);
    reference.step(&[Hyper::default()], 1.0, &[Some(Tensor::F32(vec![0.5; 12]))]);
    assert_eq!(Tensor::F32(io.0), reference.weights[0]);
}
