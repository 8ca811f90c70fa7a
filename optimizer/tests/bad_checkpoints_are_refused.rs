//! Checkpoints that are damaged, incomplete, senseless or of something else: refused by name before
//! anything is changed, never a panic; and an import that fails on its way leaves nothing to be used.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails like the test")]

#[path = "common/checkpoints.rs"]
mod checkpoints;
mod common;

use std::ops::Range;
use std::path::{Path, PathBuf};

use checkpoints::Parts;
use common::{Model, Reference, Tensor, compare, store, values};
use proptest::prelude::*;
use serde_json::{Value, json};
use tensortier_optimizer::kernel::Input;
use tensortier_optimizer::{
    Error, Hyper, Optimizer, Options, Param, Plan, Rounding, Segment, Shard, StatePrecision, StepIo,
};
use tensortier_storage::dtype::DType;

fn params() -> Vec<Param> {
    vec![
        Param::new("w", [40, 5], DType::BF16),
        Param::new("b", [7], DType::F32).in_group(1),
        Param::new("frozen", [9], DType::BF16),
    ]
}

fn options() -> Options {
    Options {
        groups: vec![Hyper::default(), Hyper { amsgrad: true, ..Hyper::default() }],
        precision: Some(StatePrecision::SplitMaster),
        ..Options::default()
    }
}

fn open(params: Vec<Param>, options: Options) -> Optimizer {
    Optimizer::open(store(2 << 20, 1), Plan::new(params, options, 2 << 20).unwrap()).unwrap()
}

/// An optimizer that has stepped, its model, what both have to be, and a place for files with a
/// checkpoint of another run in it.
struct Case {
    optimizer: Optimizer,
    model: Model,
    reference: Reference,
    dir: tempfile::TempDir,
    good: PathBuf,
}

fn advance(optimizer: &mut Optimizer, model: &mut Model, seed: u64) -> Vec<Option<Tensor>> {
    let sizes = optimizer.plan().params.iter().map(|p| p.elements().unwrap() as usize);
    let mut given: Vec<_> = sizes
        .enumerate()
        .map(|(i, n)| Some(Tensor::new(DType::BF16, &values(seed + i as u64, n, 0.1))))
        .collect();
    if let Some(frozen) = given.get_mut(2) {
        *frozen = None;
    }
    model.set_gradients(&given);
    optimizer.step(model).unwrap();
    given
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let good = dir.path().join("good");
        let (mut saved, mut model) = (open(params(), options()), Model::new(&params(), 5));
        for t in 0..3 {
            advance(&mut saved, &mut model, t * 10);
        }
        saved.export(&good, &mut model).unwrap();
        let (mut optimizer, mut model) = (open(params(), options()), Model::new(&params(), 6));
        let mut reference = Reference::new(&params(), &model.weights, Rounding::Nearest);
        let given = advance(&mut optimizer, &mut model, 77);
        let hypers: Vec<_> = params().iter().map(|p| options().groups[p.group]).collect();
        reference.step(&hypers, 1.0, &given);
        Case { optimizer, model, reference, dir, good }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Demands that files are refused with an error that says all of `says`, and change nothing.
    fn refuses(&mut self, files: &[&Path], says: &[&str]) {
        let error = self.optimizer.import(files, &mut self.model).unwrap_err().to_string();
        assert!(says.iter().all(|part| error.contains(part)), "{says:?} in: {error}");
        assert!(!error.contains('\n'), "{error:?}");
        compare(&self.optimizer, &self.model, &self.reference);
        assert_eq!(self.optimizer.steps(), 1);
    }

    /// The same for the good checkpoint after a change.
    fn refuses_changed(&mut self, change: impl FnOnce(&mut Parts), says: &[&str]) {
        let mut parts = Parts::read(&self.good);
        change(&mut parts);
        let bad = self.path("bad");
        parts.write(&bad);
        self.refuses(&[&bad], says);
    }
}

