//! What every engine must do, as functions that panic where one does not. Run them over your own.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::engine::{Completion, IoEngine, Operation, Transfer};
use crate::arena::{Arena, FillGuard, FrameMut, GRANULE};
use crate::error::Errno;
use crate::io::probe::open_at;

/// Makes a new engine.
pub type Make<'a> = &'a dyn Fn() -> Arc<dyn IoEngine>;

/// Checks an engine on files in `dir`, opened for direct transfers or not.
///
/// # Panics
/// Where the engine is not what [`IoEngine`] says.
pub fn check(make: Make<'_>, dir: &Path, direct: bool) {
    let bench = Bench::new(dir, direct);
    bytes_survive_at_every_granule(&bench, &*make());
    many_at_once_keep_their_bytes(&bench, &*make());
    nothing_to_move_is_done_at_once(&bench, &*make());
    reading_past_the_end_is_an_error(&bench, &*make());
    one_bad_operation_disturbs_no_other(&bench, &*make());
    a_panic_in_done_ends_nothing(&bench, &*make());
    dropping_answers_every_operation_once(&bench, make);
    dropping_on_its_own_thread_does_not_hang(&bench, make);
}

struct Bench {
    arena: Arena,
    file: Arc<File>,
}

const FRAMES: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(60);

impl Bench {
    fn new(dir: &Path, direct: bool) -> Self {
        use rustix::fs::OFlags;
        let opened = File::open(dir).expect("the directory opens");
        let name = format!("conformance-{direct}");
        let more = OFlags::CREATE | if direct { OFlags::DIRECT } else { OFlags::empty() };
        let file = open_at(std::os::fd::AsFd::as_fd(&opened), &name, more).expect("the file opens");
        let arena = Arena::new(FRAMES * 16 * GRANULE).expect("an arena");
        Bench { arena, file: Arc::new(file) }
    }

    fn frame(&self, granules: u64) -> FrameMut {
        self.arena.try_alloc(granules * GRANULE).expect("memory").expect("room in the arena")
    }

    fn pattern(&self, granules: u64, seed: u64) -> FrameMut {
        let mut frame = self.frame(granules);
        for (index, byte) in frame.iter_mut().enumerate() {
            *byte = (index as u64).wrapping_mul(seed * 2 + 1).rotate_right(11) as u8 ^ seed as u8;
        }
        frame
    }

    fn operation(&self, offset: u64, transfer: Transfer) -> (Operation, Answer) {
        let (tell, told) = mpsc::channel();
        let file = Arc::clone(&self.file);
        let done = Box::new(move |completion| {
            let _ = tell.send(completion);
        });
        (Operation { file, offset, transfer, dsync: true, done }, Answer(told))
    }

    fn write(&self, engine: &dyn IoEngine, offset: u64, frame: FrameMut) -> Completion {
        let (operation, answer) = self.operation(offset, Transfer::Write(frame.share().whole()));
        engine.submit(operation);
        answer.get()
    }

    fn start_read(&self, engine: &dyn IoEngine, offset: u64, granules: u64) -> (FillGuard, Answer) {
        let (guard, into) = self.frame(granules).fill_from_outside();
        let (operation, answer) = self.operation(offset, Transfer::Read(into));
        engine.submit(operation);
        (guard, answer)
    }
}

struct Answer(mpsc::Receiver<Completion>);

impl Answer {
    fn get(self) -> Completion {
        let completion = self.0.recv_timeout(PATIENCE).expect("an operation is answered");
        assert!(self.0.recv_timeout(PATIENCE).is_err(), "an operation is answered only once");
        completion
    }
}

fn whole(guard: FillGuard, completion: Completion) -> FrameMut {
    assert_eq!(completion.result, Ok(()));
    drop(completion.transfer);
    guard.try_finish().expect("the memory was given back")
}

