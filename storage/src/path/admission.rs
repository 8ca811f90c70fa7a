//! Decides which transfer of a path starts when: pure, non-blocking, one permit per operation.

use std::collections::VecDeque;
use std::time::Duration;

use super::Kind;
use crate::id::Class;
use crate::units::BytesPerSecond;

/// Bytes in flight per direction on a local drive to start with. Measured with both directions at once, 6 to 20 MiB
/// each move 5 to 10 % more than 2 to 4 MiB; more buys only latency.
const NVME_IN_FLIGHT_BYTES: u64 = 8 << 20;

/// Bytes in flight per direction to start with where latency is long: 32 requests of 1 MiB over 40 ms still make
/// 800 MB/s.
const REMOTE_IN_FLIGHT_BYTES: u64 = 32 << 20;

/// How much a capped lane may save up while idle, as time: a timer that comes this late loses
/// nothing of the average.
const BURST: Duration = Duration::from_millis(50);

/// How long an operation of a lower class waits before it gets a turn among those above it.
const AGED: Duration = Duration::from_millis(100);

/// One in that many starts goes to an aged operation, so that urgent ones keep most of the path.
const AGED_TURN: u32 = 8;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the path.
    Read,
    /// To the path.
    Write,
}

/// What a direction of a path has to do at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Load {
    /// Nothing.
    #[default]
    Idle,
    /// Less than it could have in flight.
    Some,
    /// As much as it can take, or more: the path is what holds it up.
    Full,
}

impl Direction {
    /// Both of them.
    pub const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];

    fn index(self) -> usize {
        match self {
            Direction::Read => 0,
            Direction::Write => 1,
        }
    }
}

/// What limits a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Most bytes in flight at first, per direction in the order of [`Direction::BOTH`]. One
    /// operation is always let through.
    pub in_flight_bytes: [u64; 2],
    /// Average rates that are not exceeded.
    pub caps: [Option<BytesPerSecond>; 2],
}

impl Limits {
    /// Returns the limits for a kind of path, with the caller's caps.
    pub fn new(kind: Kind, read: Option<BytesPerSecond>, write: Option<BytesPerSecond>) -> Self {
        let bytes = match kind {
            Kind::Nvme => NVME_IN_FLIGHT_BYTES,
            Kind::Remote => REMOTE_IN_FLIGHT_BYTES,
        };
        Limits { in_flight_bytes: [bytes; 2], caps: [read, write] }
    }
}

/// The right to have one operation in flight; to be returned by [`Admission::finish`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a permit that is not returned is lost to the path"]
pub struct Permit {
    direction: Direction,
    bytes: u64,
}

impl Permit {
    /// Returns which way the operation's bytes go.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns how many bytes it is for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Start this operation now.
    Start(T, Permit),
    /// Nothing may start before this time unless a permit comes back: a cap is used up.
    Wait(Duration),
    /// Nothing may start before a permit comes back or something is submitted.
    Idle,
}

/// The queue of one path. Times are those of one clock and never go back.
#[derive(Debug)]
pub struct Admission<T> {
    lanes: [Lane<T>; 2],
    turn: usize,
}

#[derive(Debug)]
struct Lane<T> {
    /// By class, each first in, first out.
    queues: [VecDeque<Waiting<T>>; 3],
    waiting_bytes: u64,
    in_flight_bytes: u64,
    in_flight: u64,
    limit_bytes: u64,
    bucket: Option<Bucket>,
    /// Starts since the last one of an aged operation.
    since_aged: u32,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    bytes: u64,
    since: Duration,
}

/// A token bucket that may go into debt by one operation, so that the average is exact whatever the
/// sizes are.
#[derive(Debug)]
struct Bucket {
    bps: f64,
    tokens: f64,
    at: Duration,
}

impl Bucket {
    fn new(cap: BytesPerSecond) -> Self {
        Bucket { bps: cap.0.max(1.0), tokens: 0.0, at: Duration::ZERO }
    }

    /// Returns when the next operation may start: now, or later.
    fn ready(&mut self, now: Duration) -> Duration {
        let most = self.bps * BURST.as_secs_f64();
        let since = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + self.bps * since).min(most);
        self.at = self.at.max(now);
        if self.tokens >= 0.0 {
            return now;
        }
        // A nanosecond more than needed, lest rounding wake us just before.
        now + Duration::from_secs_f64(-self.tokens / self.bps) + Duration::from_nanos(1)
    }
}

