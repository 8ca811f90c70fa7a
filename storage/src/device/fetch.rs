//! Bringing chunks to the device: a lease on the host, memory on the device, a copy, and the leases
//! that waited for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::catalog::ChunkRef;
use crate::error::{Error, Fate};
use crate::id::{Class, Version};
use crate::mover::Hold;
use crate::residency::Mode;
use crate::ticket::Completer;

use super::HostAnswers;
use super::copies::Copy;
use super::lease::{DeviceReadLease, DeviceWriteLease};
use super::memory::Allocation;
use super::room::Room;
use super::under_way::{Copying, Fetch, Stage, Whom};
use super::worker::Worker;

impl Worker {
    /// A shared lease waits.
    pub(super) fn want_read(&mut self, chunk: &ChunkRef, reply: Completer<DeviceReadLease>) {
        let copy = self.shared.copies.lock().newest(chunk);
        if let Some(copy) = copy {
            self.shared.counters.hits.add(1);
            return self.deliver(&copy, vec![reply]);
        }
        self.shared.counters.misses.add(1);
        self.hints.retain(|hint| hint.id() != chunk.id());
        let fetch = self.reading.get(&chunk.id()).and_then(|id| self.fetches.get_mut(id));
        if let Some(Fetch { class, whom: Whom::Readers(readers), .. }) = fetch {
            *class = Class::Demand;
            readers.push(reply);
            return;
        }
        self.begin(chunk, Class::Demand, Whom::Readers(vec![reply]));
    }

    /// An exclusive lease waits.
    pub(super) fn want_write(&mut self, chunk: &ChunkRef, reply: Completer<DeviceWriteLease>) {
        self.hints.retain(|hint| hint.id() != chunk.id());
        self.begin(chunk, Class::Demand, Whom::Writer(reply));
    }

    /// Asks the host for a chunk.
    pub(super) fn begin(&mut self, chunk: &ChunkRef, class: Class, whom: Whom) {
        let id = self.number();
        let mode = match whom {
            Whom::Readers(_) => Mode::Read,
            Whom::Writer(_) => Mode::Write,
        };
        if mode == Mode::Read {
            self.reading.insert(chunk.id(), id);
        }
        let stage = Stage::Host(self.shared.host.lease_in_passing(chunk.name(), mode));
        self.fetches.insert(id, Fetch { chunk: chunk.clone(), class, whom, stage });
        self.host_answers(id);
    }