fn bytes_survive_at_every_granule(bench: &Bench, engine: &dyn IoEngine) {
    for (granules, at) in [(1, 0), (3, 1), (16, 5)] {
        let frame = bench.pattern(granules, granules);
        let expected = frame.to_vec();
        let written = bench.write(engine, at * GRANULE, frame);
        assert_eq!((written.result, written.bytes), (Ok(()), granules * GRANULE));
        let (guard, answer) = bench.start_read(engine, at * GRANULE, granules);
        assert!(*whole(guard, answer.get()) == expected[..], "bytes differ");
    }
}

fn many_at_once_keep_their_bytes(bench: &Bench, engine: &dyn IoEngine) {
    let mut expected = Vec::new();
    let mut answers = Vec::new();
    for index in 0..FRAMES {
        let frame = bench.pattern(4, index);
        expected.push(frame.to_vec());
        let transfer = Transfer::Write(frame.share().whole());
        let (operation, answer) = bench.operation(index * 4 * GRANULE, transfer);
        engine.submit(operation);
        answers.push(answer);
    }
    assert!(answers.into_iter().all(|answer| answer.get().result.is_ok()));
    let reads: Vec<_> =
        (0..FRAMES).map(|index| bench.start_read(engine, index * 4 * GRANULE, 4)).collect();
    for ((guard, answer), expected) in reads.into_iter().zip(expected) {
        assert!(*whole(guard, answer.get()) == expected[..], "bytes differ");
    }
}

fn nothing_to_move_is_done_at_once(bench: &Bench, engine: &dyn IoEngine) {
    let (empty, _rest) = bench.frame(1).share().whole().split_at(0);
    let (operation, answer) = bench.operation(0, Transfer::Write(empty));
    engine.submit(operation);
    let completion = answer.get();
    assert_eq!((completion.result, completion.bytes), (Ok(()), 0));
}

fn reading_past_the_end_is_an_error(bench: &Bench, engine: &dyn IoEngine) {
    let (_guard, answer) = bench.start_read(engine, 1 << 40, 1);
    let completion = answer.get();
    assert_eq!((completion.result, completion.bytes), (Err(Errno(libc::ENODATA)), 0));
}

fn one_bad_operation_disturbs_no_other(bench: &Bench, engine: &dyn IoEngine) {
    let read_only = File::open("/dev/null").expect("/dev/null opens");
    let before = bench.start_read(engine, 0, 1);
    let (mut bad, bad_answer) =
        bench.operation(0, Transfer::Write(bench.pattern(1, 1).share().whole()));
    bad.file = Arc::new(read_only);
    engine.submit(bad);
    let after = bench.start_read(engine, 0, 1);
    assert_eq!(bad_answer.get().result, Err(Errno(libc::EBADF)));
    for (guard, answer) in [before, after] {
        whole(guard, answer.get());
    }
}

fn a_panic_in_done_ends_nothing(bench: &Bench, engine: &dyn IoEngine) {
    let (mut bad, _) = bench.operation(0, Transfer::Write(bench.pattern(1, 1).share().whole()));
    bad.done = Box::new(|_| panic!("a callback that panics, on purpose"));
    engine.submit(bad);
    let (guard, answer) = bench.start_read(engine, 0, 1);
    whole(guard, answer.get());
}

fn dropping_answers_every_operation_once(bench: &Bench, make: Make<'_>) {
    let engine = make();
    let reads: Vec<_> = (0..FRAMES).map(|_| bench.start_read(&*engine, 0, 16)).collect();
    drop(engine);
    for (guard, answer) in reads {
        let completion = answer.get();
        let canceled = completion.result == Err(Errno(libc::ECANCELED));
        assert!(canceled || completion.result.is_ok(), "{completion:?}");
        drop(completion);
        assert!(guard.try_finish().is_ok(), "memory is given back");
    }
    assert_eq!(bench.arena.usage().in_use, 0);
}

