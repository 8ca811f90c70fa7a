//! The end of exclusive leases on a device: what was changed is copied back to the host, and only then
//! does the lease on the host end.

use std::sync::Arc;

use crate::error::{Error, Fate};
use crate::id::Version;
use crate::mover::Hold;
use crate::sync::Mutex;
use crate::ticket::Completer;

use super::Msg;
use super::copies::Copy;
use super::lease::{Ended, Rest};
use super::memory::{Allocation, Ending};
use super::under_way::Back;
use super::worker::Worker;

/// The host's memory while a device fills it. The lease goes with it, so that it cannot end before the
/// device is done with the memory, whatever happens.
struct Target {
    hold: Option<Hold>,
    returned: Arc<Mutex<Option<Hold>>>,
}

impl AsMut<[u8]> for Target {
    fn as_mut(&mut self) -> &mut [u8] {
        self.hold.as_mut().map_or(&mut [], Hold::bytes_to_fill)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        *self.returned.lock() = self.hold.take();
    }
}

impl Worker {
    /// The caller's work under an exclusive lease is done, or its stream is lost.
    pub(super) fn ended(&mut self, ended: Ended, result: tensortier_gpu::Result<()>) {
        let Ended { buffer, rest, changed, reply, ending } = ended;
        let Rest { chunk, reservation, version, hold } = rest;
        let allocation = Allocation { buffer, reservation };
        if let Err(source) = result {
            let fate = if changed { Fate::WriteLost } else { Fate::Kept };
            drop((allocation, hold));
            let error = self.failed("wait for the caller's work on", &chunk, source, fate);
            return answer(reply, Err(error));
        }
        let new = Version(version.0 + u64::from(changed));
        let kept = Copy::new(chunk, new, allocation, false);
        if changed {
            self.copy_back(kept, hold, reply, ending);
        } else {
            self.keep(kept);
            drop(hold);
            answer(reply, Ok(()));
        }
    }

    fn copy_back(&mut self, kept: Copy, hold: Hold, reply: Option<Completer<()>>, ending: Ending) {
        self.page_locks.lock_committed();
        let returned = Arc::new(Mutex::new(None));
        let target = Target { hold: Some(hold), returned: Arc::clone(&returned) };
        let (device, buffer) = (&self.shared.memory.device, &kept.allocation.buffer);
        match device.copy_out(&self.out, buffer, 0, Box::new(target)) {
            Ok(copy) => {
                let (back, inbox) = (self.number(), self.shared.inbox.clone());
                copy.event().then(move |result| drop(inbox.send(Msg::Back { back, result })));
                self.backs.insert(back, Back { copy, returned, kept, reply, _ending: ending });
            }
            Err(source) => {
                // Nothing was queued: the host has what it had.
                let hold = returned.lock().take();
                if let Some(mut hold) = hold {
                    hold.not_begun();
                }
                let error = self.failed("copy back", &kept.chunk, source, Fate::WriteLost);
                drop(kept);
                answer(reply, Err(error));
            }
        }
    }

    /// A copy to the host was made, or not.
    pub(super) fn back_done(&mut self, back: u64, result: tensortier_gpu::Result<()>) {
        let Some(back) = self.backs.remove(&back) else { return };
        let Back { copy, returned, kept, reply, _ending } = back;
        let result = result.and_then(|()| copy.wait().map(drop));
        let hold = returned.lock().take();
        match (result, hold) {
            (Ok(()), Some(mut hold)) => {
                let counters = &self.shared.counters;
                counters.copies_out.add(1);
                counters.bytes_out.add(kept.chunk.bytes());
                hold.filled();
                self.keep(kept);
                drop(hold);
                answer(reply, Ok(()));
            }
            // Its lease ends as void, now or when the device lets go of the memory.
            (result, hold) => {
                let source = result.err().unwrap_or(tensortier_gpu::Error::StreamLost);
                let lost = kept.chunk.cell.lock().residency.dirty();
                let fate = if lost { Fate::Lost } else { Fate::WriteLost };
                let error = self.failed("copy back", &kept.chunk, source, fate);
                drop((kept, hold));
                answer(reply, Err(error));
            }
        }
    }

    /// Keeps a copy for later leases.
    pub(super) fn keep(&mut self, copy: Copy) {
        let kept = self.shared.copies.lock().keep(copy);
        drop(kept);
    }
}

/// Answers whoever waits for the end of a lease; an error that nobody waits for is not hidden.
fn answer(reply: Option<Completer<()>>, result: Result<(), Error>) {
    let reply = reply.filter(|reply| !reply.is_abandoned());
    match (reply, result) {
        (Some(reply), result) => reply.complete(result),
        (None, Err(error)) => tracing::error!(%error, "a lease on a device ended badly"),
        (None, Ok(())) => {}
    }
}
