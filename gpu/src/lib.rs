//! Devices of tensortier: memory, streams, copies; an emulated device.
//!
//! A [`Device`] is reached only through copies on streams. The emulated device needs no hardware
//! and is there for tests and for trying things out; it is opened only by its name, never as a
//! silent stand-in.

mod device;
pub mod emulated;
mod error;
mod event;
mod id;
mod page_lock;

#[cfg(any(test, feature = "testing"))]
pub mod conformance;

use std::sync::Arc;

pub use device::{CopyOut, Device, DeviceBuffer, HostSource, HostTarget, Memory, Stream};
pub use error::{Error, Result};
pub use event::Event;
pub use id::DeviceId;
pub use page_lock::{HostMemory, PageLock};

/// Opens the device of this name; today there is only `emulated`.
///
/// # Errors
/// [`Error::Unavailable`] if no device has that name.
pub fn open(name: &str) -> Result<Arc<dyn Device>> {
    if name == emulated::NAME {
        return Ok(Arc::new(emulated::Emulated::new(emulated::Options::default())));
    }
    Err(Error::Unavailable { name: name.to_owned(), available: vec![emulated::NAME] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulated_device_is_opened_by_its_name_only() {
        assert_eq!(open("emulated").unwrap().name(), "emulated");
        for name in ["", "auto", "cuda:0", "Emulated"] {
            let error = open(name).unwrap_err().to_string();
            assert!(error.ends_with("name one of: emulated"), "{error}");
        }
    }
}
