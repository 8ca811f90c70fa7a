//! Keys of objects: any UTF-8 up to 64 KiB; never a file name.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::units::Bytes;

/// A checked key; clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX_BYTES: usize = 64 << 10;

    /// Checks `key`.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`] above [`Key::MAX_BYTES`].
    pub fn new(key: &str) -> Result<Self> {
        if key.len() > Key::MAX_BYTES {
            return Err(Error::KeyTooLong { bytes: Bytes(key.len() as u64) });
        }
        Ok(Key::checked(key))
    }

    /// Returns a key that was checked before.
    pub(super) fn checked(key: &str) -> Self {
        Key(Arc::from(key))
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::ops::Deref for Key {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    /// Writes at most some 80 bytes: a key of 64 KiB must not fill a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        if self.0.len() <= SHOWN {
            return f.pad(&self.0);
        }
        let end = (0..=SHOWN).rev().find(|at| self.0.is_char_boundary(*at)).unwrap_or(0);
        write!(f, "{}... ({} bytes)", &self.0[..end], self.0.len())
    }
}
