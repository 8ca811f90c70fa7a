//! The loop of the tier's thread: one message at a time, then whatever it made possible; and its end.

use std::time::Instant;

use crate::ticket::Completer;

use super::Msg;
use super::worker::{Closing, Worker};

impl Worker {
    /// Runs until [`Msg::Close`] has been carried out.
    pub(super) fn run(mut self) {
        while let Some(msg) = self.next_message() {
            self.act(msg);
            if self.closing.is_none() {
                self.pump();
            } else if self.at_rest() {
                break;
            }
        }
        // Whoever is told may count on the memory being unlocked.
        drop(self.page_locks);
        for reply in self.closing.into_iter().flat_map(|closing| closing.replies) {
            reply.complete(Ok(true));
        }
    }

    fn next_message(&mut self) -> Option<Msg> {
        loop {
            let deadline = self.closing.as_ref().and_then(|closing| closing.deadline);
            let Some(deadline) = deadline else { return self.messages.recv().ok() };
            match self.messages.recv_deadline(deadline) {
                Ok(msg) => return Some(msg),
                Err(error) if error.is_disconnected() => return None,
                // The device may hang for ever, those who close the store must not. What it still
                // reads or fills is kept until it is done with it.
                Err(_) => self.give_up_waiting(),
            }
        }
    }

    fn give_up_waiting(&mut self) {
        if let Some(closing) = &mut self.closing {
            closing.deadline = None;
            for reply in std::mem::take(&mut closing.replies) {
                reply.complete(Ok(false));
            }
        }
    }

    fn act(&mut self, msg: Msg) {
        if self.closing.is_some() && !msg.is_outcome() {
            return;
        }
        match msg {
            Msg::Read { chunk, reply } => self.want_read(&chunk, reply),
            Msg::Write { chunk, reply } => self.want_write(&chunk, reply),
            Msg::Abandoned => self.drop_abandoned(),
            Msg::Prefetch(chunks) => self.hints.extend(chunks),
            Msg::Host(fetch) => self.host_answers(fetch),
            Msg::Piece { fetch, result } => self.piece_done(fetch, result),
            Msg::Ended { ended, result } => self.ended(ended, result),
            Msg::Back { back, result } => self.back_done(back, result),
            Msg::Freed => {}
            Msg::Close { deadline, reply } => self.begin_close(deadline, reply),
        }
    }

    fn pump(&mut self) {
        // Set before the look, so that a lease that ends during it is not missed.
        self.shared.memory.set_starving(true);
        let served = self.pump_wants();
        let ahead = self.pump_hints();
        self.shared.memory.set_starving(!served || !ahead);
        self.pump_copies();
    }

    /// Returns whether the device is done with all that was queued.
    fn at_rest(&self) -> bool {
        self.in_flight == 0 && self.backs.is_empty()
    }

    fn begin_close(&mut self, deadline: Option<Instant>, reply: Completer<bool>) {
        if let Some(closing) = &mut self.closing {
            closing.deadline = closing.deadline.max(deadline);
            closing.replies.push(reply);
            return;
        }
        self.closing = Some(Closing { deadline, replies: vec![reply] });
        self.hints.clear();
        self.wanting.clear();
        self.call_off_fetches();
    }
}

impl Msg {
    /// Returns whether it says how something begun ended, rather than asking for more.
    fn is_outcome(&self) -> bool {
        matches!(self, Msg::Piece { .. } | Msg::Back { .. } | Msg::Close { .. })
    }
}
