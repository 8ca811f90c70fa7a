//! The examples do what they say, on small input.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]
#![allow(dead_code, unreachable_pub, reason = "the examples are programs")]

use std::fs;

use tensortier::storage::path::conformance;

#[path = "../examples/own_path_store.rs"]
mod own_path_store;
#[path = "../examples/spill_folder.rs"]
mod spill_folder;

#[test]
fn a_folder_is_spilled_and_comes_back() {
    let (folder, spill_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(folder.path().join("deeper")).unwrap();
    let lengths = [0, 1, 4096, 3_000_001, 12 << 20];
    for (i, len) in lengths.into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|at| (at / 251 + at * i) as u8).collect();
        let name = if i % 2 == 0 { format!("{i}") } else { format!("deeper/{i}") };
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let report = spill_folder::spill(folder.path(), spill_dir.path()).unwrap();
    assert_eq!((report.files, report.bytes), (5, lengths.iter().sum::<usize>() as u64));
    assert_eq!(fs::read_dir(spill_dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_path_of_ones_own_is_a_path() {
    conformance::check(&|| Box::new(own_path_store::MapPath::default()));
    let counters = own_path_store::use_it().unwrap();
    assert!(counters.written_bytes >= 3 << 20 && counters.read_bytes >= 3 << 20, "{counters:?}");
}
