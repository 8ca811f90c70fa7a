//! What every device must do, as a function that any implementation can be run through.

use std::ops::Range;
use std::sync::Arc;

use crate::device::{Device, DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::page_lock::{Forever, HostMemory, PageLock};

/// Pages of the host are no longer than this on systems that devices are used on.
const PAGE_BYTES: usize = 64 << 10;

/// Runs a device through the contract of [`Device`]; it needs 512 KiB of device memory and to page-lock
/// as much. Leaves twice that behind: memory that is locked and filled is never given back.
///
/// # Errors
/// The first thing that is not as it must be.
pub fn check(device: &dyn Device) -> Result<(), String> {
    let failed = |what: &str, error: Error| format!("{what}: {error}");
    copies_keep_their_order(device).map_err(|error| failed("copies", error))??;
    events_order_streams(device).map_err(|error| failed("events", error))??;
    a_done_copy_is_there_and_has_let_go(device).map_err(|error| failed("done", error))??;
    copies_of_nothing_are_legal(device).map_err(|error| failed("nothing", error))??;
    a_dropped_buffer_outlives_its_copies(device).map_err(|error| failed("drops", error))??;
    bad_ranges_are_refused(device).map_err(|error| failed("ranges", error))??;
    memory_is_counted(device).map_err(|error| failed("memory", error))??;
    pages_are_locked_once(device).map_err(|error| failed("locks", error))??;
    copies_cross_the_borders_of_locks(device).map_err(|error| failed("locked copies", error))??;
    a_dropped_lock_outlives_its_copies(device).map_err(|error| failed("dropped locks", error))?
}

/// A failure of the device (outer) or of the contract (inner).
type Outcome = Result<Result<(), String>>;

fn demand(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn read(device: &dyn Device, stream: &Stream, from: &DeviceBuffer) -> Result<Vec<u8>> {
    let target = Box::new(vec![0u8; from.bytes() as usize]);
    let mut target = device.copy_out(stream, from, 0, target)?.wait()?;
    Ok((*target).as_mut().to_vec())
}

fn copies_keep_their_order(device: &dyn Device) -> Outcome {
    let stream = device.open_stream()?;
    let mut buffer = device.allocate(10_000)?;
    let source: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
    device.copy_in(&stream, Arc::new(source.clone()), 0..10_000, &mut buffer, 0)?;
    device.copy_in(&stream, Arc::new([1u8, 2, 3]), 1..3, &mut buffer, 9_998)?;
    let mut expected = source;
    expected[9_998..].copy_from_slice(&[2, 3]);
    let got = read(device, &stream, &buffer)?;
    Ok(demand(got == expected, "a later copy on the same stream saw other bytes"))
}

fn events_order_streams(device: &dyn Device) -> Outcome {
    let (first, second) = (device.open_stream()?, device.open_stream()?);
    let mut buffer = device.allocate(64)?;
    let written = device.copy_in(&first, Arc::new([9u8; 64]), 0..64, &mut buffer, 0)?;
    let recorded = device.record(&first)?;
    device.stream_wait(&second, &recorded)?;
    let got = read(device, &second, &buffer)?;
    if let Err(why) = demand(got == [9; 64], "a stream that waited for an event saw older bytes") {
        return Ok(Err(why));
    }
    Ok(demand(written.is_done() && recorded.is_done(), "an event that was waited for is not done"))
}

fn a_done_copy_is_there_and_has_let_go(device: &dyn Device) -> Outcome {
    let (first, second) = (device.open_stream()?, device.open_stream()?);
    let mut buffer = device.allocate(4096)?;
    let source = Arc::new([7u8; 4096]);
    let copied = device.copy_in(&first, source.clone(), 0..4096, &mut buffer, 0)?;
    let (tell, told) = crossbeam_channel::bounded(1);
    copied.then(move |result| drop(tell.send(result)));
    if !matches!(told.recv(), Ok(Ok(()))) {
        return Ok(Err(String::from("who asked to be told of a copy's end was not, or wrongly")));
    }
    if let Err(why) = demand(Arc::strong_count(&source) == 1, "a done copy still holds its source")
    {
        return Ok(Err(why));
    }
    // No event orders this stream after the other: what is done is there for everybody.
    let got = read(device, &second, &buffer)?;
    Ok(demand(got == [7; 4096], "a copy was called done before its bytes were there"))
}

fn copies_of_nothing_are_legal(device: &dyn Device) -> Outcome {
    let stream = device.open_stream()?;
    let mut buffer = device.allocate(0)?;
    let source: [u8; 0] = [];
    let copied = device.copy_in(&stream, Arc::new(source), 0..0, &mut buffer, 0)?;
    let got = read(device, &stream, &buffer)?;
    Ok(demand(copied.is_done() && got.is_empty(), "a copy of nothing was not done in its turn"))
}

fn a_dropped_buffer_outlives_its_copies(device: &dyn Device) -> Outcome {
    let stream = device.open_stream()?;
    let mut buffer = device.allocate(512)?;
    device.copy_in(&stream, Arc::new([3u8; 512]), 0..512, &mut buffer, 0)?;
    let back = device.copy_out(&stream, &buffer, 0, Box::new(vec![0u8; 512]))?;
    drop((buffer, stream));
    let mut got = back.wait()?;
    Ok(demand((*got).as_mut() == [3; 512], "memory was freed before the copies queued on it"))
}

fn bad_ranges_are_refused(device: &dyn Device) -> Outcome {
    let stream = device.open_stream()?;
    let mut buffer = device.allocate(8)?;
    let source = || Arc::new([0u8; 8]);
    let refused = [
        device.copy_in(&stream, source(), 0..9, &mut buffer, 0).err(),
        device.copy_in(&stream, source(), 0..8, &mut buffer, 1).err(),
        device.copy_in(&stream, source(), 0..8, &mut buffer, u64::MAX).err(),
        device.copy_out(&stream, &buffer, 1, Box::new(vec![0u8; 8])).err(),
    ];
    let refused = refused.iter().all(|error| matches!(error, Some(Error::OutOfRange { .. })));
    Ok(demand(refused, "a copy that does not fit was not refused as out of range"))
}

fn memory_is_counted(device: &dyn Device) -> Outcome {
    let before = device.memory();
    let buffer = device.allocate(4096)?;
    let empty = device.allocate(0)?;
    let during = device.memory();
    let refused = device.allocate(before.total_bytes.saturating_add(1));
    drop((buffer, empty));
    let holds = during.free_bytes < before.free_bytes
        && device.memory() == before
        && matches!(refused, Err(Error::OutOfMemory { .. }));
    Ok(demand(holds, "allocations are not counted, not given back, or not refused"))
}

/// Returns host memory of so many pages, for good.
fn pages(count: usize) -> &'static mut [u8] {
    let memory: &'static mut [u8] = vec![0; (count + 1) * PAGE_BYTES].leak();
    let skip = memory.as_ptr().align_offset(PAGE_BYTES);
    &mut memory[skip..skip + count * PAGE_BYTES]
}

/// Locks some pages.
fn lock(device: &dyn Device, memory: &&'static mut [u8], pages: Range<usize>) -> Result<PageLock> {
    let bytes = pages.start * PAGE_BYTES..pages.end * PAGE_BYTES;
    device.page_lock(Arc::new(Forever::part(memory, bytes)))
}

fn pages_are_locked_once(device: &dyn Device) -> Outcome {
    let (memory, before) = (pages(4), device.page_locked_bytes());
    let owner = Arc::new(Forever::part(&memory, PAGE_BYTES..2 * PAGE_BYTES + 1));
    let locked = device.page_lock(Arc::clone(&owner) as Arc<dyn HostMemory>)?;
    let again = [1..2, 2..3, 0..4].map(|pages| lock(device, &memory, pages).err());
    if !again.iter().all(|error| matches!(error, Some(Error::AlreadyLocked { .. }))) {
        return Ok(Err(String::from("pages that were locked could be locked again")));
    }
    let (beside, nothing) = (lock(device, &memory, 3..4)?, lock(device, &memory, 1..1)?);
    let counted = device.page_locked_bytes() - before == locked.bytes() + beside.bytes();
    let whole = locked.bytes() > PAGE_BYTES as u64 && nothing.bytes() == 0;
    let kept = Arc::strong_count(&owner) > 1;
    drop((locked, beside, nothing));
    let over = device.page_locked_bytes() == before && Arc::strong_count(&owner) == 1;
    drop(lock(device, &memory, 0..4)?);
    if let Err(why) =
        demand(kept && over, "a lock does not keep its memory, or not only while locked")
    {
        return Ok(Err(why));
    }
    Ok(demand(counted && whole, "locked pages are not counted, or not whole"))
}

fn copies_cross_the_borders_of_locks(device: &dyn Device) -> Outcome {
    let (source, target) = (pages(4), pages(4));
    let (stream, mut buffer) = (device.open_stream()?, device.allocate(4 * PAGE_BYTES as u64)?);
    source.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
    // The first and the last page are not locked, those between by a lock each.
    let locks = [&source, &target].map(|memory| [1..2, 2..3].map(|at| lock(device, memory, at)));
    let locks: Result<Vec<_>> = locks.into_iter().flatten().collect();
    let (expected, all) = (source.to_vec(), 5..source.len() - 7);
    device.copy_in(&stream, Arc::new(source), all.clone(), &mut buffer, 5)?;
    let mut filled = device.copy_out(&stream, &buffer, 0, Box::new(target))?.wait()?;
    drop(locks?);
    let right = (*filled).as_mut()[all.clone()] == expected[all];
    Ok(demand(right, "a copy across the borders of locked memory brought other bytes"))
}

fn a_dropped_lock_outlives_its_copies(device: &dyn Device) -> Outcome {
    let (memory, before) = (pages(1), device.page_locked_bytes());
    memory.fill(6);
    let (stream, mut buffer) = (device.open_stream()?, device.allocate(PAGE_BYTES as u64)?);
    let locked = lock(device, &memory, 0..1)?;
    let copied = device.copy_in(&stream, Arc::new(memory), 0..PAGE_BYTES, &mut buffer, 0)?;
    drop(locked);
    copied.wait()?;
    if let Err(why) = demand(device.page_locked_bytes() == before, "a dropped lock still locks") {
        return Ok(Err(why));
    }
    let got = read(device, &stream, &buffer)?;
    Ok(demand(got == [6; PAGE_BYTES], "memory was unlocked before the copies queued on it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{CopyOut, HostSource, HostTarget, Memory};
    use crate::emulated::{Emulated, Options};
    use crate::event::Event;
    use crate::id::DeviceId;
    use parking_lot::Mutex;
    use std::time::Duration;

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fault {
        None,
        KeepsSources,
        DoneTooEarly,
        RefusesNothing,
        ForgetsDroppedBuffers,
        CountsNoLocks,
        LocksNothing,
        StopsAtBorders,
        KeepsLockedMemory,
    }

    /// An emulated device that breaks one clause of the contract.
    struct Broken(Emulated, Fault, Mutex<Vec<HostSource>>);

    impl std::fmt::Debug for Broken {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.1.fmt(f)
        }
    }

    impl Device for Broken {
        fn id(&self) -> DeviceId {
            self.0.id()
        }
        fn name(&self) -> &str {
            self.0.name()
        }
        fn memory(&self) -> Memory {
            self.0.memory()
        }
        fn allocate(&self, bytes: u64) -> Result<DeviceBuffer> {
            self.0.allocate(bytes)
        }
        fn page_lock(&self, memory: Arc<dyn HostMemory>) -> Result<PageLock> {
            match self.1 {
                Fault::LocksNothing => return lock(&self.0, &pages(0), 0..0),
                Fault::KeepsLockedMemory => drop(Box::leak(Box::new(Arc::clone(&memory)))),
                _ => {}
            }
            self.0.page_lock(memory)
        }
        fn page_locked_bytes(&self) -> u64 {
            if self.1 == Fault::CountsNoLocks { 0 } else { self.0.page_locked_bytes() }
        }
        fn open_stream(&self) -> Result<Stream> {
            self.0.open_stream()
        }
        fn copy_in(
            &self,
            stream: &Stream,
            from: HostSource,
            range: Range<usize>,
            to: &mut DeviceBuffer,
            offset: u64,
        ) -> Result<Event> {
            if self.1 == Fault::RefusesNothing && range.is_empty() {
                return Err(Error::StreamLost);
            }
            if self.1 == Fault::KeepsSources {
                self.2.lock().push(Arc::clone(&from));
            }
            let mut range = range;
            if self.1 == Fault::StopsAtBorders && range.len() > PAGE_BYTES {
                range.end = range.start.next_multiple_of(PAGE_BYTES);
            }
            let done = self.0.copy_in(stream, from, range, to, offset)?;
            if self.1 == Fault::DoneTooEarly {
                let prompt = Options { lateness: Duration::ZERO, ..Options::default() };
                let prompt = Emulated::new(prompt);
                return prompt.record(&prompt.open_stream()?);
            }
            Ok(done)
        }
        fn copy_out(
            &self,
            stream: &Stream,
            from: &DeviceBuffer,
            offset: u64,
            into: HostTarget,
        ) -> Result<CopyOut> {
            if self.1 == Fault::ForgetsDroppedBuffers && from.bytes() == 512 {
                // What it reads is no longer what was written there.
                return self.0.copy_out(stream, &self.0.allocate(512)?, offset, into);
            }
            self.0.copy_out(stream, from, offset, into)
        }
        fn record(&self, stream: &Stream) -> Result<Event> {
            self.0.record(stream)
        }
        fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<()> {
            self.0.stream_wait(stream, event)
        }
    }

    fn verdict(fault: Fault) -> Result<(), String> {
        let lateness = Duration::from_millis(20);
        let options = Options { memory_bytes: 1 << 20, lateness, ..Options::default() };
        check(&Broken(Emulated::new(options), fault, Mutex::default()))
    }

    #[test]
    fn a_broken_device_does_not_pass() {
        assert_eq!(verdict(Fault::None), Ok(()));
        let why = |fault| verdict(fault).unwrap_err();
        assert!(why(Fault::KeepsSources).contains("holds its source"));
        assert!(why(Fault::DoneTooEarly).contains("done"));
        assert!(why(Fault::RefusesNothing).contains("nothing"));
        assert!(why(Fault::ForgetsDroppedBuffers).contains("freed before"));
        assert!(why(Fault::CountsNoLocks).contains("not counted"));
        assert!(why(Fault::LocksNothing).contains("locked again"));
        assert!(why(Fault::KeepsLockedMemory).contains("not only while locked"));
        assert!(why(Fault::StopsAtBorders).contains("across the borders"));
    }
}