    /// The host has, or may have, an answer for a fetch.
    pub(super) fn host_answers(&mut self, id: u64) {
        let Some(Fetch { stage: Stage::Host(ticket), .. }) = self.fetches.get_mut(&id) else {
            return;
        };
        let inbox = self.shared.inbox.clone();
        let waker = Waker::from(Arc::new(HostAnswers { inbox, fetch: id }));
        match Pin::new(ticket).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {}
            Poll::Ready(Ok(hold)) => self.granted(id, hold),
            Poll::Ready(Err(error)) => self.refuse(id, &error),
        }
    }

    fn granted(&mut self, id: u64, hold: Hold) {
        let Some(Fetch { chunk, class, whom, .. }) = self.take(id) else { return };
        let version = hold.version();
        let whom = match whom {
            Whom::Readers(readers) => {
                // An exclusive lease on the device may have left it there.
                let copy = self.shared.copies.lock().newest(&chunk);
                if let Some(copy) = copy {
                    drop(hold);
                    return self.deliver(&copy, readers);
                }
                self.reading.insert(chunk.id(), id);
                Whom::Readers(readers)
            }
            Whom::Writer(reply) => {
                let old = self.shared.copies.lock().take(chunk.id());
                let old = old.filter(|copy| copy.version == version).and_then(Arc::into_inner);
                if let Some(Copy { allocation, .. }) = old {
                    self.shared.counters.hits.add(1);
                    return self.hand_over(reply, allocation, (chunk, version, hold));
                }
                self.shared.counters.misses.add(1);
                Whom::Writer(reply)
            }
        };
        let stage = Stage::Memory { hold, version };
        self.fetches.insert(id, Fetch { chunk, class, whom, stage });
        match class {
            Class::Demand => self.wanting.push_back(id),
            _ => self.find_room_ahead(id),
        }
    }

    /// Serves fetches that wait for memory, in their order; returns whether none waits any more.
    pub(super) fn pump_wants(&mut self) -> bool {
        while let Some(id) = self.wanting.pop_front() {
            let Some(fetch) = self.fetches.get(&id) else { continue };
            match self.find_room(&fetch.chunk.clone(), Class::Demand) {
                Room::Found(allocation) => self.start_copy(id, allocation),
                Room::Coming => {
                    self.wanting.push_front(id);
                    return false;
                }
                Room::Never(error) => self.refuse(id, &error),
            }
        }
        true
    }

    /// All pieces of a fetch that were queued are copied, or not.
    pub(super) fn finish(&mut self, id: u64) {
        let Some(Fetch { chunk, whom, stage, .. }) = self.take(id) else { return };
        let Stage::Copying(Copying { hold, allocation, version, failed, .. }) = stage else {
            return;
        };
        if self.closing.is_some() {
            return;
        }
        if let Some(source) = failed {
            drop((allocation, hold));
            let error = self.failed("copy to it", &chunk, source, Fate::Kept);
            return whom.refuse(&error);
        }
        self.shared.counters.copies_in.add(1);
        self.shared.counters.bytes_in.add(chunk.bytes());
        match (whom, Arc::into_inner(hold)) {
            (Whom::Readers(readers), hold) => {
                let copy = Copy::new(chunk, version, allocation, readers.is_empty());
                let (copy, replaced) = self.shared.copies.lock().keep(copy);
                drop((replaced, hold));
                self.deliver(&copy, readers);
            }
            (Whom::Writer(reply), Some(hold)) => {
                self.hand_over(reply, allocation, (chunk, version, hold));
            }
            (Whom::Writer(reply), None) => {
                debug_assert!(false, "a copy was done with its source still held");
                reply.complete(Err(Error::Closed));
            }
        }
    }

    fn deliver(&self, copy: &Arc<Copy>, readers: Vec<Completer<DeviceReadLease>>) {
        for reply in readers {
            self.shared.copies.lock().lease_copy(copy);
            let lease = DeviceReadLease::new(Arc::clone(&self.shared), Arc::clone(copy));
            reply.complete(Ok(lease));
        }
    }

    fn hand_over(
        &mut self,
        reply: Completer<DeviceWriteLease>,
        allocation: Allocation,
        (chunk, version, mut hold): (ChunkRef, Version, Hold),
    ) {
        if reply.is_abandoned() {
            self.keep(Copy::new(chunk, version, allocation, false));
            return drop(hold);
        }
        hold.set_passing(false);
        let rest = (chunk, version, hold);
        let lease = DeviceWriteLease::new(Arc::clone(&self.shared), allocation, rest);
        reply.complete(Ok(lease));
    }

    /// Ends a fetch with an error.
    fn refuse(&mut self, id: u64, error: &Error) {
        let Some(Fetch { whom, stage, .. }) = self.take(id) else { return };
        // Whoever is told may count on the host's lease being over.
        drop(stage);
        let closed = self.shared.copies.lock().is_closed();
        whom.refuse(if closed { &Error::Closed } else { error });
    }

    /// Takes a fetch out of the table.
    pub(super) fn take(&mut self, id: u64) -> Option<Fetch> {
        let fetch = self.fetches.remove(&id)?;
        if self.reading.get(&fetch.chunk.id()) == Some(&id) {
            self.reading.remove(&fetch.chunk.id());
        }
        Some(fetch)
    }

    /// Ends fetches that nobody waits for any more.
    pub(super) fn drop_abandoned(&mut self) {
        let over =
            self.fetches.iter_mut().filter_map(|(id, fetch)| fetch.is_abandoned().then_some(*id));
        let over: Vec<u64> = over.collect();
        over.into_iter().for_each(|id| drop(self.take(id)));
    }

    /// Ends all fetches; what the device still reads is kept until it is done with it.
    pub(super) fn call_off_fetches(&mut self) {
        self.copying.clear();
        let ids: Vec<u64> = self.fetches.keys().copied().collect();
        for id in ids {
            let Some(mut fetch) = self.take(id) else { continue };
            if matches!(&fetch.stage, Stage::Copying(copying) if copying.pieces > 0) {
                fetch.whom = Whom::Readers(Vec::new());
                self.fetches.insert(id, fetch);
            }
        }
    }
}
