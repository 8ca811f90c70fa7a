//! What the paths carry at this moment: the raw path stores reading and writing at once, without the
//! store above them. The yardstick for what the store achieves.

use std::time::{Duration, Instant};

use crate::arena::{Arena, FillGuard, FrameMut, FrameRef, granules_up};
use crate::error::{Error, Result};
use crate::id::Class;
use crate::path::{Extent, PathStore};
use crate::sync::channel::{self, Receiver, Sender};

use super::Store;

/// Bytes of one transfer, unless many paths have to share the memory.
const TRANSFER_BYTES: u64 = 4 << 20;

/// Memory that a measurement takes at most, in bytes.
const MEMORY_BYTES: u64 = 32 << 20;

/// Transfers under way per path and direction: the next waits while one moves.
const DEPTH: usize = 2;

/// Frames per path and direction, used in turn: what moves bytes over so few that they stay in a
/// processor's cache is faster than anything that has work to do (2.6 instead of 2.2 GB/s on a
/// virtual drive).
const FRAMES: usize = 4;

/// Extents that are read and written in turn, per path and direction: more than a device's own
/// cache would hide.
const EXTENTS: usize = 32;

/// The longest time spent on writing what will be read.
const PREPARE: Duration = Duration::from_millis(500);

/// What one path carried while all paths were read and written at once.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct PathRates {
    /// Bytes per second read.
    pub read_bps: f64,
    /// Bytes per second written.
    pub write_bps: f64,
}

/// A transfer ended.
struct Ended {
    lane: usize,
    slot: usize,
    ok: bool,
}

/// One direction of one path.
struct Lane<'a> {
    path: &'a dyn PathStore,
    extents: Vec<Extent>,
    next: usize,
    frames: Vec<Slot>,
    moved: u64,
    reads: bool,
}

/// A frame of a lane, at rest or given to a path.
enum Slot {
    Here(FrameMut),
    Filling(FillGuard),
    Written(FrameRef),
    Lost,
}

impl Store {
    /// Reads and writes all paths at once for `duration` with memory and space of its own (at most
    /// 32 MiB and 256 MiB per path, both given back) and returns what each carried. A path without
    /// space carries nothing. Meant for a store at rest: it waits up to `duration` for transfers
    /// under way to end first.
    ///
    /// # Errors
    /// [`Error::System`] when there is no memory for it, [`Error::Closed`].
    pub fn measure_paths(&self, duration: Duration) -> Result<Vec<PathRates>> {
        self.check_open()?;
        let paths = self.0.handle.shared.paths.all();
        let begin = Instant::now();
        let busy = || {
            paths.iter().any(|path| {
                let outstanding = path.store.outstanding();
                outstanding.read_bytes + outstanding.write_bytes > 0
            })
        };
        while busy() && begin.elapsed() < duration {
            std::thread::sleep(Duration::from_millis(1));
        }
        let slots = (paths.len() * 2 * FRAMES) as u64;
        let bytes = granules_up((MEMORY_BYTES / slots).min(TRANSFER_BYTES));
        let arena = Arena::new(bytes * slots)?;
        let mut lanes = Vec::new();
        for path in &paths {
            for reads in [true, false] {
                lanes.push(Lane::new(path.store.as_ref(), &arena, bytes, reads)?);
            }
        }
        let (done, ended) = channel::unbounded();
        // The extents to be read are written first, by as much as the time allows.
        prepare(&mut lanes, &done, &ended);
        let elapsed = run(&mut lanes, &done, &ended, duration);
        let rates = lanes.chunks(2).map(|pair| PathRates {
            read_bps: pair[0].moved as f64 / elapsed,
            write_bps: pair[1].moved as f64 / elapsed,
        });
        Ok(rates.collect())
    }
}

fn prepare(lanes: &mut [Lane<'_>], done: &Sender<Ended>, ended: &Receiver<Ended>) {
    let deadline = Instant::now() + PREPARE;
    for lane in lanes.iter_mut() {
        lane.reads = !lane.reads;
    }
    let mut written = vec![0; lanes.len()];
    let mut under_way = 0;
    for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| !lane.reads) {
        under_way += usize::from(lane.start(index, 0, done));
    }
    while under_way > 0 {
        let Ok(end) = ended.recv() else { break };
        under_way -= 1;
        let lane = &mut lanes[end.lane];
        lane.end(&end);
        written[end.lane] += usize::from(end.ok);
        if end.ok && written[end.lane] < lane.extents.len() && Instant::now() < deadline {
            under_way += usize::from(lane.start(end.lane, end.slot, done));
        }
    }
    for (lane, written) in lanes.iter_mut().zip(written) {
        lane.reads = !lane.reads;
        if lane.reads {
            lane.keep_extents(written);
        }
        (lane.moved, lane.next) = (0, 0);
    }
}

