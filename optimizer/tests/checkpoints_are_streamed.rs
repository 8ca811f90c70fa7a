//! A checkpoint of a model whose state is far larger than its memory: writing and taking it stay within
//! the store's budget and 64 MiB, also from several files that are cut otherwise.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Gradient, Optimizer, Options, Param, Plan, Segment, Shard, StatePrecision, StepIo, WeightMut,
};
use tensortier_storage::dtype::DType;
use tensortier_storage::store::Store;

const BUDGET: u64 = 16 << 20;
const ROWS: u64 = 5000;
const COLUMNS: u64 = 4000;

/// Weights, and one gradient for all.
struct Buffers {
    weights: Vec<u16>,
    gradient: Vec<u16>,
}

impl Buffers {
    fn new(elems: u64) -> Self {
        let weights = (0..elems).map(|i| 0x3C00 + (i % 509) as u16).collect();
        Buffers { weights, gradient: vec![0x3A00; 65_536] }
    }
}

impl StepIo for Buffers {
    fn segment(&mut self, _param: usize, range: Range<u64>) -> Segment<'_> {
        let n = (range.end - range.start) as usize;
        let weights = &mut self.weights[range.start as usize..range.end as usize];
        Segment::new(Gradient::from(Input::Bf16(&self.gradient[..n])), WeightMut::Bf16(weights))
    }
}

fn optimizer(dir: &Path, shard: Shard, precision: StatePrecision) -> Optimizer {
    let param = Param::new("w", [ROWS, COLUMNS], DType::BF16).with_shard(shard);
    let options = Options {
        precision: Some(precision),
        subgroup_elems: Some(65_536),
        threads: Some(2),
        ..Options::default()
    };
    let plan = Plan::new(vec![param], options, BUDGET).unwrap();
    let path = tensortier_storage::path::Path::new(dir);
    let store = Store::builder().host_budget(BUDGET).path(path).open().unwrap();
    Optimizer::open(store, plan).unwrap()
}

/// Anonymous memory of this process in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Ends a watcher when it is dropped, also by a work that fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns by how much memory grew at most while `work` was done.
fn growth(work: impl FnOnce()) -> u64 {
    let (before, peak, done) = (anonymous(), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _done = Done(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(anonymous(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        work();
    });
    peak.into_inner().saturating_sub(before)
}

#[test]
fn memory_is_the_budget_and_little_more() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = |number: u64| -> PathBuf { dir.path().join(format!("{number}.safetensors")) };
    let state = ROWS * COLUMNS * 12;
    let allowed = BUDGET + (64 << 20);
    assert!(state > 2 * allowed);
    let mut whole = Buffers::new(ROWS * COLUMNS);
    let used = growth(|| {
        let mut first = optimizer(dir.path(), Shard::Whole, StatePrecision::Fp32);
        first.step(&mut whole).unwrap();
        first.export(file(0), &mut whole).unwrap();
    });
    assert!(used <= allowed, "{used} bytes to write, {allowed} allowed");
    assert!(used > BUDGET / 2, "{used} bytes: nothing was seen");
    // Three ranks, each a part of every row.
    let expect = whole.weights.clone();
    for number in 0..3 {
        let edge = |n: u64| n * COLUMNS / 3;
        let columns = edge(number)..edge(number + 1);
        let shape = vec![ROWS, columns.end - columns.start];
        let mut part = Buffers::new(ROWS * shape[1]);
        let used = growth(|| {
            let shard = Shard::Box { offset: vec![0, columns.start], shape };
            let mut rank = optimizer(dir.path(), shard, StatePrecision::SplitMaster);
            rank.import(&[file(0)], &mut part).unwrap();
            rank.export(file(1 + number), &mut part).unwrap();
        });
        assert!(used <= allowed, "{used} bytes to take a part, {allowed} allowed");
    }
    whole.weights.fill(0);
    let used = growth(|| {
        let mut last = optimizer(dir.path(), Shard::Whole, StatePrecision::Fp32);
        last.import(&[file(1), file(2), file(3)], &mut whole).unwrap();
        last.export(file(4), &mut whole).unwrap();
    });
    assert!(used <= allowed, "{used} bytes to join, {allowed} allowed");
    assert!(whole.weights == expect);
    let bytes = [file(0), file(4)].map(|file| std::fs::read(file).unwrap());
    assert!(bytes[0] == bytes[1], "what was cut and joined is what it was");
}