#[test]
fn what_a_checkpoint_says_has_to_be_possible_and_to_fit_the_plan() {
    let mut case = Case::new();
    let param = |json: &mut Value, index: usize, key: &str, value: Value| {
        json["parameters"][index][key] = value;
    };
    case.refuses_changed(|p| p.json["format"] = json!(2), &["bad", "format 2", "reads 1"]);
    case.refuses_changed(|p| p.json["format"] = json!("x"), &["bad header"]);
    case.refuses_changed(|p| p.json["steps"] = json!(2), &["\"w\"", "3 times in 2 steps"]);
    case.refuses_changed(|p| p.json["groups"][1]["lr"] = json!(-1.0), &["group 1", "lr is -1"]);
    case.refuses_changed(|p| param(&mut p.json, 0, "group", json!(7)), &["\"w\"", "group 7"]);
    case.refuses_changed(|p| param(&mut p.json, 0, "group", json!(1)), &["max_exp_avg_sq/w"]);
    case.refuses_changed(|p| param(&mut p.json, 2, "group", json!(1)), &["\"frozen\"", "group 1"]);
    case.refuses_changed(
        |p| param(&mut p.json, 2, "master", json!(true)),
        &["\"frozen\"", "master"],
    );
    case.refuses_changed(|p| param(&mut p.json, 1, "name", json!("w")), &["\"w\" is there twice"]);
    case.refuses_changed(
        |p| param(&mut p.json, 0, "global_shape", json!([200])),
        &["param/w", "[40, 5]", "[200]"],
    );
    case.refuses_changed(
        |p| param(&mut p.json, 0, "shard", json!({"box": {"offset": [39, 0], "shape": [2, 5]}})),
        &["\"w\"", "shard that cannot be", "dimension 0"],
    );
    case.refuses_changed(
        |p| param(&mut p.json, 0, "global_shape", json!([u64::MAX, 3])),
        &["\"w\"", "more elements"],
    );
    case.refuses_changed(
        |p| {
            let group = p.json["groups"][0].clone();
            p.json["groups"].as_array_mut().unwrap().push(group);
        },
        &["3 groups and the plan 2"],
    );
    case.refuses_changed(
        |p| {
            p.json["groups"][1]["amsgrad"] = json!(false);
            p.tensors.retain(|(spec, _)| spec.name != "max_exp_avg_sq/b");
        },
        &["group 1 has no amsgrad, and amsgrad in the plan"],
    );
}

#[test]
fn parameters_and_tensors_are_all_there_and_no_others() {
    let mut case = Case::new();
    let gone = |name: &'static str| {
        move |parts: &mut Parts| parts.tensors.retain(|(spec, _)| spec.name != name)
    };
    case.refuses_changed(gone("exp_avg/w"), &["bad", "lacks the tensor \"exp_avg/w\""]);
    case.refuses_changed(gone("master_param/w"), &["lacks the tensor \"master_param/w\""]);
    case.refuses_changed(gone("max_exp_avg_sq/b"), &["lacks the tensor \"max_exp_avg_sq/b\""]);
    case.refuses_changed(gone("param/frozen"), &["lacks the tensor \"param/frozen\""]);
    case.refuses_changed(
        |p| {
            let (mut spec, bytes) = p.tensors[0].clone();
            spec.name = String::from("exp_avg/more");
            p.tensors.push((spec, bytes));
        },
        &["tensor \"exp_avg/more\"", "does not know"],
    );
    case.refuses_changed(
        |p| {
            p.json["parameters"].as_array_mut().unwrap().pop();
            p.tensors.retain(|(spec, _)| spec.name != "param/frozen");
        },
        &["\"frozen\": is in none of the files"],
    );
    let rename = |name: &'static str| {
        move |p: &mut Parts| {
            p.json["parameters"][2]["name"] = json!(name);
            let spec = p.tensors.iter_mut().find(|(spec, _)| spec.name == "param/frozen").unwrap();
            spec.0.name = format!("param/{name}");
        }
    };
    case.refuses_changed(rename("head"), &["\"head\"", "not in the plan"]);
    case.refuses(&[], &["no files"]);
    // What other shapes and types are planned here is refused too.
    for (param, says) in [
        (Param::new("w", [5, 40], DType::BF16), ["\"w\"", "[40, 5], and [5, 40]"]),
        (Param::new("w", [40, 5], DType::F32), ["\"w\"", "type BF16, and F32"]),
    ] {
        let planned = [vec![param], params()[1..].to_vec()].concat();
        let mut other = open(planned.clone(), options());
        let mut model = Model::new(&planned, 1);
        let text = other.import(&[&case.good], &mut model).unwrap_err().to_string();
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
    }
    let stochastic =
        Options { precision: None, rounding: Rounding::Stochastic { seed: 1 }, ..options() };
    let mut other = open(params(), stochastic);
    let text = other.import(&[&case.good], &mut case.model).unwrap_err().to_string();
    assert!(text.contains("\"w\": has a master"), "{text}");
}

