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
    let buffer = device.allocate(10_000)?;
    let source: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
    device.copy_in(&stream, Arc::new(source.clone()), 0..10_000, &buffer, 0)?;
    device.copy_in(&stream, Arc::new([1u8, 2, 3]), 1..3, &buffer, 9_998)?;
    let mut expected = source;
    expected[9_998..].copy_from_slice(&[2, 3]);
    let got = read(device, &stream, &buffer)?;
    Ok(demand(got == expected, "a later copy on the same stream saw other bytes"))
}

fn events_order_streams(device: &dyn Device) -> Outcome {
    let (first, second) = (device.open_stream()?, device.open_stream()?);
    let buffer = device.allocate(64)?;
    let written = device.copy_in(&first, Arc::new([9u8; 64]), 0..64, &buffer, 0)?;
    let recorded = device.record(&first)?;
    device.stream_wait(&second, &recorded)?;
    let got = read(device, &second, &buffer)?;
    if let Err(why) = demand(got == [9; 64], "a stream that waited for an event saw older bytes") {
        return Ok(Err(why));
    }
    Ok(demand(written.is_done() && recorded.is_done(), "an event that was waited for is not done"))
}

fn bad_ranges_are_refused(device: &dyn Device) -> Outcome {
    let stream = device.open_stream()?;
    let buffer = device.allocate(8)?;
    let source = || Arc::new([0u8; 8]);
    let refused = [
        device.copy_in(&stream, source(), 0..9, &buffer, 0).err(),
        device.copy_in(&stream, source(), 0..8, &buffer, 1).err(),
        device.copy_in(&stream, source(), 0..8, &buffer, u64::MAX).err(),
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
