//! The architecture as tests: which crate and module may use which, where `unsafe` may stand, and
//! what no source file may contain.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The floors of the storage crate: a module uses modules of lower floors and of its own.
const FLOORS: [&[&str]; 10] = [
    &["error", "id", "units", "dtype", "sync", "ticket", "clock", "trace", "metrics"],
    &["arena", "codec", "schedule"],
    &["io"],
    &["path"],
    &["placement", "source", "residency", "evict"],
    &["catalog"],
    &["mover"],
    &["device"],
    &["store"],
    &["lib", "testing", "model"],
];

/// Crates from the ground up: folder, package, and which of our packages it may use.
const CRATES: [(&str, &str, &[&str]); 7] = [
    ("gpu", "tensortier-gpu", &[]),
    ("storage", "tensortier-storage", &["tensortier-gpu"]),
    ("optimizer", "tensortier-optimizer", &["tensortier-gpu", "tensortier-storage"]),
    (".", "tensortier", &["tensortier-gpu", "tensortier-storage", "tensortier-optimizer"]),
    ("cli", "tensortier-cli", &["tensortier"]),
    ("python", "tensortier-python", &["tensortier"]),
    ("bench", "tensortier-bench", &["tensortier", "tensortier-storage"]),
];

/// The only files that may contain `unsafe`; docs/unsafe.md says why for each.
const UNSAFE: [&str; 14] = [
    "gpu/src/page_lock.rs",
    "storage/src/arena/region.rs",
    "storage/src/arena/frame.rs",
    "storage/src/arena/piece.rs",
    "storage/src/sync/slice.rs",
    "storage/src/codec/stream.rs",
    "storage/src/io/uring.rs",
    "storage/src/io/direct.rs",
    "storage/src/source/map.rs",
    "optimizer/src/kernel/x86.rs",
    "optimizer/src/kernel/fpenv.rs",
    "python/src/hand_over.rs",
    "python/src/buffer.rs",
    "python/src/dlpack.rs",
];

#[test]
fn modules_of_storage_use_only_lower_floors() {
    let root = root().join("storage/src");
    for file in sources("storage/src") {
        let relative = file.strip_prefix(&root).unwrap();
        let module = module_of(relative);
        let floor = floor_of(&module).unwrap_or_else(|| {
            panic!("storage has a module {module:?} on no floor of tests/tidy.rs")
        });
        let code = code_of(&file);
        let shipped = code.split("#[cfg(test)]").next().unwrap();
        let climbs = longest_climb(shipped) >= depth_of(relative);
        let found = relative.display();
        assert!(!climbs, "storage/src/{found} climbs to the root by super::; say crate:: there");
        for used in crate_uses(&code) {
            // A name at the crate's root is a re-export, which only the root itself may use.
            let lower = floor_of(&used).is_some_and(|used| used <= floor);
            assert!(lower, "storage/src/{found} uses crate::{used}, which is not below {module}");
        }
    }
}

#[test]
fn crates_depend_one_way() {
    let workspace = read(&root().join("Cargo.toml"));
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    let members: BTreeSet<&str> = members.split('"').skip(1).step_by(2).collect();
    assert_eq!(members, CRATES.iter().map(|(folder, ..)| *folder).collect(), "members and CRATES");
    let known: Vec<&str> = CRATES.iter().map(|(_, package, _)| *package).collect();
    for (folder, package, allowed) in CRATES {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        // The workspace's table of dependencies stands in the same file as the facade's.
        let own = manifest.split("[package]").nth(1).unwrap();
        assert!(own.contains(&format!("name = \"{package}\"")), "{folder} is not {package}");
        for line in own.lines() {
            let name = line.split(['.', ' ', '=']).next().unwrap();
            // A crate's tests may use the crate itself with its testing surface.
            let ours = known.contains(&name) && name != package;
            assert!(!ours || allowed.contains(&name), "{package} must not depend on {name}");
        }
    }
}

