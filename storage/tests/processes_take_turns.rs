//! Processes that use one device take turns there: as many at a time as are allowed, in the order in
//! which they came, whatever becomes of one of them, and none is kept from its other paths.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::path::{Path as FsPath, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tensortier_storage::arena::Arena;
use tensortier_storage::clock::Clock;
use tensortier_storage::error::Errno;
use tensortier_storage::id::Class;
use tensortier_storage::io::decorate::{Fault, Faulty};
use tensortier_storage::io::{Completion, EngineChoice, EngineKind, IoEngine, Operation};
use tensortier_storage::path::conformance::{pattern, read, write};
use tensortier_storage::path::{FilePathStore, MaxProcesses, Path, PathStore};
use tensortier_storage::units::BytesPerSecond;

const MIB: u64 = 1 << 20;

/// All tests here are about one device, and so stand in one line.
static ALONE: Mutex<()> = Mutex::new(());

fn at_most(processes: u32) -> MaxProcesses {
    MaxProcesses::AtMost(NonZeroU32::new(processes).unwrap())
}

/// Slow enough that a process has several turns.
fn path(dir: &FsPath, processes: MaxProcesses) -> Path {
    let cap = BytesPerSecond(250e6);
    Path::new(dir).read_cap(cap).write_cap(cap).max_processes(processes)
}

/// Has a file in `dir` for as long as this process has something in flight, and counts those of all.
#[derive(Debug)]
struct Counting {
    engine: Arc<dyn IoEngine>,
    mark: PathBuf,
    in_flight: Arc<Mutex<u64>>,
    most: Arc<AtomicU64>,
}

impl IoEngine for Counting {
    fn submit(&self, operation: Operation) {
        let mut in_flight = self.in_flight.lock().unwrap();
        if *in_flight == 0 {
            std::fs::write(&self.mark, "").unwrap();
        }
        *in_flight += 1;
        drop(in_flight);
        let marks = std::fs::read_dir(self.mark.parent().unwrap()).unwrap().count();
        self.most.fetch_max(marks as u64, Ordering::SeqCst);
        let (in_flight, mark) = (Arc::clone(&self.in_flight), self.mark.clone());
        let tell = operation.done;
        let done = Box::new(move |completion: Completion| {
            let mut in_flight = in_flight.lock().unwrap();
            *in_flight -= 1;
            if *in_flight == 0 {
                std::fs::remove_file(&mark).unwrap();
            }
            drop(in_flight);
            tell(completion);
        });
        self.engine.submit(Operation { done, ..operation });
    }

    fn kind(&self) -> EngineKind {
        self.engine.kind()
    }
}

/// What a process does: writes and reads some, and says how many were at it at the same time.
fn work(dir: &FsPath, processes: MaxProcesses) {
    let most = Arc::new(AtomicU64::new(0));
    let mark = dir.join("marks").join(std::process::id().to_string());
    let seen = Arc::clone(&most);
    let count = move |engine| {
        Arc::new(Counting { engine, mark, in_flight: Arc::default(), most: seen }) as Arc<_>
    };
    let options = path(&dir.join("data"), processes);
    let (auto, clock) = (EngineChoice::Auto, Clock::system());
    let store = FilePathStore::open_decorated(&options, auto, clock, count).unwrap();
    println!("opened");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let arena = Arena::new(32 * MIB).unwrap();
    let extents: Vec<_> = (0..12).map(|_| store.reserve(16 * MIB).unwrap()).collect();
    for (seed, extent) in (0..).zip(&extents) {
        write(&store, extent, pattern(&arena, 16 * MIB, seed)).unwrap();
    }
    for (seed, extent) in (0..).zip(&extents) {
        let back = read(&store, &arena, extent, 0, 16 * MIB).unwrap();
        assert!(*back == *pattern(&arena, 16 * MIB, seed));
    }
    extents.into_iter().for_each(|extent| store.free(extent));
    let waited = store.counters().waited_for_processes.as_millis();
    store.close(Duration::from_secs(10)).unwrap();
    println!("most {} waited {waited}", most.load(Ordering::SeqCst));
}

/// Starts this test once more as a process of its own, with a word for what it is to do.
fn process(test: &str, dir: &FsPath, what: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("TURNS_DIR", dir)
        .env("TURNS_WHAT", what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("opened")), "{what}");
    (child, lines)
}

/// Returns what this process is to do, if it is not the test itself.
fn role() -> Option<(PathBuf, String)> {
    Some((std::env::var_os("TURNS_DIR")?.into(), std::env::var("TURNS_WHAT").ok()?))
}

