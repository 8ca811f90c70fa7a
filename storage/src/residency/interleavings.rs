//! Every state that any order of events can reach keeps the invariants, and nobody waits in it for ever.

use super::*;
use std::collections::HashSet;

#[derive(Debug, Clone, Copy)]
enum Event {
    Lease(Mode),
    Prefetch,
    UnleaseRead,
    UnleaseWrite(Left),
    Filled(bool),
    Evict(Leaving),
    Flush,
    StartDrain,
    Drained(bool),
    Delete,
    Pin,
    Unpin,
}

const EVENTS: [Event; 18] = [
    Event::Lease(Mode::Read),
    Event::Lease(Mode::Write),
    Event::Prefetch,
    Event::UnleaseRead,
    Event::UnleaseWrite(Left::New),
    Event::UnleaseWrite(Left::Same),
    Event::UnleaseWrite(Left::Void),
    Event::Filled(true),
    Event::Filled(false),
    Event::Evict(Leaving::IfUnused),
    Event::Evict(Leaving::ForGood),
    Event::Flush,
    Event::StartDrain,
    Event::Drained(true),
    Event::Drained(false),
    Event::Delete,
    Event::Pin,
    Event::Unpin,
];

/// A chunk as it begins, of either kind.
fn starts() -> Vec<Residency> {
    let kind = |reproducible| Residency { reproducible, ..Residency::default() };
    vec![kind(false), kind(true)]
}

/// Whether the world can produce the event in this state.
fn possible(state: &Residency, event: Event) -> bool {
    match event {
        Event::Lease(Mode::Read) => state.readers < 2,
        Event::Lease(_) | Event::Prefetch | Event::Evict(_) | Event::Flush => true,
        Event::UnleaseRead => state.readers > 0,
        Event::UnleaseWrite(_) => state.writer && state.newest < Version(3),
        Event::Filled(_) => state.host == Host::Filling,
        Event::StartDrain => true,
        Event::Drained(_) => state.drain == Drain::Active,
        Event::Delete => !state.deleted,
        Event::Pin => state.drain == Drain::Active && state.pins < 2,
        Event::Unpin => state.pins > 0,
    }
}

/// Applies an event and checks what it says against what it did.
fn apply(state: &Residency, event: Event) -> Residency {
    let (old, mut new) = (state.clone(), state.clone());
    let dropped = match event {
        Event::Lease(mode) => {
            match new.lease(mode, false) {
                Lease::Granted { rescued } => {
                    assert_eq!(old.host, Host::Valid);
                    assert!(!old.writer && !old.deleted);
                    assert!(mode == Mode::Read || (old.readers, old.pins) == (0, 0));
                    assert!(mode == Mode::Read || old.drain != Drain::Active);
                    assert_eq!(rescued, old.drain == Drain::Queued && new.drain == Drain::None);
                }
                Lease::Load => assert_eq!((old.host, new.host), (Host::None, Host::Filling)),
                Lease::Wait => assert_eq!(old, new),
                Lease::Pinned => assert!(old == new && old.pins > 0 && mode == Mode::Write),
                Lease::Gone => assert!(old.deleted),
                Lease::Dropped => assert!(old.reproducible && old.dropped() && old == new),
            }
            false
        }
        Event::Prefetch => {
            let load = new.prefetch() == Prefetch::Load;
            assert_eq!(load, old.wants_load());
            false
        }
        Event::UnleaseRead => new.unlease_read() == After::Drop,
        Event::UnleaseWrite(left) => {
            let dropped = new.unlease_write(left) == After::Drop;
            assert!(dropped || left != Left::Void, "somebody may see them: {old:?}");
            dropped
        }
        Event::Filled(ok) => new.filled(ok) == After::Drop,
        Event::Evict(leaving) => new.evict(leaving) == Evict::Dropped,
        Event::Flush => {
            let answer = new.flush();
            assert!(answer != Evict::Nothing || !old.dirty() || old.deleted);
            assert!(!old.reproducible || !matches!(answer, Evict::WriteBack | Evict::UnderWay));
            false
        }
        Event::StartDrain => {
            assert_eq!(new.start_drain(), old.drain == Drain::Queued);
            false
        }
        Event::Drained(ok) => new.drained(ok) == After::Drop,
        Event::Delete => new.delete() == After::Drop,
        Event::Pin => {
            new.pin();
            false
        }
        Event::Unpin => {
            new.unpin();
            false
        }
    };
    let left = old.host == Host::Valid && new.host == Host::None;
    let filled_and_gone = matches!(event, Event::Filled(true)) && new.host == Host::None;
    assert_eq!(dropped, left || filled_and_gone, "{old:?} {event:?}");
    new
}

