//! How fast a path is each way and how much the two ways share, and how that is learned.

/// The speed of a path. Reading R and writing W bytes keeps it busy for
/// `max(R/r, W/w) + k * min(R/r, W/w)` seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathProfile {
    /// r: bytes per second when only reading.
    pub read_bps: f64,
    /// w: bytes per second when only writing.
    pub write_bps: f64,
    /// k: how much the directions share the device, from 0 (full duplex) to 1 (half duplex).
    pub sharing: f64,
}