#[test]
fn unsafe_stands_only_where_it_is_allowed() {
    for file in all_sources() {
        let name = relative(&file);
        let allowed = UNSAFE.contains(&name.as_str()) || name.starts_with("gpu/src/cuda");
        let code = code_of(&file);
        // Where the lint is switched on does not matter: the word stands where it is used.
        let has = words(&code).any(|word| word == "unsafe");
        assert!(
            allowed || !has,
            "{name} contains unsafe; only tests/tidy.rs says where it may stand"
        );
    }
}

#[test]
fn sources_are_ascii_and_start_with_their_reason() {
    for file in all_sources() {
        let text = read(&file);
        let name = relative(&file);
        let first = text.lines().next().unwrap_or_default();
        let says = first.strip_prefix("//! ").is_some_and(|reason| reason.len() >= 10);
        assert!(says, "{name} must start with a `//!` line that says why it exists");
        only_ascii(&name, &text);
    }
    for (folder, ..) in CRATES {
        let manifest = root().join(folder).join("Cargo.toml");
        only_ascii(&relative(&manifest), &read(&manifest));
    }
}

#[test]
fn nothing_unfinished_is_left() {
    let unfinished = ["todo!", "dbg!", "unimplemented!"];
    for file in all_sources() {
        let code = code_of(&file);
        for word in unfinished {
            assert!(!code.contains(&format!("{word}(")), "{} contains {word}", relative(&file));
        }
    }
}

#[test]
fn what_is_only_for_tests_is_used_only_by_tests() {
    for (folder, package, _) in CRATES {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        let own = manifest.split("[package]").nth(1).unwrap();
        let normal = section(own, "[dependencies]");
        for name in ["proptest", "tempfile", "criterion", "testing"] {
            // Nobody depends on the benches, and the soak is about what goes wrong.
            let allowed = folder == "bench" && name == "testing";
            assert!(
                allowed || !normal.contains(name),
                "{package} uses {name} outside of its tests"
            );
        }
    }
    let for_tests = ["proptest", "tempfile"];
    for file in all_sources().iter().filter(|file| relative(file).contains("src/")) {
        let text = code_of(file);
        // Unit tests stand at a file's end; modules of tests only are marked where they are named.
        let shipped = text.split("#[cfg(test)]").next().unwrap();
        let marked = is_test_module(file);
        for name in for_tests {
            let used = words(shipped).any(|word| word == name);
            assert!(marked || !used, "{} uses {name} outside of its tests", relative(file));
        }
    }
}

#[test]
fn this_test_sees_what_it_looks_for() {
    let code =
        strip("use crate::arena::{self};\nlet x = crate::io::y(); // crate::store\n\"unsafe\"");
    assert_eq!(crate_uses(&code).into_iter().collect::<Vec<_>>(), ["arena", "io"]);
    assert!(!words(&code).any(|word| word == "unsafe"));
    let group = strip("use crate::{error::{Error, Result}, store, units::Bytes as B};");
    let used: Vec<_> = crate_uses(&group).into_iter().collect();
    assert_eq!(used, ["error", "store", "units"]);
    let code =
        strip("a /* unsafe */ b r#\"unsafe \" x\"# 'u' '\\'' b'\"' \"\\\"unsafe\" unsafe 'a");
    assert_eq!(words(&code).filter(|word| *word == "unsafe").count(), 1);
    assert_eq!(longest_climb("use super::super::x; super::y"), 2);
    assert_eq!([depth_of(Path::new("a/mod.rs")), depth_of(Path::new("a/b.rs"))], [1, 2]);
    assert!(floor_of("arena") < floor_of("store") && floor_of("nothing").is_none());
    assert!(all_sources().len() > 20);
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn relative(file: &Path) -> String {
    file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
}

/// Returns every Rust file of ours.
fn all_sources() -> Vec<PathBuf> {
    let folders = ["src", "tests", "examples", "fuzz/fuzz_targets"].into_iter().map(String::from);
    let crates = CRATES.iter().filter(|(folder, ..)| *folder != ".").flat_map(|(folder, ..)| {
        ["src", "tests", "examples", "benches"].map(|inner| format!("{folder}/{inner}"))
    });
    folders.chain(crates).flat_map(|folder| sources(&folder)).collect()
}

/// Returns the Rust files below a folder, none if there is no such folder.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Returns the top-level module a file of a crate belongs to.
fn module_of(relative: &Path) -> String {
    let first = relative.components().next().unwrap();
    Path::new(first.as_os_str()).file_stem().unwrap().to_str().unwrap().to_owned()
}

/// Returns how many `super::` lead from a file's module to the crate's root.
fn depth_of(relative: &Path) -> usize {
    match relative.file_stem().unwrap().to_str().unwrap() {
        "lib" | "main" => usize::MAX,
        "mod" => relative.components().count() - 1,
        _ => relative.components().count(),
    }
}

/// Returns the length of the longest chain of `super::` in code.
fn longest_climb(code: &str) -> usize {
    (1..).find(|length| !code.contains(&"super::".repeat(*length))).unwrap() - 1
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// Returns the top-level modules that code names behind `crate::`, grouped imports included.
fn crate_uses(code: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => used.extend(group_heads(group)),
            None => used.extend(words(rest).next().map(str::to_owned)),
        }
    }
    used
}

