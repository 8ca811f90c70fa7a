//! The resume logic of every engine, pure: from what the kernel answered to what to do next.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use crate::arena::GRANULE;
use crate::error::Errno;

/// The most bytes that one kernel call is asked to move; the kernel itself stops just below 2 GiB.
pub(super) const CALL_BYTES: u64 = 1 << 30;

/// How often in a row the kernel may answer without moving anything before it counts as a failure.
/// With [`PAUSE`] it is about a second of patience, counted anew after each progress.
const FRUITLESS: u32 = 1000;

/// How long to wait after `EAGAIN`: the kernel was short of something; asking at once burns a core.
const PAUSE: Duration = Duration::from_millis(1);

/// Decides, for tests, what becomes of a kernel call for that many bytes: a smaller count is taken as
/// the kernel's answer, or an error is.
#[cfg_attr(not(any(test, feature = "testing")), allow(unreachable_pub))]
pub type KernelHook = Arc<dyn Fn(u64) -> Result<u64, Errno> + Send + Sync>;

/// What to do after the kernel's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Every byte was moved.
    Finished,
    /// Call the kernel for the rest, after a pause if one is given.
    Again(Option<Duration>),
    /// Give up.
    Failed(Errno),
}

/// How far one operation has come.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    write: bool,
    total: u64,
    moved: u64,
    fruitless: u32,
}

impl Progress {
    pub(super) fn new(write: bool, total: u64) -> Self {
        Progress { write, total, moved: 0, fruitless: 0 }
    }

    /// Returns how many bytes are moved for good; the next call starts there.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns how many bytes the next call should ask for; 0 means that nothing is left.
    pub(super) fn wanted(&self) -> u64 {
        (self.total - self.moved).min(CALL_BYTES)
    }

    /// Takes the kernel's answer to a call for [`Progress::wanted`] bytes. `align` is asked only
    /// after a short count: 1, or what a direct transfer must be a multiple of.
    pub(super) fn answer(
        &mut self,
        answer: Result<u64, Errno>,
        align: impl FnOnce() -> u64,
    ) -> Step {
        match answer {
            Ok(count) => self.count(count, align),
            Err(Errno(libc::EINTR)) => self.fruitless(Errno(libc::EINTR), None),
            Err(Errno(libc::EAGAIN)) => self.fruitless(Errno(libc::EAGAIN), Some(PAUSE)),
            Err(errno) => Step::Failed(errno),
        }
    }

    fn count(&mut self, count: u64, align: impl FnOnce() -> u64) -> Step {
        let left = self.total - self.moved;
        if count >= left {
            self.moved = self.total;
            return Step::Finished;
        }
        if count == 0 {
            // A write that moves nothing is broken; a read that does is past the end of the file.
            return Step::Failed(Errno(if self.write { libc::EIO } else { libc::ENODATA }));
        }
        // A direct transfer can go on only from an aligned place; what lies behind it is repeated.
        let align = align().max(1);
        let whole = count / align * align;
        if whole == 0 {
            return self.fruitless(Errno(libc::EIO), None);
        }
        self.moved += whole;
        self.fruitless = 0;
        Step::Again(None)
    }

    fn fruitless(&mut self, errno: Errno, pause: Option<Duration>) -> Step {
        self.fruitless += 1;
        if self.fruitless > FRUITLESS { Step::Failed(errno) } else { Step::Again(pause) }
    }
}

/// Returns what the rest of a short transfer must be aligned to: one granule if the file is open
/// for direct transfers (of which every alignment we accept is a divisor), otherwise 1.
pub(super) fn resume_align(file: &File) -> u64 {
    match rustix::fs::fcntl_getfl(file) {
        Ok(flags) if !flags.contains(rustix::fs::OFlags::DIRECT) => 1,
        _ => GRANULE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AGAIN: Step = Step::Again(None);

    #[test]
    fn short_counts_resume_where_they_stopped() {
        let mut progress = Progress::new(false, 10_000);
        assert_eq!(progress.wanted(), 10_000);
        assert_eq!(progress.answer(Ok(1), || 1), AGAIN);
        assert_eq!((progress.moved(), progress.wanted()), (1, 9_999));
        assert_eq!(progress.answer(Ok(9_999), || 1), Step::Finished);
        assert_eq!((progress.moved(), progress.wanted()), (10_000, 0));
    }

    #[test]
    fn direct_transfers_resume_at_an_aligned_place() {
        let mut progress = Progress::new(true, 3 * 4096);
        assert_eq!(progress.answer(Ok(4096 + 512), || 4096), AGAIN);
        assert_eq!(progress.moved(), 4096);
        assert_eq!(progress.answer(Ok(511), || 4096), AGAIN);
        assert_eq!(progress.moved(), 4096);
        assert_eq!(progress.answer(Ok(8192), || 4096), Step::Finished);
    }

    #[test]
    fn no_progress_is_an_error_of_its_own_in_each_direction() {
        assert_eq!(Progress::new(true, 10).answer(Ok(0), || 1), Step::Failed(Errno(libc::EIO)));
        assert_eq!(
            Progress::new(false, 10).answer(Ok(0), || 1),
            Step::Failed(Errno(libc::ENODATA))
        );
    }

    #[test]
    fn a_full_disk_after_a_short_write_is_reported_as_full() {
        let mut progress = Progress::new(true, 8192);
        assert_eq!(progress.answer(Ok(4096), || 4096), AGAIN);
        let full = Errno(libc::ENOSPC);
        assert_eq!(progress.answer(Err(full), || 4096), Step::Failed(full));
        assert_eq!(progress.moved(), 4096);
    }

    #[test]
    fn interrupted_calls_are_repeated_but_not_forever() {
        for (number, pause) in [(libc::EINTR, None), (libc::EAGAIN, Some(PAUSE))] {
            let mut progress = Progress::new(false, 10);
            for _ in 0..FRUITLESS {
                assert_eq!(progress.answer(Err(Errno(number)), || 1), Step::Again(pause));
            }
            assert_eq!(progress.answer(Ok(3), || 1), AGAIN);
            assert_eq!(progress.answer(Err(Errno(number)), || 1), Step::Again(pause));
            for _ in 1..FRUITLESS {
                progress.answer(Err(Errno(number)), || 1);
            }
            let last = progress.answer(Err(Errno(number)), || 1);
            assert_eq!(last, Step::Failed(Errno(number)));
        }
    }

    #[test]
    fn huge_transfers_are_asked_for_in_parts() {
        let mut progress = Progress::new(false, CALL_BYTES + 5);
        assert_eq!(progress.wanted(), CALL_BYTES);
        assert_eq!(progress.answer(Ok(CALL_BYTES), || 4096), AGAIN);
        assert_eq!(progress.wanted(), 5);
    }

    proptest! {
        #[test]
        fn any_counts_cover_every_byte_once(
            total in 1u64..100_000,
            counts in prop::collection::vec(1u64..9_000, 1..200),
        ) {
            let mut progress = Progress::new(true, total);
            let mut moved = 0;
            for count in counts.into_iter().chain(std::iter::repeat(total)) {
                let count = count.min(progress.wanted());
                let step = progress.answer(Ok(count), || 1);
                moved += count;
                prop_assert_eq!(progress.moved(), moved);
                if step == Step::Finished {
                    break;
                }
                prop_assert_eq!(step, AGAIN);
            }
            prop_assert_eq!(moved, total);
        }
    }
}