impl<T> Lane<T> {
    fn new(limit_bytes: u64, cap: Option<BytesPerSecond>) -> Self {
        Lane {
            queues: [VecDeque::new(), VecDeque::new(), VecDeque::new()],
            waiting_bytes: 0,
            in_flight_bytes: 0,
            in_flight: 0,
            limit_bytes,
            bucket: cap.map(Bucket::new),
            since_aged: 0,
        }
    }

    /// Returns which queue is next: the most urgent, or the longest waiting of the aged ones below
    /// it when that has its turn.
    fn pick(&self, now: Duration) -> Option<(usize, bool)> {
        let best = self.queues.iter().position(|queue| !queue.is_empty())?;
        let aged = (best + 1..self.queues.len())
            .filter_map(|class| Some((self.queues[class].front()?.since, class)))
            .filter(|(since, _)| *since + AGED <= now)
            .min();
        Some(match aged {
            Some((_, class)) if self.since_aged + 1 >= AGED_TURN => (class, true),
            _ => (best, false),
        })
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.in_flight == 0 || self.in_flight_bytes + bytes <= self.limit_bytes
    }

    /// Returns when the next operation may start, and from which queue, as [`Lane::pick`] does; `None`
    /// without one, or without room for it.
    fn ready(&mut self, now: Duration) -> Option<(Duration, (usize, bool))> {
        let (class, aged) = self.pick(now)?;
        let bytes = self.queues[class].front()?.bytes;
        if !self.has_room(bytes) {
            return None;
        }
        let ready = self.bucket.as_mut().map_or(now, |bucket| bucket.ready(now));
        Some((ready, (class, aged)))
    }

    /// Starts the next operation, or returns when tokens allow it, or `None` without either.
    fn next(&mut self, now: Duration) -> Option<Result<Waiting<T>, Duration>> {
        let (ready, (class, aged)) = self.ready(now)?;
        if ready > now {
            return Some(Err(ready));
        }
        let waiting = self.queues[class].pop_front()?;
        let bytes = waiting.bytes;
        if let Some(bucket) = &mut self.bucket {
            bucket.tokens -= bytes as f64;
        }
        self.since_aged = if aged { 0 } else { self.since_aged.saturating_add(1) };
        self.waiting_bytes -= bytes;
        self.in_flight_bytes += bytes;
        self.in_flight += 1;
        Some(Ok(waiting))
    }
}

impl<T> Admission<T> {
    /// Returns an empty queue.
    pub fn new(limits: Limits) -> Self {
        let lane = |i: usize| Lane::new(limits.in_flight_bytes[i], limits.caps[i]);
        Admission { lanes: [lane(0), lane(1)], turn: 0 }
    }

    /// Adds an operation; [`Admission::next`] will start it in its turn.
    pub fn submit(
        &mut self,
        now: Duration,
        direction: Direction,
        class: Class,
        bytes: u64,
        item: T,
    ) {
        let lane = &mut self.lanes[direction.index()];
        let queue = match class {
            Class::Demand => 0,
            Class::Prefetch => 1,
            Class::WriteBack => 2,
        };
        lane.queues[queue].push_back(Waiting { item, bytes, since: now });
        lane.waiting_bytes += bytes;
    }

    /// Returns what to do now. Directions take turns; neither waits for the other.
    pub fn next(&mut self, now: Duration) -> Next<T> {
        let mut wait: Option<Duration> = None;
        for turn in [self.turn, 1 - self.turn] {
            match self.lanes[turn].next(now) {
                Some(Ok(Waiting { item, bytes, .. })) => {
                    self.turn = 1 - turn;
                    return Next::Start(item, Permit { direction: Direction::BOTH[turn], bytes });
                }
                Some(Err(ready)) => wait = Some(wait.map_or(ready, |wait| wait.min(ready))),
                None => {}
            }
        }
        wait.map_or(Next::Idle, Next::Wait)
    }

    /// Sets how many bytes each direction has in flight at most; what is in flight stays.
    pub fn set_in_flight_bytes(&mut self, bytes: u64) {
        for lane in &mut self.lanes {
            lane.limit_bytes = bytes;
        }
    }

    /// Takes a permit back: the operation is complete.
    pub fn finish(&mut self, permit: Permit) {
        let lane = &mut self.lanes[permit.direction.index()];
        lane.in_flight_bytes -= permit.bytes;
        lane.in_flight -= 1;
    }

