//! Devices of tensortier: memory, streams, copies; an emulated device.
