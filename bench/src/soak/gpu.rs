//! The emulated device of a round, and the copies that look at its memory.

use std::sync::Arc;
use std::time::Duration;

use tensortier::gpu::emulated::{Emulated, Options};
use tensortier::gpu::{Device, DeviceBuffer, Error, Event};

/// Far more than any round may take.
const MEMORY_BYTES: u64 = 1 << 30;

/// A device; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Gpu(Arc<Emulated>);

fn failed(error: Error) -> String {
    format!("the device: {error}")
}

impl Gpu {
    pub(super) fn new(lateness: Duration) -> Self {
        Gpu(Arc::new(Emulated::new(Options {
            memory_bytes: MEMORY_BYTES,
            lateness,
            ..Options::default()
        })))
    }

    pub(super) fn device(&self) -> Arc<dyn Device> {
        self.0.clone()
    }

    /// Returns a buffer's bytes.
    ///
    /// # Errors
    /// What the device said.
    pub(super) fn read(&self, buffer: &DeviceBuffer) -> Result<Vec<u8>, String> {
        let stream = self.0.open_stream().map_err(failed)?;
        let into = Box::new(vec![0x5A; buffer.bytes() as usize]);
        let copy = self.0.copy_out(&stream, buffer, 0, into).map_err(failed)?;
        Ok((*copy.wait().map_err(failed)?).as_mut().to_vec())
    }

    /// Begins to write a buffer; the event says when that is done.
    ///
    /// # Errors
    /// What the device said.
    pub(super) fn write(&self, buffer: &mut DeviceBuffer, bytes: Vec<u8>) -> Result<Event, String> {
        let stream = self.0.open_stream().map_err(failed)?;
        let all = 0..bytes.len();
        self.0.copy_in(&stream, Arc::new(bytes), all, buffer, 0).map_err(failed)
    }

    /// Returns how many bytes of its memory are taken.
    pub(super) fn in_use(&self) -> u64 {
        let memory = self.0.memory();
        memory.total_bytes - memory.free_bytes
    }
}
