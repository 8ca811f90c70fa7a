//! Whether a path takes writes: after it refused one it is left alone for a while, while it hangs
//! altogether.

use std::time::Duration;

use crate::error::Errno;

/// How long a path that refused a write is left alone while another will do, or, when it was full,
/// altogether unless space is freed on it before.
const REST: Duration = Duration::from_secs(1);

/// Whether a path takes writes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Health {
    /// When it last refused one, on the store's clock, and why.
    pub(super) refused: Option<(Duration, Errno)>,
    /// Nothing new goes there: it is only read, or is being emptied.
    pub(super) retired: bool,
    /// It does not answer.
    pub(super) hung: bool,
}

impl Health {
    pub(super) fn resting(&self, now: Duration) -> bool {
        let refused = self.refused.is_some_and(|(at, _)| now.saturating_sub(at) < REST);
        self.retired || self.hung || refused
    }

    /// Returns whether a chunk may be offered to it.
    pub(super) fn usable(&self, now: Duration) -> bool {
        let refuses = self.resting(now) && self.refused.is_some_and(|(_, errno)| full(errno));
        !self.retired && !self.hung && !refuses
    }
}

/// Returns whether an error says that there is no room, which trying again does not change.
pub(super) fn full(errno: Errno) -> bool {
    matches!(errno.0, libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
}
