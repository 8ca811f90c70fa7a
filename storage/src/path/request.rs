//! One call of `read` or `write` while its parts are moved: counts them, keeps the first error.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::admission::Direction;
use super::store::{ReadDone, TransferError, WriteDone};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The most that one operation moves. Large enough that a device runs at its full rate with a few of
/// them, small enough that an urgent one does not wait long behind others.
pub(super) const TRANSFER_BYTES: u64 = 1 << 20;

/// Whom to tell.
pub(super) enum Answer {
    Read(ReadDone),
    Write(WriteDone),
}

impl Answer {
    pub(super) fn direction(&self) -> Direction {
        match self {
            Answer::Read(_) => Direction::Read,
            Answer::Write(_) => Direction::Write,
        }
    }

    /// Tells. A panic of the owner's must not take down a thread that serves others.
    pub(super) fn tell(self, result: Result<(), TransferError>) {
        let told = catch_unwind(AssertUnwindSafe(move || match self {
            Answer::Read(done) => done(result),
            Answer::Write(done) => done(result.map_err(|error| error.errno)),
        }));
        if told.is_err() {
            tracing::error!("a transfer's callback panicked; the path goes on");
        }
    }
}

/// The state that the parts of one call share.
pub(super) struct Request {
    pub(super) bytes: u64,
    pub(super) direction: Direction,
    parts_left: AtomicU64,
    state: Mutex<State>,
}

struct State {
    failed: Option<TransferError>,
    answer: Option<Answer>,
}

impl Request {
    pub(super) fn new(answer: Answer, bytes: u64, parts: u64) -> Self {
        Request {
            bytes,
            direction: answer.direction(),
            parts_left: AtomicU64::new(parts),
            state: Mutex::new(State { failed: None, answer: Some(answer) }),
        }
    }

    /// Takes the outcome of one part, whose memory must have been dropped. After the last one
    /// returns whom to tell, and what.
    pub(super) fn part_done(
        &self,
        result: Result<(), TransferError>,
    ) -> Option<(Answer, Result<(), TransferError>)> {
        if let Err(error) = result {
            let mut state = self.state.lock();
            // The earliest byte is named, whatever the order in which parts fail.
            let first = state.failed.filter(|failed| failed.offset <= error.offset);
            state.failed = Some(first.unwrap_or(error));
        }
        if self.parts_left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return None;
        }
        let mut state = self.state.lock();
        let result = state.failed.map_or(Ok(()), Err);
        state.answer.take().map(|answer| (answer, result))
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("direction", &self.direction)
            .field("bytes", &self.bytes)
            .field("parts_left", &self.parts_left)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    #[test]
    fn the_last_part_tells_of_the_earliest_failure() {
        let request = Request::new(Answer::Read(Box::new(|_| {})), 3, 3);
        let at = |offset| TransferError { errno: Errno(libc::EIO), offset };
        assert!(request.part_done(Err(at(9))).is_none());
        assert!(request.part_done(Err(at(5))).is_none());
        let (_, result) = request.part_done(Ok(())).unwrap();
        assert_eq!(result, Err(at(5)));
    }
}