#[test]
fn second_moments_are_not_negative() {
    let mut case = Case::new();
    for (tensor, element) in [("exp_avg_sq/w", 13), ("max_exp_avg_sq/b", 6)] {
        let kind = tensor.split('/').next().unwrap();
        let says = format!("{kind} of element {element} is negative");
        case.refuses_changed(|p| p.tensor(tensor)[4 * element + 3] |= 0x80, &[&says]);
    }
    // A NaN has no sign to speak of.
    let mut parts = Parts::read(&case.good);
    parts.tensor("exp_avg_sq/w")[..4].copy_from_slice(&0xFFC0_0000_u32.to_le_bytes());
    let path = case.path("nan");
    parts.write(&path);
    case.optimizer.import(&[&path], &mut case.model).unwrap();
}

#[test]
fn files_are_of_one_checkpoint_and_have_every_element() {
    let mut case = Case::new();
    let half = |from: u64, to: u64| {
        let shard = Shard::Flat { range: from..to };
        vec![params()[0].clone().with_shard(shard), params()[1].clone(), params()[2].clone()]
    };
    let mut files = Vec::new();
    let mut ranks = Vec::new();
    for (name, from, to) in [("one", 0, 90), ("two", 90, 200)] {
        let (mut rank, mut model) =
            (open(half(from, to), options()), Model::new(&half(from, to), 5));
        advance(&mut rank, &mut model, 1);
        files.push(case.path(name));
        rank.export(&files[files.len() - 1], &mut model).unwrap();
        ranks.push((rank, model));
    }
    let [one, two] = [files[0].clone(), files[1].clone()];
    case.refuses(&[&two], &["\"w\"", "element 0 is in none"]);
    case.refuses(&[&one], &["\"w\"", "element 90 is in none"]);
    let changed = case.path("changed");
    let change = |change: &dyn Fn(&mut Value)| {
        let mut parts = Parts::read(&two);
        change(&mut parts.json);
        parts.write(&changed);
    };
    change(&|json| json["steps"] = json!(5));
    case.refuses(&[&one, &changed], &["changed", "after step 5", "after step 1"]);
    change(&|json| json["groups"][0]["lr"] = json!(0.5));
    case.refuses(&[&one, &changed], &["changed", "other hyper-parameters"]);
    change(&|json| json["rounding"] = json!({"stochastic": {"seed": 3}}));
    case.refuses(&[&one, &changed], &["changed", "rounded otherwise"]);
    let (rank, model) = &mut ranks[1];
    rank.refresh_master(0).unwrap();
    rank.export(&changed, model).unwrap();
    case.refuses(&[&one, &changed], &["\"w\"", "1 updates and no master", "another file"]);
    case.optimizer.import(&files, &mut case.model).unwrap();
}

#[test]
fn truncated_and_bit_flipped_files_are_refused() {
    let mut case = Case::new();
    let bytes = std::fs::read(&case.good).unwrap();
    let bad = case.path("damaged");
    for length in (0..bytes.len()).step_by(97) {
        std::fs::write(&bad, &bytes[..length]).unwrap();
        case.refuses(&[&bad], &["damaged"]);
    }
    for bit in (0..bytes.len() * 8).step_by(19) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&bad, &flipped).unwrap();
        case.refuses(&[&bad], &[]);
    }
    std::fs::write(&bad, &bytes).unwrap();
    case.optimizer.import(&[&bad], &mut case.model).unwrap();
    let plain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny.safetensors");
    let text = case.optimizer.import(&[plain], &mut case.model).unwrap_err().to_string();
    assert!(text.contains("no checkpoint"), "{text}");
}

#[test]
fn an_export_is_of_whole_steps_and_weights_as_they_were_left() {
    let mut case = Case::new();
    let path = case.path("export");
    let Tensor::Half(_, raw) = &mut case.model.weights[0] else { panic!() };
    raw[3] ^= 1;
    let text = case.optimizer.export(&path, &mut case.model).unwrap_err().to_string();
    assert!(text.contains("weights of w were changed"), "{text}");
    let Tensor::Half(_, raw) = &mut case.model.weights[0] else { panic!() };
    raw[3] ^= 1;
    case.optimizer.update_ready(&mut case.model, &[0], true).unwrap();
    let text = case.optimizer.export(&path, &mut case.model).unwrap_err().to_string();
    assert!(text.contains("unfinished"), "{text}");
    case.optimizer.step(&mut case.model).unwrap();
    let text =
        case.optimizer.export(case.path("no/such"), &mut case.model).unwrap_err().to_string();
    assert!(text.contains("such") && text.contains("directory"), "{text}");
    case.optimizer.export(&path, &mut case.model).unwrap();
    assert!(path.exists());
}