/// Keeps every lane busy for `duration`; returns the seconds in which what was counted moved.
fn run(
    lanes: &mut [Lane<'_>],
    done: &Sender<Ended>,
    ended: &Receiver<Ended>,
    duration: Duration,
) -> f64 {
    let begin = Instant::now();
    let mut under_way = 0;
    for slot in 0..DEPTH {
        for (index, lane) in lanes.iter_mut().enumerate() {
            under_way += usize::from(lane.start(index, slot, done));
        }
    }
    let mut elapsed = f64::MIN_POSITIVE;
    while under_way > 0 {
        let Ok(end) = ended.recv() else { break };
        under_way -= 1;
        let in_time = begin.elapsed() < duration;
        let lane = &mut lanes[end.lane];
        let before = lane.moved;
        lane.end(&end);
        if !in_time {
            lane.moved = before;
            continue;
        }
        elapsed = begin.elapsed().as_secs_f64();
        if end.ok {
            let slot = (end.slot + DEPTH) % FRAMES;
            under_way += usize::from(lane.start(end.lane, slot, done));
        }
    }
    elapsed
}

impl<'a> Lane<'a> {
    fn new(path: &'a dyn PathStore, arena: &Arena, bytes: u64, reads: bool) -> Result<Self> {
        let frame = |_| match arena.try_alloc(bytes)? {
            Some(mut frame) => {
                frame.fill(0x5A);
                Ok(Slot::Here(frame))
            }
            None => Err(Error::Closed),
        };
        let frames = (0..FRAMES).map(frame).collect::<Result<Vec<_>>>()?;
        let extents = (0..EXTENTS).map_while(|_| path.reserve(bytes).ok()).collect();
        Ok(Lane { path, extents, next: 0, frames, moved: 0, reads })
    }

    /// Gives back the extents from number `count` on: nothing was written there.
    fn keep_extents(&mut self, count: usize) {
        for extent in self.extents.drain(count.min(self.extents.len())..) {
            self.path.free(extent);
        }
    }

    /// Starts the lane's next transfer in a slot; returns whether there is one.
    fn start(&mut self, lane: usize, slot: usize, done: &Sender<Ended>) -> bool {
        if self.extents.is_empty() {
            return false;
        }
        let Slot::Here(frame) = std::mem::replace(&mut self.frames[slot], Slot::Lost) else {
            return false;
        };
        let extent = &self.extents[self.next % self.extents.len()];
        self.next += 1;
        let done = done.clone();
        if self.reads {
            let (guard, into) = frame.fill_from_outside();
            self.frames[slot] = Slot::Filling(guard);
            let end = move |ok| drop(done.send(Ended { lane, slot, ok }));
            self.path.read(extent, 0, into, Class::Demand, Box::new(move |r| end(r.is_ok())));
        } else {
            let frame = frame.share();
            let from = frame.whole();
            self.frames[slot] = Slot::Written(frame);
            let end = move |ok| drop(done.send(Ended { lane, slot, ok }));
            self.path.write(extent, from, Class::WriteBack, Box::new(move |r| end(r.is_ok())));
        }
        true
    }

    fn end(&mut self, end: &Ended) {
        let slot = &mut self.frames[end.slot];
        let frame = match std::mem::replace(slot, Slot::Lost) {
            Slot::Filling(guard) => guard.try_finish().ok(),
            Slot::Written(frame) => frame.try_exclusive().ok(),
            Slot::Here(_) | Slot::Lost => None,
        };
        if let Some(frame) = frame {
            self.moved += if end.ok { frame.len() as u64 } else { 0 };
            *slot = Slot::Here(frame);
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.keep_extents(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::memory::{MemoryPath, Mischief};
    use std::sync::Arc;

    #[test]
    fn every_path_is_measured_and_everything_is_given_back() {
        let paths: Vec<_> =
            (0..3).map(|i| Arc::new(MemoryPath::new(&format!("{i}"), 1e9))).collect();
        paths[2].set_mischief(Mischief { quota_bytes: 4096, ..Mischief::default() });
        let builder = paths.iter().fold(Store::builder().host_budget(1 << 20), |builder, path| {
            builder.path_store(Arc::clone(path) as Arc<dyn PathStore>)
        });
        let store = builder.open().unwrap();
        let rates = store.measure_paths(Duration::from_millis(50)).unwrap();
        assert!(rates[..2].iter().all(|rate| rate.read_bps > 0.0 && rate.write_bps > 0.0));
        assert_eq!(rates[2], PathRates::default());
        assert!(paths.iter().all(|path| path.counters().used_bytes == 0));
        assert_eq!(store.stats().host.in_use, 0);
    }
}