/// Returns the most processes that were at the device at one time, and the time all waited.
fn run(test: &str, what: &str) -> (u64, u64) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for sub in ["data", "marks"] {
        std::fs::create_dir(dir.path().join(sub)).unwrap();
    }
    let mut processes: Vec<_> = (0..3).map(|_| process(test, dir.path(), what)).collect();
    // All are ready: now they begin.
    processes.iter_mut().for_each(|(child, _)| drop(child.stdin.take()));
    let (mut most, mut waited) = (0, 0);
    for (mut child, mut lines) in processes {
        let line = lines.find(|line| line.contains("most ")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        most = most.max(words[1].parse().unwrap());
        waited += words[3].parse::<u64>().unwrap();
        assert!(child.wait().unwrap().success());
    }
    (most, waited)
}

#[test]
fn as_many_as_are_allowed_and_no_more_use_a_device_at_one_time() {
    const NAME: &str = "as_many_as_are_allowed_and_no_more_use_a_device_at_one_time";
    if let Some((dir, what)) = role() {
        return work(&dir, what.parse().unwrap());
    }
    let _alone = ALONE.lock();
    for allowed in [1, 2] {
        let (most, waited) = run(NAME, &allowed.to_string());
        assert!(most == allowed && waited > 0, "{most} of {allowed}, waited {waited} ms");
    }
    assert_eq!(run(NAME, "any"), (3, 0));
}

/// Writes something and returns who is told.
fn begin(store: &FilePathStore, arena: &Arena) -> mpsc::Receiver<Result<(), Errno>> {
    let (tell, told) = mpsc::channel();
    let extent = store.reserve(MIB).unwrap();
    let from = pattern(arena, MIB, 7).share().whole();
    store.write(&extent, from, Class::WriteBack, Box::new(move |r| tell.send(r).unwrap()));
    told
}

fn wait_until_it_waits(store: &FilePathStore) {
    for _ in 0..30_000 {
        if !store.counters().waited_for_processes.is_zero() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it has its turn beside another's");
}

#[test]
fn a_killed_process_gives_the_device_to_the_next_and_nobody_blocks_meanwhile() {
    const NAME: &str = "a_killed_process_gives_the_device_to_the_next_and_nobody_blocks_meanwhile";
    if let Some((dir, _)) = role() {
        let never = |engine| Arc::new(Faulty::new(engine, |_, _| Fault::Hold(usize::MAX))) as _;
        let (auto, clock) = (EngineChoice::Auto, Clock::system());
        let options = path(&dir, at_most(1));
        let store = FilePathStore::open_decorated(&options, auto, clock, never).unwrap();
        let arena = Arena::new(MIB).unwrap();
        let told = begin(&store, &arena);
        println!("opened");
        // Until it is killed.
        let _ = told.recv();
        return;
    }
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let open = |processes| {
        let options = path(dir.path(), processes);
        FilePathStore::open(&options, EngineChoice::Auto, Clock::system()).unwrap()
    };
    let arena = Arena::new(8 * MIB).unwrap();
    let (mut child, _lines) = process(NAME, dir.path(), "hold");

    let (waiting, closing) = (open(at_most(1)), open(at_most(1)));
    let [told, canceled] = [&waiting, &closing].map(|store| begin(store, &arena));
    wait_until_it_waits(&waiting);
    let other = open(MaxProcesses::Any);
    assert_eq!(begin(&other, &arena).recv(), Ok(Ok(())), "its other paths go on");
    assert_eq!(closing.close(Duration::from_secs(10)), Ok(()));
    assert_eq!(canceled.recv(), Ok(Err(Errno(libc::ECANCELED))));
    assert!(told.try_recv().is_err());
    assert_eq!(waiting.outstanding().write_bytes, MIB);
    assert!(waiting.condition() == Default::default(), "waiting is not hanging");

    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(told.recv(), Ok(Ok(())));
    assert_eq!(waiting.close(Duration::from_secs(10)), Ok(()));
}

#[test]
fn what_a_path_may_do_and_why_is_told() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let facts = |options: Path| {
        let store = FilePathStore::open(&options, EngineChoice::Auto, Clock::system()).unwrap();
        let facts = store.capabilities();
        (facts.max_processes, facts.max_processes_why.clone())
    };
    assert_eq!(facts(path(dir.path(), at_most(3))), (Some(3), String::from("as asked for")));
    assert_eq!(facts(path(dir.path(), MaxProcesses::Any)).0, None);
    let remote = path(dir.path(), MaxProcesses::Auto).kind(tensortier_storage::path::Kind::Remote);
    let (most, why) = facts(remote);
    assert!(most == Some(1) && why.starts_with("remote"), "{why}");
}