/// Hands over a model, and after some calls weights of the wrong length.
struct Failing<'a> {
    model: &'a mut Model,
    left: usize,
}

impl StepIo for Failing<'_> {
    fn segment(&mut self, param: usize, range: Range<u64>) -> Segment<'_> {
        self.left = self.left.saturating_sub(1);
        let range = if self.left == 0 { range.start..range.start } else { range };
        self.model.segment(param, range)
    }
}

#[test]
fn an_import_that_fails_on_its_way_leaves_nothing_to_be_used() {
    let mut case = Case::new();
    let Case { optimizer, model, good, .. } = &mut case;
    let mut io = Failing { model, left: 5 };
    let error = optimizer.import(&[&good], &mut io).unwrap_err();
    assert!(matches!(&error, Error::HalfImported { done: 0, subgroups: 1, cause: Some(_) }));
    assert!(error.to_string().contains("got weights of 0"), "{error}");
    let mixed = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::HalfImported { cause: None, .. })), "{result:?}");
    };
    mixed(optimizer.step(model).map(|_| ()));
    mixed(optimizer.begin_step());
    mixed(optimizer.update_ready(model, &[0], true));
    mixed(optimizer.accumulate(1, 0..7, Input::F32(&[0.0; 7]).into(), true));
    mixed(optimizer.refresh_masters());
    mixed(optimizer.read_plane(0, tensortier_optimizer::Plane::M, 0..0, &mut []));
    mixed(optimizer.export(good.with_file_name("mixed"), model));
    // One that is refused changes nothing of that; one that succeeds does.
    assert!(optimizer.import(&[good.with_file_name("none")], model).is_err());
    mixed(optimizer.step(model).map(|_| ()));
    optimizer.import(&[&good], model).unwrap();
    let again = good.with_file_name("again");
    optimizer.export(&again, model).unwrap();
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&good).unwrap());
    optimizer.step(model).unwrap();
}

/// A value that a header might have anywhere, or should not.
fn odd_value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(1 << 63), 0u64..300];
    let leaf = prop_oneof![
        number.prop_map(|n| json!(n)),
        any::<f64>().prop_map(|n| json!(n)),
        Just(json!(-1)),
        Just(Value::Null),
        any::<bool>().prop_map(|b| json!(b)),
        prop_oneof![
            Just("whole"),
            Just("w"),
            Just("b"),
            Just("split"),
            Just("\u{0}\n"),
            Just("F16")
        ]
        .prop_map(|text| json!(text)),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let numbers = prop::collection::vec(prop_oneof![Just(u64::MAX), 0u64..50], 0..4);
        let cut = (numbers.clone(), numbers);
        let ends = (0u64..300, prop_oneof![Just(u64::MAX), 0u64..300]);
        prop_oneof![
            prop::collection::vec(inner, 0..3).prop_map(|values| json!(values)),
            cut.prop_map(|(offset, shape)| json!({"box": {"offset": offset, "shape": shape}})),
            ends.prop_map(|(start, end)| json!({"flat": {"range": {"start": start, "end": end}}})),
        ]
    })
}

/// Returns all places in a value.
fn places(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(i, v)| places(v, format!("{at}/{i}"), all));
        }
        Value::Object(values) => {
            values.iter().for_each(|(key, v)| places(v, format!("{at}/{key}"), all));
        }
        _ => {}
    }
    all.push(at);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("TENSORTIER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
    ))]

    #[test]
    fn whatever_a_header_says_nothing_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd_value()), 1..4),
        text in prop::option::weighted(0.1, "\\PC*"),
    ) {
        thread_local! {
            static CASE: std::cell::RefCell<Case> = std::cell::RefCell::new(Case::new());
        }
        CASE.with_borrow_mut(|case| {
            let mut parts = Parts::read(&case.good);
            for (at, value) in changes {
                let mut all = Vec::new();
                places(&parts.json, String::new(), &mut all);
                *parts.json.pointer_mut(&all[at.index(all.len())]).unwrap() = value;
            }
            let bad = case.path("odd");
            parts.write_with(&bad, &text.unwrap_or_else(|| parts.json.to_string()));
            // Another name or learning rate is as good as any.
            if let Err(error) = case.optimizer.import(&[&bad], &mut case.model) {
                assert!(!error.to_string().contains('\n'), "{error:?}");
            }
            case.optimizer.step(&mut case.model).unwrap();
        });
    }
}
