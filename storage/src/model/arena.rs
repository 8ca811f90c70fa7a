//! Who waits for memory hears of a frame that comes back, whenever that is.

use std::sync::Arc;

use crate::arena::{Arena, FrameMut, GRANULE};
use crate::sync::{channel, check, thread};

/// Takes a frame as the mover does: says that it waits, looks, and waits to be told.
fn take(arena: &Arena, told: &channel::Receiver<()>) -> FrameMut {
    loop {
        arena.set_starving(true);
        if let Some(frame) = arena.try_alloc(GRANULE).unwrap() {
            arena.set_starving(false);
            return frame;
        }
        told.recv().unwrap();
    }
}

#[test]
fn a_frame_that_comes_back_while_somebody_begins_to_wait_is_not_missed() {
    check(2, || {
        let arena = Arena::new(2 * GRANULE).unwrap();
        let (tell, told) = channel::unbounded();
        arena.on_freed(move || {
            let _ = tell.send(());
        });
        let frames = [(); 2].map(|()| arena.try_alloc(GRANULE).unwrap().unwrap());
        // One has two holders, and either may be the last.
        let [mut changed, shared] = frames;
        let shared = shared.share();
        let other = shared.clone();
        let threads = [
            thread::spawn(move || drop(shared)),
            thread::spawn(move || drop(other)),
            thread::spawn(move || {
                changed[0] = 7;
                drop(changed);
            }),
        ];
        let (first, second) = (take(&arena, &told), take(&arena, &told));
        assert_ne!(first.as_ptr(), second.as_ptr());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop((first, second));
        assert_eq!(arena.usage().in_use, 0);
    });
}

#[test]
fn a_guard_gets_its_frame_when_the_last_part_is_gone() {
    check(2, || {
        let arena = Arc::new(Arena::new(2 * GRANULE).unwrap());
        let frame = arena.try_alloc(2 * GRANULE).unwrap().unwrap();
        let (guard, parts) = frame.fill_from_outside();
        let (first, second) = parts.split_at(GRANULE as usize);
        let (tell, told) = channel::unbounded();
        for (byte, mut part) in [(1, first), (2, second)] {
            let tell = tell.clone();
            thread::spawn(move || {
                part.fill(byte);
                drop(part);
                tell.send(()).unwrap();
            });
        }
        told.recv().unwrap();
        let guard = guard.try_finish();
        told.recv().unwrap();
        let frame = guard.or_else(|guard| guard.try_finish()).ok().unwrap();
        assert_eq!((frame[0], frame[GRANULE as usize]), (1, 2));
    });
}