fn dropping_on_its_own_thread_does_not_hang(bench: &Bench, make: Make<'_>) {
    let engine = make();
    let (tell, told) = mpsc::channel();
    let (mut operation, _) =
        bench.operation(0, Transfer::Write(bench.pattern(1, 1).share().whole()));
    let last = Arc::clone(&engine);
    let (ready, go) = mpsc::channel::<()>();
    operation.done = Box::new(move |_| {
        let _ = go.recv();
        drop(last);
        let _ = tell.send(());
    });
    engine.submit(operation);
    drop(engine);
    drop(ready);
    told.recv_timeout(PATIENCE).expect("the engine ended on its own thread");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::progress::KernelHook;
    use crate::io::{Threads, Uring};
    use crate::sync::{AtomicU64, Ordering};

    /// Runs `test` in directories of two file systems, direct and buffered where both work.
    fn everywhere(test: impl Fn(&Path, bool)) {
        for base in ["/dev/shm", "/var/tmp"] {
            let Ok(dir) = tempfile::tempdir_in(base) else { continue };
            test(dir.path(), false);
            let found = crate::io::negotiate(dir.path(), crate::io::EngineChoice::Threads).unwrap();
            if found.direct {
                test(dir.path(), true);
            }
        }
    }

    fn uring_works() -> bool {
        let works = Uring::start().is_ok();
        if !works {
            eprintln!("io_uring is not available here: skipped");
        }
        works
    }

    #[test]
    fn threads_conform() {
        everywhere(|dir, direct| {
            check(&|| Arc::new(Threads::start(4).unwrap()), dir, direct);
        });
    }

    #[test]
    fn uring_conforms() {
        if uring_works() {
            everywhere(|dir, direct| check(&|| Arc::new(Uring::start().unwrap()), dir, direct));
        }
    }

    /// A kernel that moves little, is interrupted and is short of resources, in a fixed order.
    fn bad_kernel(unit: u64) -> KernelHook {
        let calls = AtomicU64::new(0);
        Arc::new(move |wanted| match calls.fetch_add(1, Ordering::SeqCst) % 11 {
            3 => Err(Errno(libc::EINTR)),
            7 => Err(Errno(libc::EAGAIN)),
            call => Ok((wanted * (call % 5 + 1) / 6 / unit * unit).max(unit)),
        })
    }

    /// A kernel that moves some bytes of those asked for, at random but the same every time. Of the
    /// last granule it moves all every other time: a direct transfer can go on from nowhere inside.
    fn short_kernel() -> KernelHook {
        let calls = AtomicU64::new(0);
        Arc::new(move |wanted| {
            let mut random = calls.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
            for _ in 0..3 {
                random = (random ^ (random >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            }
            let whole = wanted == 1 || (wanted == GRANULE && random >> 63 == 0);
            Ok(if whole { wanted } else { 1 + random % (wanted - 1) })
        })
    }

    #[test]
    fn engines_conform_on_a_kernel_that_moves_some_bytes_of_each_call() {
        let uring = uring_works();
        everywhere(|dir, direct| {
            let threads = || Arc::new(Threads::start_hooked(3, short_kernel()).unwrap());
            check(&|| threads() as Arc<dyn IoEngine>, dir, direct);
            if uring {
                let ring = || Arc::new(Uring::start_hooked(short_kernel()).unwrap());
                check(&|| ring() as Arc<dyn IoEngine>, dir, direct);
            }
        });
    }

    #[test]
    fn engines_conform_on_a_kernel_that_moves_little_at_a_time() {
        let uring = uring_works();
        everywhere(|dir, direct| {
            let unit = if direct { GRANULE } else { 1 };
            let threads = || Arc::new(Threads::start_hooked(3, bad_kernel(unit)).unwrap());
            check(&|| threads() as Arc<dyn IoEngine>, dir, direct);
            if uring {
                let ring = || Arc::new(Uring::start_hooked(bad_kernel(unit)).unwrap());
                check(&|| ring() as Arc<dyn IoEngine>, dir, direct);
            }
        });
    }
}
