//! Which errors may come of an operation: those that the round's settings explain, and no others.

use tensortier_storage::error::{Errno, Error, ErrorKind};
use tensortier_storage::id::Tier;

use super::config::Config;
use super::faults::{ETIMEDOUT, READ_ERRORS};

impl Config {
    /// Returns whether an error may come of an operation in such a round. What was dropped is told of
    /// by the model, not here.
    pub(super) fn explains(&self, error: &Error) -> bool {
        match error {
            // Alone there is always room beside the few leases that are held.
            Error::BudgetExhausted { tier: Tier::Host, .. } => !self.single,
            Error::BudgetExhausted { tier: Tier::Device(_), .. } => self.device_budget.is_some(),
            Error::PathHung { .. } => self.paths_hang,
            // It answers again before anybody could say that it hangs.
            Error::Read { source: Errno(ETIMEDOUT), .. } if self.paths_hang => true,
            // A closed path or a range that does not fit are never what was asked for.
            Error::Read { source, .. } => self.reads_fail && READ_ERRORS.contains(&source.0),
            Error::NoSpace { .. } => self.writes_fail || self.paths_hang,
            // A path that is to be removed may not answer for as long as one waits.
            Error::Timeout { .. } => self.paths_hang,
            other => other.kind() == ErrorKind::Corrupt && self.bits_flip,
        }
    }
}
