//! What an asynchronous verb gives back of what it took when it fails.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::error::Error;

/// A future on the heap: runs on any executor, on any thread, and borrows nothing.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An error, and the buffer that was handed over.
#[derive(Clone)]
pub struct Returned<B> {
    /// What went wrong.
    pub error: Error,
    /// What was handed over. One to be filled may have been filled in part.
    pub buffer: B,
}

impl<B> Returned<B> {
    /// Hands the buffer back beside either outcome.
    pub(super) fn beside<T>(outcome: Result<T, Error>, buffer: B) -> Result<(T, B), Self> {
        match outcome {
            Ok(value) => Ok((value, buffer)),
            Err(error) => Err(Returned { error, buffer }),
        }
    }
}

impl<B> From<Returned<B>> for Error {
    fn from(returned: Returned<B>) -> Self {
        returned.error
    }
}

impl<B> fmt::Debug for Returned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Returned({:?})", self.error)
    }
}

impl<B> fmt::Display for Returned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Returned<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