fn check(state: &Residency, event: Event, old: &Residency) {
    assert!(!(state.writer && state.readers > 0), "{old:?} {event:?}");
    assert!(!(state.writer && state.drain != Drain::None), "{old:?} {event:?}");
    assert!(!state.leased() || state.host == Host::Valid, "{old:?} {event:?}");
    // What a write that hangs reads is neither changed nor taken for another frame.
    assert!(state.pins == 0 || (state.host == Host::Valid && !state.writer), "{old:?} {event:?}");
    // Nothing newest is ever lost: only a deleted, a stored, a never written or a reproducible
    // chunk leaves.
    assert!(!state.dropped() || state.deleted || state.reproducible, "{old:?} {event:?}");
    // What is reproducible costs no I/O, and what was dropped never comes back as something else.
    if state.reproducible {
        assert_eq!((state.drain, state.stored), (Drain::None, Stored::None), "{old:?} {event:?}");
        assert!(!old.dropped() || state.dropped(), "{old:?} {event:?}");
    }
    if state.drain == Drain::Active {
        assert_eq!(state.newest, old.newest, "what drains does not change: {old:?} {event:?}");
    }
}

#[test]
fn every_reachable_state_keeps_the_invariants() {
    let mut seen: HashSet<Residency> = HashSet::new();
    let mut open = starts();
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        for event in EVENTS {
            if possible(&state, event) {
                let next = apply(&state, event);
                check(&next, event, &state);
                open.push(next);
            }
        }
    }
    assert!(seen.len() > 100, "{}", seen.len());
}

#[test]
fn whatever_happens_a_quiet_end_leaves_every_chunk_reachable() {
    // From every reachable state: finish what is under way, end the leases; then a write lease
    // must be granted at once or after one load, unless the object is deleted.
    let mut seen: HashSet<Residency> = HashSet::new();
    let mut open = starts();
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let mut quiet = state.clone();
        while quiet.readers > 0 {
            quiet.unlease_read();
        }
        if quiet.writer {
            quiet.unlease_write(Left::New);
        }
        if quiet.host == Host::Filling {
            quiet.filled(true);
        }
        quiet.start_drain();
        if quiet.drain == Drain::Active {
            quiet.drained(true);
        }
        let granted = match quiet.lease(Mode::Write, false) {
            Lease::Load => {
                quiet.filled(true);
                quiet.lease(Mode::Write, false)
            }
            Lease::Pinned => {
                // No path took it: only the end of the write that hangs helps.
                (0..quiet.pins).for_each(|_| quiet.unpin());
                quiet.lease(Mode::Write, false)
            }
            other => other,
        };
        // A chunk told to leave for good while dirty and leased is written by a later flush.
        let owed = quiet.leaving == Leaving::ForGood && quiet.dirty();
        assert!(
            matches!(granted, Lease::Granted { .. } | Lease::Gone)
                || owed
                || (granted == Lease::Dropped && quiet.reproducible),
            "{state:?} {quiet:?}"
        );
        let events = EVENTS.into_iter().filter(|event| possible(&state, *event));
        open.extend(events.map(|event| apply(&state, event)));
    }
}

#[test]
fn a_chunk_whose_write_hangs_leaves_once_it_is_written_elsewhere() {
    let mut chunk = Residency::default();
    chunk.put();
    chunk.flush();
    assert!(chunk.start_drain());
    chunk.pin();
    assert_eq!(chunk.lease(Mode::Write, false), Lease::Wait);
    assert_eq!(chunk.lease(Mode::Read, false), Lease::Granted { rescued: false });
    assert_eq!(chunk.drained(true), After::Stay);
    assert_eq!(chunk.lease(Mode::Write, false), Lease::Wait);
    assert_eq!(chunk.unlease_read(), After::Drop);
    assert_eq!(chunk.lease(Mode::Write, false), Lease::Load);
    chunk.filled(true);
    assert_eq!(chunk.lease(Mode::Write, false), Lease::Granted { rescued: false });
}

#[test]
fn a_chunk_whose_write_hangs_and_that_no_path_takes_is_read_only_until_it_ends() {
    let mut chunk = Residency::default();
    chunk.put();
    chunk.flush();
    assert!(chunk.start_drain());
    chunk.pin();
    assert_eq!(chunk.drained(false), After::Stay);
    assert_eq!(chunk.lease(Mode::Write, false), Lease::Pinned);
    assert_eq!(chunk.lease(Mode::Read, false), Lease::Granted { rescued: false });
    assert!(!chunk.at_rest() && chunk.dirty());
    chunk.unlease_read();
    assert!(!chunk.may_leave(), "its memory would not come back");
    chunk.unpin();
    assert_eq!(chunk.lease(Mode::Write, false), Lease::Granted { rescued: false });
}
