//! The main job over types, orders, policies and paths: every bit verified, the report complete, the
//! file that is written readable by others.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use common::{dir, fixture, json, make, names, run_in, text};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

#[test]
fn every_combination_is_verified() {
    let dir = dir();
    let paths = make(dir.path(), &["a", "b", "c"]);
    let mut case = 0;
    for weights in ["bf16", "fp16", "fp32"] {
        for grads in ["bf16", "fp16", "fp32"] {
            for state in if weights == "fp32" { &["weights", "fp32"][..] } else { &["fp32"] } {
                // The orders and policies, 1 to 3 paths and odd budgets take turns.
                let order = ["alternate", "ascending"][case % 2];
                let evict = ["schedule", "lru"][case / 2 % 2];
                let memory = [2_359_296, 3_000_001, 7_654_321, 1 << 30][case % 4];
                let places = ["--path a", "--path a --path b", "--path a --path b --path c"];
                let line = format!(
                    "adam --params 3M --steps 3 --verify --weights-dtype {weights} --grads {grads} \
                     --state {state} --order {order} --evict {evict} --host-memory {memory} {}",
                    places[case % 3]
                );
                let output = run_in(dir.path(), &line);
                let (said, error) = (text(&output.stdout), text(&output.stderr));
                assert_eq!(output.status.code(), Some(0), "{line}: {error}");
                assert_eq!(said.lines().last(), Some("verified: bit-identical"), "{line}: {said}");
                assert!(paths.iter().all(|path| names(path).is_empty()), "{line}");
                case += 1;
            }
        }
    }
    assert_eq!(case, 12);
}

#[test]
fn striped_subgroups_are_verified() {
    let dir = dir();
    make(dir.path(), &["a", "b", "c"]);
    let line = "adam --params 4M --steps 3 --verify --subgroup 512Ki --host-memory 24MiB \
                --placement stripe --path a --path b,deadline=60 --path c";
    let output = run_in(dir.path(), line);
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(said.lines().last(), Some("verified: bit-identical"), "{said}");
}

/// Writes a file of these tensors, whose bytes count up.
fn write(file: &std::path::Path, tensors: &[(&str, Dtype, Vec<usize>, usize)]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|t| (0..t.3).map(|i| (i % 60) as u8).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, dtype, shape, _), bytes)| {
        (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(file, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn reads_and_writes_are_those_of_the_closed_form() {
    let dir = dir();
    make(dir.path(), &["a", "b"]);
    // Subgroups of one size: c is the same in both directions.
    write(&dir.path().join("w"), &[("w", Dtype::BF16, vec![46, 65_536], 2 * 46 * 65_536)]);
    let line = "adam --weights w --steps 4 --path a --path b --host-memory 9MiB --subgroup 64Ki";
    let alternate = json(dir.path(), line);
    assert_eq!(alternate["summary"]["as_expected"], true);
    let (n, c) = (&alternate["plan"]["subgroups"], &alternate["plan"]["cached_subgroups"]);
    let moved = n.as_u64().unwrap() - c.as_u64().unwrap();
    assert!(c.as_u64().unwrap() > 0 && moved > 0);
    for step in &alternate["steps"].as_array().unwrap()[1..] {
        assert_eq!(step["reads"]["subgroups"], moved);
    }
    let lru = json(dir.path(), &format!("{line} --order ascending --evict lru"));
    let n = n.as_u64().unwrap();
    for step in &lru["steps"].as_array().unwrap()[1..] {
        assert_eq!(step["reads"]["subgroups"], n);
        // How far ahead memory was freed differs at the ends of steps.
        let writes = step["writes"]["subgroups"].as_u64().unwrap();
        assert!(writes.abs_diff(n) <= 3, "{writes} writes of {n}");
    }
    assert!(lru["summary"]["as_expected"].is_null());
}

#[test]
fn the_json_report_has_the_documented_names_and_no_others() {
    let dir = dir();
    make(dir.path(), &["a"]);
    let line = "adam --params 3M --steps 3 --path a,quota=1GiB --host-memory 3MiB --verify";
    let report = json(dir.path(), line);
    let text = include_str!("../../docs/json.md");
    let (of_run, _) = text.split_once("\n## ").unwrap();
    let rows = of_run.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: Vec<&str> = rows.map(|(name, _)| name).collect();
    for name in &documented {
        let mut values = vec![&report];
        for part in name.split('.') {
            let (field, list) = part.strip_suffix("[]").map_or((part, false), |part| (part, true));
            values =
                values.iter().map(|v| v.get(field).unwrap_or_else(|| panic!("{name}"))).collect();
            if list {
                values = values.iter().flat_map(|v| v.as_array().unwrap()).collect();
            }
            values.retain(|value| !value.is_null());
        }
    }
    for part in ["plan", "summary"] {
        for name in report[part].as_object().unwrap().keys() {
            assert!(documented.contains(&format!("{part}.{name}").as_str()), "{part}.{name}");
        }
    }
    assert_eq!(report["summary"]["verified"], true);
}

#[test]
fn what_is_saved_can_be_read_and_trained_on() {
    let dir = dir();
    make(dir.path(), &["a", "b"]);
    for weights in ["bf16", "fp16", "fp32"] {
        let line = format!(
            "adam --params 3M --steps 2 --path a --path b --host-memory 3MiB --save {weights} \
             --weights-dtype {weights}"
        );
        let report = json(dir.path(), &line);
        assert_eq!(report["summary"]["saved"], weights);
        let bytes = std::fs::read(dir.path().join(weights)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let elements = |view: &TensorView<'_>| -> usize { view.shape().iter().product() };
        let total: usize = file.iter().map(|(_, view)| elements(&view)).sum();
        assert_eq!(total, 3_000_000);
        for map in ["", "--map"] {
            let line = format!("adam --weights {weights} --path a --steps 2 --verify {map}");
            assert_eq!(json(dir.path(), &line)["summary"]["verified"], true);
        }
    }
}

#[test]
fn what_is_not_trained_survives_bit_for_bit() {
    let dir = dir();
    make(dir.path(), &["a"]);
    std::fs::copy(fixture(), dir.path().join("fixture")).unwrap();
    let ids = ("position_ids", Dtype::I64, vec![1, 512], 4096);
    let mask = ("mask", Dtype::BOOL, vec![17], 17);
    let weight = ("weight", Dtype::F16, vec![3, 77_777], 2 * 3 * 77_777);
    write(&dir.path().join("own"), &[ids, weight, mask, ("none", Dtype::F32, vec![0, 3], 0)]);
    survives(dir.path(), "fixture", 0);
    survives(dir.path(), "own", 2);
}

fn survives(dir: &std::path::Path, weights: &str, untrained: usize) {
    let line = format!("adam --weights {weights} --path a --steps 3 --verify --save out");
    json(dir, &line);
    let [before, after] = [weights, "out"].map(|name| std::fs::read(dir.join(name)).unwrap());
    let (before, after) =
        (SafeTensors::deserialize(&before).unwrap(), SafeTensors::deserialize(&after).unwrap());
    assert_eq!(before.len(), after.len());
    let mut kept = 0;
    for (name, was) in before.iter() {
        let is = after.tensor(name).unwrap();
        assert_eq!((is.dtype(), is.shape()), (was.dtype(), was.shape()), "{name}");
        let trained = matches!(was.dtype().to_string().as_str(), "F32" | "F16" | "BF16");
        assert_eq!(is.data() == was.data(), !trained || was.data().is_empty(), "{name}");
        kept += usize::from(!trained);
    }
    assert_eq!(kept, untrained);
}
