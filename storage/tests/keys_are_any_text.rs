//! A key is any text up to 64 KiB: no text is special, none becomes a file name, none is confused
//! with another.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use common::{builder, memory, read};
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::Path;
use tensortier_storage::path::memory::Mischief;
use tensortier_storage::store::{Key, Store};

/// Returns texts that other stores stumble over.
fn texts() -> Vec<String> {
    let odd = [
        "",
        " ",
        ".",
        "..",
        "/",
        "//",
        "../..",
        "/etc/passwd",
        "a/b/c",
        "a//b",
        "\0",
        "a\0b",
        "\n",
        "con",
        "nul.txt",
        "%2e%2e",
        "a:b*c?d",
        "\u{1F980}",
        "e\u{301}",
        "\u{e9}",
        "\u{202e}rtl",
        "\u{feff}",
        "\u{10ffff}",
        "A",
        "a",
        "'; drop",
        "\\",
    ];
    let mut texts: Vec<String> = odd.into_iter().map(String::from).collect();
    let longest = "k".repeat(Key::MAX_BYTES);
    // They differ in the last byte alone.
    texts.push(format!("{}l", &longest[1..]));
    texts.push("\u{1F980}".repeat(Key::MAX_BYTES / 4));
    texts.push(longest);
    texts
}

fn all_verbs(store: &Store) {
    let texts = texts();
    for (i, key) in texts.iter().enumerate() {
        store.put(key, DType::U16, &[1], &(i as u16).to_le_bytes()).unwrap();
    }
    assert!(store.evict_many(&texts).iter().all(Result::is_ok));
    for (i, key) in texts.iter().enumerate() {
        assert_eq!(read(store, key).unwrap(), (i as u16).to_le_bytes(), "{i}");
        assert_eq!(*store.stat(key).unwrap().key, **key);
    }
    let mut sorted = texts.clone();
    sorted.sort();
    let listed: Vec<String> = store.list("").iter().map(|key| (**key).to_owned()).collect();
    assert_eq!(listed, sorted);
    let under_a: Vec<String> = store.list("a/").iter().map(|key| key.to_string()).collect();
    assert_eq!(under_a, ["a//b", "a/b/c"]);
    for key in &texts {
        let error = store.create(key, DType::U8, &[1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().len() < 300, "a message stays readable");
        store.rename(key, "elsewhere").unwrap();
        assert!(!store.contains(key) && store.contains("elsewhere"));
        store.rename("elsewhere", key).unwrap();
        store.delete(key).unwrap();
        let error = store.delete(key).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }) && error.to_string().len() < 300);
    }
}

#[test]
fn no_text_is_special_in_memory() {
    let store = builder(64, &[memory("path", Mischief::default())]).open().unwrap();
    all_verbs(&store);
}

#[test]
fn no_text_becomes_a_file_name() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = Store::builder().host_budget(1 << 20).path(Path::new(dir.path())).open().unwrap();
    all_verbs(&store);
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 1, "the store's own directory alone");
    store.close(common::PATIENCE).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_key_over_the_limit_is_refused_and_changes_nothing() {
    let store = builder(8, &[memory("path", Mischief::default())]).open().unwrap();
    store.put("a", DType::U8, &[1], &[1]).unwrap();
    for long in ["k".repeat(Key::MAX_BYTES + 1), "\u{1F980}".repeat(Key::MAX_BYTES / 4 + 1)] {
        let refused = [
            store.put(&long, DType::U8, &[1], &[1]).map(drop),
            store.create(&long, DType::U8, &[1]).map(drop),
            store.rename("a", &long),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(matches!(error, Error::KeyTooLong { .. }), "{error}");
        }
        let error = store.get(&long).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().len() < 300);
    }
    assert_eq!(store.list("").len(), 1);
    assert_eq!(read(&store, "a").unwrap(), [1]);
}

#[test]
fn a_reference_stands_for_its_object_whatever_its_key() {
    let store = builder(8, &[memory("path", Mischief::default())]).open().unwrap();
    let first = store.put("a", DType::U8, &[1], &[1]).unwrap();
    store.rename(&first, "b").unwrap();
    let second = store.put("a", DType::U8, &[1], &[2]).unwrap();
    let mut into = [0];
    store.get_into(&first, &mut into).unwrap();
    assert_eq!((into, read(&store, "a").unwrap()), ([1], vec![2]));
    store.write_range(&second, 0..1, &[3]).unwrap();
    assert_eq!(read(&store, "a").unwrap(), [3]);
    // What was replaced is gone, under any name; what replaced it stays.
    store.put("b", DType::U8, &[1], &[4]).unwrap();
    store.barrier().unwrap();
    let gone = ErrorKind::NotFound;
    assert_eq!(store.delete(&first).unwrap_err().kind(), gone);
    assert_eq!(store.rename(&first, "c").unwrap_err().kind(), gone);
    assert_eq!(store.get_into(&first, &mut into).unwrap_err().kind(), gone);
    assert_eq!(store.rename(&second, "b").unwrap_err().kind(), ErrorKind::AlreadyExists);
    store.delete(&second).unwrap();
    assert_eq!(store.list("").iter().map(|key| key.to_string()).collect::<Vec<_>>(), ["b"]);
}
