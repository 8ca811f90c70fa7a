//! The token of a device among the processes of a node: how many of them use it at one time, in the
//! order in which they came. All paths of a process on one device have it together, and no thread
//! ever waits for it: whoever may not start yet asks again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use super::line::{Line, Ticket};
pub(super) use super::turn::{Answer, Needs};
use super::turn::{Granted, Hold, LOOK, PATIENCE, Turn, Wait};
use super::width::Width;
use crate::clock::Clock;
use crate::error::Errno;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// How many processes use a device at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// So many.
    AtMost(u32),
    /// One to start with, then what pays.
    Adapt,
}

/// The tokens of this process, one for each device whose use is limited.
static TOKENS: LazyLock<Mutex<HashMap<u64, Weak<Token>>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct Token {
    line: Line,
    clock: Clock,
    state: Mutex<State>,
    moved_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    turn: Turn,
    seats: HashMap<u64, SeatState>,
    next_seat: u64,
    granted: Granted,
    /// Tickets that no longer count.
    passed: HashSet<u64>,
    /// Since when another process has been found at the door each time.
    knocks_since: Option<Duration>,
}

#[derive(Debug)]
struct SeatState {
    limit: Limit,
    needs: Needs,
    waits_since: Option<Duration>,
    waited: Duration,
}

impl State {
    /// Returns what all paths have to do.
    fn needs(&self) -> Needs {
        self.seats.values().fold(Needs::default(), |all, seat| Needs {
            start: all.start || seat.needs.start,
            in_flight: all.in_flight || seat.needs.in_flight,
        })
    }

    /// Returns how many processes may use the device at one time if so many have been found to pay.
    /// The most careful path decides.
    fn limit(&self, paying: u32) -> u32 {
        let limits = self.seats.values().map(|seat| match seat.limit {
            Limit::AtMost(processes) => processes,
            Limit::Adapt => paying,
        });
        limits.min().unwrap_or(1)
    }

    /// Whether it is found out how many processes pay.
    fn adapts(&self) -> bool {
        self.seats.values().all(|seat| seat.limit == Limit::Adapt)
    }
}

impl Token {
    fn new(line: Line, clock: Clock) -> Self {
        Token { line, clock, state: Mutex::default(), moved_bytes: AtomicU64::new(0) }
    }

    fn ask(&self, seat: u64, needs: Needs) -> Answer {
        let mut state = self.state.lock();
        // With the lock: of two paths that ask, the one that comes later is not earlier.
        let now = self.clock.now();
        if let Some(seat) = state.seats.get_mut(&seat) {
            seat.needs = needs;
        }
        let all = state.needs();
        self.go_on(&mut state, now, all);
        let again = |after| needs.start.then_some(after);
        let answer = match &state.turn {
            Turn::Out => Answer { go: false, again: again(LOOK) },
            Turn::Waiting(wait) => {
                Answer { go: false, again: again(wait.look_at.saturating_sub(now)) }
            }
            Turn::In(hold) => hold.answer(now, needs),
        };
        if let Some(seat) = state.seats.get_mut(&seat) {
            seat.account(now, !answer.go && needs.start && !needs.in_flight);
            // It starts something now, and says so only when it asks again.
            seat.needs.in_flight |= answer.go && needs.start;
        }
        answer
    }

    /// Leaves, joins and moves up, whatever the time and what is to do ask for.
    fn go_on(&self, state: &mut State, now: Duration, needs: Needs) {
        state.turn = match std::mem::take(&mut state.turn) {
            Turn::In(mut hold) => {
                if hold.is_over(now, needs, state.adapts()) {
                    self.give_back(state, now, hold);
                    Turn::Out
                } else {
                    Turn::In(hold)
                }
            }
            turn => turn,
        };
        state.turn = match std::mem::take(&mut state.turn) {
            Turn::Out if needs.start => self.join(state, now),
            Turn::Out => {
                state.knocks_since = None;
                Turn::Out
            }
            Turn::Waiting(_) if !needs.start => Turn::Out,
            turn => turn,
        };
        state.turn = match std::mem::take(&mut state.turn) {
            Turn::Waiting(mut wait) if now >= wait.look_at => {
                if wait.look(now, &mut state.passed) {
                    Turn::In(self.hold(Some(wait.ticket), (wait.since, now)))
                } else {
                    Turn::Waiting(wait)
                }
            }
            turn => turn,
        };
    }

    fn hold(&self, ticket: Option<Ticket>, times: (Duration, Duration)) -> Hold {
        Hold::new(ticket, times, self.moved_bytes.load(Ordering::Relaxed))
    }

