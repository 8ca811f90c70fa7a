//! Directories of stores that were killed: kept from others while in use, found and removed after.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use tensortier_storage::clock::Clock;
use tensortier_storage::io::EngineChoice;
use tensortier_storage::path::{FilePathStore, Path, PathStore, leftovers, remove_leftover};

fn open(dir: &std::path::Path) -> FilePathStore {
    FilePathStore::open(&Path::new(dir), EngineChoice::Auto, Clock::system()).unwrap()
}

#[test]
fn a_killed_store_is_left_over_and_another_in_the_same_folder_is_not() {
    const NAME: &str = "a_killed_store_is_left_over_and_another_in_the_same_folder_is_not";
    if let Some(dir) = std::env::var_os("LEFTOVERS_DIR") {
        let store = open(dir.as_ref());
        println!("opened");
        // Until it is killed.
        std::thread::sleep(std::time::Duration::from_secs(600));
        return drop(store);
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("LEFTOVERS_DIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap().contains("opened")));
    let theirs = leftovers(dir.path()).unwrap();
    assert!(theirs.len() == 1 && theirs[0].alive, "{theirs:?}");
    assert_eq!(theirs[0].owner.as_ref().unwrap().pid, child.id());
    assert!(remove_leftover(&theirs[0], true).is_err());

    let ours = open(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let found = leftovers(dir.path()).unwrap();
    assert_eq!(found.len(), 2);
    for one in &found {
        let is_ours = one.dir == ours.capabilities().scratch;
        assert_eq!(one.alive, is_ours, "{one:?}");
        assert_eq!(remove_leftover(one, false).is_err(), is_ours);
    }
    assert_eq!(leftovers(dir.path()).unwrap().len(), 1);
    drop(ours);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
