//! The turn of one process at a device: when it moves up in the line, and when it gives way.

use std::collections::HashSet;
use std::time::Duration;

use super::line::Ticket;

/// How long a process that always has something to do keeps the token while others wait: long
/// against the time in which what is in flight comes in, when the device has less to do.
const SLICE: Duration = Duration::from_millis(500);

/// It gives the token back when it has had nothing to do for that long.
const IDLE: Duration = Duration::from_millis(2);

/// How often one that waits looks whether it may go.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// How often one that has had its slice looks whether others wait.
const LOOK_BEHIND: Duration = Duration::from_millis(20);

/// Who has been first in the line for so long while others wait is stopped or hangs. The token keeps
/// processes out of each other's way and protects nothing, so the others go on without him.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A turn shows what a number of processes is worth if the process had something to do for all but
/// this part of it.
const IDLE_PART: f64 = 0.1;

/// How many seconds the share of the wanted time that was granted is remembered over.
const MEMORY: f64 = 5.0;

/// What a path has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Needs {
    /// Something waits to be started.
    pub(super) start: bool,
    /// Something is in flight.
    pub(super) in_flight: bool,
}

/// What a path may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// It may start something now.
    pub(super) go: bool,
    /// It must ask again after this time, if it does not before.
    pub(super) again: Option<Duration>,
}

/// Where a process stands.
#[derive(Debug, Default)]
pub(super) enum Turn {
    #[default]
    Out,
    Waiting(Wait),
    In(Hold),
}

/// It stands in the line.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) ticket: Ticket,
    pub(super) since: Duration,
    pub(super) look_at: Duration,
    /// Who is first in the line, and since when as far as is known.
    first: Option<(u64, Duration)>,
}

/// It has the token.
#[derive(Debug)]
pub(super) struct Hold {
    /// Without one the line could not be joined.
    pub(super) ticket: Option<Ticket>,
    pub(super) since: Duration,
    pub(super) waited: Duration,
    look_behind_at: Duration,
    idle_since: Option<Duration>,
    pub(super) idle: Duration,
    /// Others wait and the slice is over: nothing more is started.
    pub(super) leaving: bool,
    /// How many were in the line when that was found.
    pub(super) in_line: u32,
    pub(super) moved_bytes: u64,
}

/// How much of the time in which the device was wanted it was granted, the latest most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted(f64);

impl Default for Granted {
    fn default() -> Self {
        Granted(1.0)
    }
}

impl Granted {
    /// Adds a time of waiting and the time after it in which the device was had. However long one of
    /// them was, the memory is as short.
    pub(super) fn add(&mut self, waited: Duration, held: Duration) {
        for (time, granted) in [(waited, 0.0), (held, 1.0)] {
            let keep = (-time.as_secs_f64() / MEMORY).exp();
            self.0 = self.0 * keep + granted * (1.0 - keep);
        }
    }

    pub(super) fn share(&self) -> f64 {
        self.0
    }
}

impl Wait {
    pub(super) fn new(ticket: Ticket, now: Duration) -> Self {
        Wait { ticket, since: now, look_at: now, first: None }
    }

    /// Returns whether it may go: there are fewer before it than each of them and itself allows.
    pub(super) fn look(&mut self, now: Duration, passed: &mut HashSet<u64>) -> bool {
        self.look_at = now + LOOK;
        let ahead = self.ticket.ahead(passed);
        let Some(first) = ahead.first().map(|name| name.number) else { return true };
        let since = match self.first {
            Some((number, since)) if number == first => since,
            _ => now,
        };
        self.first = Some((first, since));
        let limits = ahead.iter().map(|name| name.limit);
        if (ahead.len() as u32) < limits.fold(self.ticket.limit(), u32::min) {
            return true;
        }
        if now.saturating_sub(since) >= PATIENCE {
            tracing::warn!("a process has kept others from a device for {PATIENCE:?}: going on");
            passed.insert(first);
        }
        false
    }
}

impl Hold {
    /// Returns the token, asked for at `since` and had at `now`.
    pub(super) fn new(
        ticket: Option<Ticket>,
        (since, now): (Duration, Duration),
        moved_bytes: u64,
    ) -> Self {
        Hold {
            ticket,
            since: now,
            waited: now.saturating_sub(since),
            look_behind_at: now + SLICE,
            idle_since: None,
            idle: Duration::ZERO,
            leaving: false,
            in_line: 1,
            moved_bytes,
        }
    }

    /// Returns whether the token is to be given back now. Who finds out how many pay (`adapts`) leaves
    /// after each slice in company, waited for or not: it is from turns that it is found out.
    pub(super) fn is_over(&mut self, now: Duration, needs: Needs, adapts: bool) -> bool {
        if needs.start || needs.in_flight {
            let idle = self.idle_since.take().map_or(Duration::ZERO, |since| now - since);
            self.idle += idle;
        } else {
            self.idle_since.get_or_insert(now);
        }
        if !self.leaving && now >= self.look_behind_at {
            self.look_behind_at = now + LOOK_BEHIND;
            let (in_line, limit) = self.ticket.as_ref().map_or((1, 0), Ticket::line);
            self.in_line = in_line;
            // Without its own ticket there somebody has removed the line: the others are in another.
            self.leaving = in_line == 0 || in_line > limit || (adapts && in_line > 1);
        }
        let is_idle = self.idle_since.is_some_and(|since| now - since >= IDLE);
        !needs.in_flight && (self.leaving || is_idle)
    }

    /// Returns whether it was one of full turns in company, that was used, ended at `now`.
    pub(super) fn shows(&self, now: Duration) -> bool {
        let held = now.saturating_sub(self.since);
        let was_busy = self.idle.as_secs_f64() <= IDLE_PART * held.as_secs_f64();
        self.leaving && was_busy && held < 2 * SLICE
    }

    pub(super) fn answer(&self, now: Duration, needs: Needs) -> Answer {
        let idle_for = self.idle_since.map(|since| (since + IDLE).saturating_sub(now));
        match self.leaving {
            true => Answer { go: false, again: needs.start.then_some(LOOK) },
            false => Answer { go: true, again: idle_for },
        }
    }
}