    fn join(&self, state: &mut State, now: Duration) -> Turn {
        match self.line.join(|paying| state.limit(paying)) {
            Ok(Some(ticket)) => {
                state.knocks_since = None;
                Turn::Waiting(Wait::new(ticket, now))
            }
            // Another process is at the door: a moment later, unless it was stopped there.
            Ok(None) => {
                let since = *state.knocks_since.get_or_insert(now);
                match now.saturating_sub(since) < PATIENCE {
                    true => Turn::Out,
                    false => Turn::In(self.hold(None, (now, now))),
                }
            }
            Err(errno) => {
                tracing::debug!(%errno, "the line of processes before a device cannot be joined");
                Turn::In(self.hold(None, (now, now)))
            }
        }
    }

    /// Gives the token back, and says what the turn has shown.
    fn give_back(&self, state: &mut State, now: Duration, hold: Hold) {
        let held = now.saturating_sub(hold.since);
        state.granted.add(hold.waited, held);
        if state.adapts()
            && hold.shows(now)
            && let Some(ticket) = hold.ticket
        {
            let bytes = self.moved_bytes.load(Ordering::Relaxed).wrapping_sub(hold.moved_bytes);
            let bps = bytes as f64 / held.as_secs_f64();
            let note = |width: &mut Width| width.note(ticket.limit(), hold.in_line, bps);
            if let Err(errno) = self.line.learn(note) {
                tracing::debug!(%errno, "what a turn at a device has shown cannot be told");
            }
        }
    }
}

impl SeatState {
    fn account(&mut self, now: Duration, waits: bool) {
        match (waits, self.waits_since) {
            (true, None) => self.waits_since = Some(now),
            (false, Some(since)) => {
                self.waited += now.saturating_sub(since);
                self.waits_since = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
}

/// What one path has of the token of its device.
#[derive(Debug)]
pub(super) struct Seat {
    token: Arc<Token>,
    number: u64,
}

impl Seat {
    /// Returns a path's part in the token of a device.
    ///
    /// # Errors
    /// What the system said: processes cannot form a line here.
    pub(super) fn on_device(device: u64, limit: Limit) -> Result<Self, Errno> {
        let mut tokens = TOKENS.lock();
        tokens.retain(|_, token| token.strong_count() > 0);
        let known = tokens.get(&device).and_then(Weak::upgrade);
        let token = match known {
            Some(token) => token,
            None => {
                let token = Arc::new(Token::new(Line::of_device(device)?, Clock::system()));
                tokens.insert(device, Arc::downgrade(&token));
                token
            }
        };
        drop(tokens);
        Ok(Seat::of(token, limit))
    }

    /// Returns the part in a token of its own, as another process would have it.
    #[cfg(test)]
    pub(super) fn in_dir(dir: &std::path::Path, limit: Limit, clock: &Clock) -> Self {
        let line = Line::in_dir(dir.to_owned(), rustix::fs::makedev(8, 0)).unwrap();
        Seat::of(Arc::new(Token::new(line, clock.clone())), limit)
    }

    fn of(token: Arc<Token>, limit: Limit) -> Self {
        let number = {
            let mut state = token.state.lock();
            state.next_seat += 1;
            let number = state.next_seat;
            let needs = Needs::default();
            let seat = SeatState { limit, needs, waits_since: None, waited: Duration::ZERO };
            state.seats.insert(number, seat);
            number
        };
        Seat { token, number }
    }

    /// Says what the path has to do, and returns what it may do. Never blocks: what it asks the
    /// kernel is about files in memory.
    pub(super) fn ask(&self, needs: Needs) -> Answer {
        self.token.ask(self.number, needs)
    }

    /// Counts bytes that the path has moved.
    pub(super) fn moved(&self, bytes: u64) {
        self.token.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns how much of the time in which it was wanted the device was granted lately, 0 to 1.
    pub(super) fn share(&self) -> f64 {
        let state = self.token.state.lock();
        let mut granted = state.granted;
        let now = self.token.clock.now();
        match &state.turn {
            Turn::Out => {}
            Turn::Waiting(wait) => granted.add(now.saturating_sub(wait.since), Duration::ZERO),
            Turn::In(hold) => granted.add(hold.waited, now.saturating_sub(hold.since)),
        }
        granted.share()
    }

    /// Returns how long transfers of this path have waited for other processes, with nothing of it
    /// in flight.
    pub(super) fn waited(&self) -> Duration {
        let now = self.token.clock.now();
        let state = self.token.state.lock();
        let Some(seat) = state.seats.get(&self.number) else { return Duration::ZERO };
        seat.waited + seat.waits_since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.token.state.lock();
        state.seats.remove(&self.number);
        let needs = state.needs();
        if !needs.start && !needs.in_flight {
            // Nobody will ask any more, and so nobody would give it back.
            state.turn = Turn::Out;
        }
    }
}

#[cfg(test)]
mod tests;
