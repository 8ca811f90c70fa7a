//! Format 1 of checkpoints (docs/format.md) stays what it is: a file that is kept is taken, and written
//! again byte for byte; safetensors' own header has the documented tensors.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

mod common;

use common::{Model, Tensor, store, values};
use tensortier_optimizer::hyper::{Algorithm, Subnormals};
use tensortier_optimizer::{Hyper, Optimizer, Options, Param, Plan, Shard, StatePrecision};
use tensortier_storage::dtype::DType;
use tensortier_storage::source::{Access, TensorFile};

const KEPT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/checkpoint-1.safetensors");

/// One of each: types, shards, groups, one never updated, one without elements.
fn params() -> Vec<Param> {
    vec![
        Param::new("split \u{e9}/1", [6, 5], DType::BF16)
            .with_shard(Shard::Box { offset: vec![0, 1], shape: vec![6, 3] }),
        Param::new("full", [7], DType::F32).in_group(1),
        Param::new("part", [4, 4], DType::BF16).with_shard(Shard::Flat { range: 3..12 }),
        Param::new("never", [3], DType::BF16),
        Param::new("empty", [0, 2], DType::F32).in_group(1),
    ]
}

fn optimizer() -> Optimizer {
    let adam = Hyper {
        algorithm: Algorithm::Adam,
        lr: 1.0 / 3.0,
        amsgrad: true,
        maximize: true,
        subnormals: Subnormals::Flush,
        ..Hyper::default()
    };
    let options = Options {
        name: String::from("kept"),
        groups: vec![Hyper::default(), adam],
        precision: Some(StatePrecision::SplitMaster),
        ..Options::default()
    };
    Optimizer::open(store(1 << 20, 1), Plan::new(params(), options, 1 << 20).unwrap()).unwrap()
}

#[test]
fn the_file_that_is_kept_is_taken_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("again");
    let (mut first, mut model) = (optimizer(), Model::new(&params(), 3));
    let start = model.clone();
    for t in 0..2 {
        let gradient = |(i, param): (usize, &Param)| {
            let n = param.elements().unwrap() as usize;
            (i != 3).then(|| Tensor::new(DType::BF16, &values(t * 10 + i as u64, n, 0.1)))
        };
        model.set_gradients(&params().iter().enumerate().map(gradient).collect::<Vec<_>>());
        first.step(&mut model).unwrap();
    }
    first.export(&path, &mut model).unwrap();
    // Only when a format is new: TENSORTIER_KEEP_FIXTURE=1 cargo test --test checkpoint_format
    if std::env::var_os("TENSORTIER_KEEP_FIXTURE").is_some() {
        std::fs::copy(&path, KEPT).unwrap();
    }
    let kept = std::fs::read(KEPT).unwrap();
    assert!(std::fs::read(&path).unwrap() == kept, "what is written now is no longer format 1");
    let (mut second, mut other) = (optimizer(), start);
    second.import(&[KEPT], &mut other).unwrap();
    assert_eq!(other.weights, model.weights);
    second.export(&path, &mut other).unwrap();
    assert!(std::fs::read(&path).unwrap() == kept);
}

#[test]
fn the_tensors_are_those_that_are_documented() {
    let file = TensorFile::open(KEPT, Access::Direct).unwrap();
    let found: Vec<_> = file
        .entries()
        .iter()
        .map(|entry| format!("{} {} {:?}", entry.name, entry.dtype, entry.shape))
        .collect();
    let expect = [
        "param/split \u{e9}/1 BF16 [6, 3]",
        "master_param/split \u{e9}/1 F32 [6, 3]",
        "exp_avg/split \u{e9}/1 F32 [6, 3]",
        "exp_avg_sq/split \u{e9}/1 F32 [6, 3]",
        "param/full F32 [7]",
        "exp_avg/full F32 [7]",
        "exp_avg_sq/full F32 [7]",
        "max_exp_avg_sq/full F32 [7]",
        "param/part BF16 [9]",
        "master_param/part F32 [9]",
        "exp_avg/part F32 [9]",
        "exp_avg_sq/part F32 [9]",
        "param/never BF16 [3]",
        "param/empty F32 [0, 2]",
        "exp_avg/empty F32 [0, 2]",
        "exp_avg_sq/empty F32 [0, 2]",
        "max_exp_avg_sq/empty F32 [0, 2]",
        "xxh3 U64 [13]",
    ];
    assert_eq!(found, expect);
    let says: serde_json::Value =
        serde_json::from_str(&file.metadata()["tensortier.checkpoint"]).unwrap();
    let shard = &says["parameters"][0]["shard"];
    assert_eq!(shard["box"]["offset"], serde_json::json!([0, 1]));
    assert_eq!(says["groups"][1]["algorithm"], "adam");
    assert_eq!(says["parameters"][0]["state"], "split");
}