    /// Forgets what is in flight: it no longer keeps others from starting, and its permits must not
    /// come back.
    pub fn forget(&mut self) {
        for lane in &mut self.lanes {
            (lane.in_flight, lane.in_flight_bytes) = (0, 0);
        }
    }

    /// Takes everything out that has not started, in the order of submission within each class.
    pub fn cancel(&mut self) -> Vec<T> {
        let mut out = Vec::new();
        for lane in &mut self.lanes {
            lane.waiting_bytes = 0;
            out.extend(lane.queues.iter_mut().flat_map(|q| q.drain(..)).map(|w| w.item));
        }
        out
    }

    /// Returns bytes waiting and in flight.
    pub fn outstanding_bytes(&self, direction: Direction) -> u64 {
        let lane = &self.lanes[direction.index()];
        lane.waiting_bytes + lane.in_flight_bytes
    }

    /// Returns when something may start, now or later, as [`Admission::next`] would say; `None` if
    /// nothing waits or no permit is left for it.
    pub fn ready(&mut self, now: Duration) -> Option<Duration> {
        self.lanes.iter_mut().filter_map(|lane| Some(lane.ready(now)?.0)).min()
    }

    /// Returns how many operations are in flight.
    pub fn in_flight(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.in_flight).sum()
    }

    /// Returns what a direction has to do: it is full when that is more than it may have in flight,
    /// or just as much.
    pub fn load(&self, direction: Direction) -> Load {
        let lane = &self.lanes[direction.index()];
        if lane.waiting_bytes > 0 || lane.in_flight_bytes >= lane.limit_bytes {
            Load::Full
        } else if lane.in_flight_bytes > 0 {
            Load::Some
        } else {
            Load::Idle
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use Class::{Demand, Prefetch, WriteBack};
    use Direction::{Read, Write};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn limits(in_flight: u64, cap: Option<f64>) -> Limits {
        Limits { in_flight_bytes: [in_flight; 2], caps: [cap.map(BytesPerSecond); 2] }
    }

    fn start(admission: &mut Admission<u32>, now: Duration) -> Option<(u32, Permit)> {
        match admission.next(now) {
            Next::Start(item, permit) => Some((item, permit)),
            Next::Wait(_) | Next::Idle => None,
        }
    }

    #[test]
    fn urgent_first_and_first_come_first_served_within_a_class() {
        let mut admission = Admission::new(limits(MIB, None));
        let now = Duration::ZERO;
        for (item, class) in
            [(1, WriteBack), (2, Prefetch), (3, Demand), (4, Prefetch), (5, Demand)]
        {
            admission.submit(now, Read, class, MIB, item);
        }
        let mut order = Vec::new();
        while let Some((item, permit)) = start(&mut admission, now) {
            assert!(start(&mut admission, now).is_none(), "one permit fills the lane");
            order.push(item);
            admission.finish(permit);
        }
        assert_eq!(order, [3, 5, 2, 4, 1]);
    }

    #[test]
    fn directions_take_turns_and_do_not_wait_for_each_other() {
        let mut admission = Admission::new(limits(2 * MIB, None));
        for item in 0..4 {
            admission.submit(Duration::ZERO, Read, Demand, MIB, item);
            admission.submit(Duration::ZERO, Write, WriteBack, MIB, 10 + item);
        }
        let started: Vec<_> =
            std::iter::from_fn(|| start(&mut admission, Duration::ZERO)).collect();
        let items: Vec<_> = started.iter().map(|(item, _)| *item).collect();
        assert_eq!(items, [0, 10, 1, 11]);
        assert_eq!(admission.next(Duration::ZERO), Next::Idle);
        assert_eq!(admission.outstanding_bytes(Read), 4 * MIB);
        assert_eq!(admission.load(Write), Load::Full);
        started.into_iter().for_each(|(_, permit)| admission.finish(permit));
        assert_eq!(admission.in_flight(), 0);
        assert_eq!(admission.cancel(), [2, 3, 12, 13]);
        assert_eq!(admission.outstanding_bytes(Read), 0);
    }

    #[test]
    fn an_operation_larger_than_the_limit_goes_alone() {
        let mut admission = Admission::new(limits(MIB, None));
        admission.submit(Duration::ZERO, Write, Demand, 8 * MIB, 1);
        admission.submit(Duration::ZERO, Write, Demand, 1, 2);
        let (item, permit) = start(&mut admission, Duration::ZERO).unwrap();
        assert_eq!(item, 1);
        assert!(start(&mut admission, Duration::ZERO).is_none());
        admission.finish(permit);
        let (item, permit) = start(&mut admission, Duration::ZERO).unwrap();
        assert_eq!(item, 2);
        admission.finish(permit);
    }

    /// Runs a lane that always has more to do, one operation in flight for `service`, and returns
    /// the classes in the order of their starts.
    fn flood(classes: &[Class], starts: usize, service: Duration) -> Vec<u32> {
        let mut admission = Admission::new(limits(MIB, None));
        let clock = Clock::manual();
        let mut order = Vec::new();
        for _ in 0..starts {
            for (index, class) in classes.iter().enumerate() {
                admission.submit(clock.now(), Read, *class, MIB, index as u32);
            }
            let (item, permit) = start(&mut admission, clock.now()).unwrap();
            order.push(item);
            clock.advance(service);
            admission.finish(permit);
        }
        order
    }

    #[test]
    fn nobody_starves_and_the_urgent_keep_most() {
        let order = flood(&[Demand, Prefetch, WriteBack], 1000, Duration::from_millis(2));
        let count = |class| order.iter().filter(|item| **item == class).count();
        assert!(count(0) >= 1000 * 7 / 8, "{}", count(0));
        assert!(count(1) >= 40 && count(2) >= 40, "{} {}", count(1), count(2));
    }

    /// Drives one capped lane at full load for `seconds`, waking `late` after each due time, and
    /// returns the bytes started.
    fn carried(bps: f64, sizes: &[u64], late: Duration, seconds: u64) -> u64 {
        let mut admission = Admission::new(limits(64 * MIB, Some(bps)));
        let clock = Clock::manual();
        let end = Duration::from_secs(seconds);
        let (mut bytes, mut sizes) = (0, sizes.iter().cycle());
        while clock.now() < end {
            if admission.outstanding_bytes(Write) == 0 {
                admission.submit(clock.now(), Write, WriteBack, *sizes.next().unwrap(), 0);
            }
            match admission.next(clock.now()) {
                Next::Start(_, permit) => {
                    bytes += permit.bytes();
                    admission.finish(permit);
                }
                Next::Wait(until) => {
                    assert!(until > clock.now());
                    clock.advance(until - clock.now() + late);
                }
                Next::Idle => panic!("a submitted operation is idle"),
            }
        }
        bytes
    }

    #[test]
    fn a_cap_is_met_within_one_percent_also_by_a_late_timer() {
        for (bps, late) in [(100e6, 0), (100e6, 5), (600e6, 20), (5e6, 7)] {
            let late = Duration::from_millis(late);
            let bytes = carried(bps, &[MIB, 4096, 3 * MIB / 2], late, 60) as f64;
            let expected = bps * 60.0;
            assert!((bytes / expected - 1.0).abs() < 0.01, "{bps} {late:?} {}", bytes / expected);
        }
    }

    proptest! {
        #[test]
        fn permits_return_and_everything_starts_once(
            operations in prop::collection::vec((any::<bool>(), 0u8..3, 1u64..3_000_000), 1..60),
            capped in any::<bool>(),
        ) {
            let mut admission = Admission::new(limits(4 * MIB, capped.then_some(50e6)));
            let clock = Clock::manual();
            for (item, (read, class, bytes)) in operations.iter().enumerate() {
                let direction = if *read { Read } else { Write };
                let class = [Demand, Prefetch, WriteBack][usize::from(*class)];
                admission.submit(clock.now(), direction, class, *bytes, item as u32);
            }
            let (mut seen, mut held) = (vec![false; operations.len()], Vec::new());
            loop {
                match admission.next(clock.now()) {
                    Next::Start(item, permit) => {
                        prop_assert!(!std::mem::replace(&mut seen[item as usize], true));
                        held.push(permit);
                        for direction in Direction::BOTH {
                            let of = held.iter().filter(|p| p.direction() == direction);
                            let bytes: Vec<_> = of.map(Permit::bytes).collect();
                            let sum = bytes.iter().sum::<u64>();
                            prop_assert!(sum <= 4 * MIB || bytes.len() == 1);
                        }
                    }
                    Next::Wait(until) => clock.advance(until - clock.now()),
                    Next::Idle if held.is_empty() => break,
                    Next::Idle => admission.finish(held.swap_remove(0)),
                }
            }
            prop_assert!(seen.into_iter().all(|seen| seen));
            prop_assert_eq!(admission.in_flight(), 0);
            prop_assert_eq!(admission.outstanding_bytes(Read), 0);
            prop_assert_eq!(admission.outstanding_bytes(Write), 0);
        }
    }
}