/// Returns the first name of each item of an import group.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let (mut depth, mut item) = (0, String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(std::mem::take(&mut item)),
            _ if depth == 0 => item.push(c),
            _ => {}
        }
    }
    heads.push(item);
    heads.iter().filter_map(|item| words(item).next().map(str::to_owned)).collect()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// Returns the lines of one section of a manifest.
fn section<'a>(manifest: &'a str, heading: &str) -> &'a str {
    let rest = manifest.split(heading).nth(1).unwrap_or_default();
    rest.split("\n[").next().unwrap()
}

/// Returns whether the module that names this file marks it as one of tests or for testing.
fn is_test_module(file: &Path) -> bool {
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let folder = file.parent().unwrap();
    let beside = folder.with_extension("rs");
    let parents = [folder.join("mod.rs"), folder.join("lib.rs"), folder.join("main.rs"), beside];
    let mut siblings = sources(&relative(folder));
    siblings.extend(parents);
    siblings.iter().filter(|file| file.is_file()).any(|parent| {
        let text = read(parent);
        let Some(at) = text.find(&format!("mod {stem};")) else { return false };
        let before = text[..at].trim_end().trim_end_matches("pub").trim_end();
        let attributes = before.rsplit("\n\n").next().unwrap();
        attributes.contains("#[cfg(test)]") || attributes.contains("feature = \"testing\"")
    })
}

/// Returns a file's code without comments and without what stands in quotes.
fn code_of(file: &Path) -> String {
    strip(&read(file))
}

fn strip(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = literal_or_comment(rest, code.chars().last());
        if skipped > 0 {
            code.push(' ');
            rest = &rest[skipped..];
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    code
}

/// Returns the length of the comment or literal that `rest` starts with, or 0.
fn literal_or_comment(rest: &str, before: Option<char>) -> usize {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return rest.find("*/").map_or(rest.len(), |end| end + 2);
    }
    if !in_word && (rest.starts_with("r\"") || rest.starts_with("r#")) {
        let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
        if rest[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = 2 + hashes;
            return rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len());
        }
        return 0;
    }
    if rest.starts_with('"') {
        return quoted(rest, '"').unwrap_or(rest.len());
    }
    if let Some(inner) = rest.strip_prefix('\'') {
        // A lifetime has no second quote after one character.
        let character = inner.chars().next().map_or(0, char::len_utf8);
        if inner.starts_with('\\') || inner[character..].starts_with('\'') {
            return quoted(rest, '\'').unwrap_or(0);
        }
    }
    0
}

/// Returns the length of the literal from its opening quote to its closing one.
fn quoted(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn only_ascii(name: &str, text: &str) {
    if let Some((number, line)) = text.lines().enumerate().find(|(_, line)| !line.is_ascii()) {
        panic!("{name}:{}: not ASCII: {line}", number + 1);
    }
}
