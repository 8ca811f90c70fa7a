//! Parameters that are views of one storage, as the three parts of a fused attention matrix: trained
//! together as if each had its own, and refused, at once, when two of them share an element.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use std::ops::Range;

use common::{Reference, Tensor, store, values};
use tensortier_optimizer::{
    Error, Gradient, Hyper, Optimizer, Options, Param, Plan, Rounding, Segment, StepIo, Strides,
    Weight,
};
use tensortier_storage::dtype::DType;

const ROWS: u64 = 1024;
const COLUMNS: u64 = 1024;

/// Views of so many columns each, from these columns on, of one matrix.
struct Fused {
    weights: Tensor,
    gradients: Tensor,
    first: [usize; 3],
}

impl StepIo for Fused {
    fn segment(&mut self, param: usize, _range: Range<u64>) -> Segment<'_> {
        let strides = Strides { shape: &[ROWS, COLUMNS], strides: &[3 * COLUMNS, 1] };
        let all = self.first[param]..self.weights.len();
        Segment::new(
            Gradient::Strided(self.gradients.input(all.clone()), strides),
            Weight::Strided(self.weights.weight(all), strides),
        )
    }
}

fn fused() -> (Optimizer, Fused) {
    let params: Vec<_> =
        ["q", "k", "v"].map(|name| Param::new(name, [ROWS, COLUMNS], DType::BF16)).into();
    let options = Options { subgroup_elems: Some(65_536), ..Options::default() };
    let plan = Plan::new(params, options, 8 << 20).unwrap();
    let n = (3 * ROWS * COLUMNS) as usize;
    let tensor = |seed| Tensor::new(DType::BF16, &values(seed, n, 0.1));
    let columns = COLUMNS as usize;
    let io = Fused { weights: tensor(1), gradients: tensor(2), first: [0, columns, 2 * columns] };
    (Optimizer::open(store(8 << 20, 1), plan).unwrap(), io)
}

#[test]
fn parts_of_a_fused_matrix_are_trained_as_if_each_had_its_own() {
    let (mut optimizer, mut io) = fused();
    let whole = [Param::new("qkv", [ROWS, 3 * COLUMNS], DType::BF16)];
    let start = [io.weights.clone()];
    let mut reference = Reference::new(&whole, &start, Rounding::Nearest);
    for _ in 0..3 {
        optimizer.step(&mut io).unwrap();
        reference.step(&[Hyper::default()], 1.0, &[Some(io.gradients.clone())]);
    }
    assert_eq!(io.weights, reference.weights[0]);
}

#[test]
fn two_that_share_one_column_are_refused_unchanged() {
    for (param, first) in [(1, COLUMNS - 1), (2, 2 * COLUMNS - 1), (2, 0)] {
        let (mut optimizer, mut io) = fused();
        let before = io.weights.clone();
        io.first[param] = first as usize;
        let error = optimizer.step(&mut io).unwrap_err();
        assert!(matches!(error, Error::Tied { .. }), "{error}");
        assert_eq!(io.weights, before);
    }
}
