//! What every device must do, as a function that any implementation can be run through.

use std::sync::Arc;

use crate::device::{Device, DeviceBuffer, Stream};
use crate::error::{Error, Result};

/// Runs a device through the contract of [`Device`]; it needs 64 KiB of device memory.
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
    memory_is_counted(device).map_err(|error| failed("memory", error))?
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{CopyOut, HostSource, HostTarget, Memory};
    use crate::emulated::{Emulated, Options};
    use crate::event::Event;
    use crate::id::DeviceId;
    use parking_lot::Mutex;
    use std::ops::Range;
    use std::time::Duration;

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fault {
        None,
        KeepsSources,
        DoneTooEarly,
        RefusesNothing,
        ForgetsDroppedBuffers,
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
        let options = Options { memory_bytes: 1 << 20, lateness: Duration::from_millis(20) };
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
    }
}
