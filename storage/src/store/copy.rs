//! Copying bytes out of objects and into them, chunk by chunk, each under a lease of its own.

use std::ops::Range;

use crate::codec::copy;
use crate::error::Result;
use crate::mover::Handle;
use crate::residency::Mode;

use super::block_on::block_on;
use super::span::{Part, Span};
use super::{Ahead, BoxFuture, Named, Returned, Store};

impl Store {
    /// Copies the whole tensor into `into`.
    ///
    /// # Errors
    /// [`crate::error::Error::NotFound`]; [`crate::error::Error::OutOfRange`] when the lengths differ;
    /// the errors of a lease. `into` may have been filled in part then.
    pub fn get_into(&self, object: &(impl Named + ?Sized), into: &mut [u8]) -> Result<()> {
        block_on(self.copy_out(self.whole(object), into))
    }

    /// As [`Store::get_into`], without blocking, and gives the buffer back. Begins when it is first
    /// polled, and copies then, as chunks arrive. A chunk that arrived holds memory until it is polled:
    /// many of these at once in little memory want [`super::StoreBuilder::wait_for_leases`].
    ///
    /// # Errors
    /// As [`Store::get_into`], with the buffer.
    pub fn get_into_async<B>(
        &self,
        object: &(impl Named + ?Sized),
        into: B,
    ) -> BoxFuture<Result<B, Returned<B>>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        self.copy_out_async(self.whole(object), into)
    }

    /// Copies the bytes `range` of the tensor into `into`; reads only the chunks it touches.
    ///
    /// # Errors
    /// As [`Store::get_into`]; [`crate::error::Error::OutOfRange`] also when the range leaves the
    /// tensor.
    pub fn get_range_into(
        &self,
        object: &(impl Named + ?Sized),
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<()> {
        block_on(self.copy_out(self.span(object, range), into))
    }

    /// As [`Store::get_range_into`], without blocking, and gives the buffer back.
    ///
    /// # Errors
    /// As [`Store::get_range_into`], with the buffer.
    pub fn get_range_into_async<B>(
        &self,
        object: &(impl Named + ?Sized),
        range: Range<u64>,
        into: B,
    ) -> BoxFuture<Result<B, Returned<B>>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        self.copy_out_async(self.span(object, range), into)
    }

    /// As [`Store::get_into`] of each pair in turn, with all of them read ahead as one. Each has its
    /// own outcome; one that fails stops no other.
    pub fn get_into_many<B: AsMut<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (impl Named, B)>,
    ) -> Vec<Result<()>> {
        let pairs = pairs.into_iter().map(|(object, into)| self.pair(&object, into)).collect();
        let outcomes = block_on(self.copy_out_many(pairs));
        outcomes.into_iter().map(|(outcome, _)| outcome).collect()
    }

    /// As [`Store::get_into_many`], without blocking, and gives each buffer back.
    pub fn get_into_many_async<B>(
        &self,
        pairs: impl IntoIterator<Item = (impl Named, B)>,
    ) -> BoxFuture<Vec<Result<B, Returned<B>>>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let pairs = pairs.into_iter().map(|(object, into)| self.pair(&object, into)).collect();
        let store = self.clone();
        Box::pin(async move {
            let outcomes = store.copy_out_many(pairs).await;
            outcomes.into_iter().map(|(outcome, buffer)| filled(outcome, buffer)).collect()
        })
    }

    /// Copies `bytes` over the bytes `range` of the tensor, chunk by chunk, each under an exclusive
    /// lease: who reads meanwhile sees whole chunks, old or new. A chunk of which some bytes stay is
    /// loaded first where it is not in memory.
    ///
    /// # Errors
    /// As [`Store::get_range_into`]. The chunks before the one that failed are written then.
    pub fn write_range(
        &self,
        object: &(impl Named + ?Sized),
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<()> {
        block_on(self.copy_in(self.span(object, range), bytes))
    }

    /// As [`Store::write_range`], without blocking, and gives the buffer back. Dropped before its end
    /// it leaves whole chunks written or not.
    ///
    /// # Errors
    /// As [`Store::write_range`], with the buffer.
    pub fn write_range_async<B>(
        &self,
        object: &(impl Named + ?Sized),
        range: Range<u64>,
        bytes: B,
    ) -> BoxFuture<Result<B, Returned<B>>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let (store, span) = (self.clone(), self.span(object, range));
        Box::pin(async move {
            let from = bytes.as_ref();
            let outcome = store.copy_in(span, from).await;
            filled(outcome, bytes)
        })
    }

    fn whole(&self, object: &(impl Named + ?Sized)) -> Result<Span> {
        self.find(object).map(Span::whole)
    }

    pub(super) fn span(&self, object: &(impl Named + ?Sized), range: Range<u64>) -> Result<Span> {
        Span::new(self.find(object)?, range)
    }

    /// Returns all of an object as what a buffer is to be filled with.
    fn pair<B: AsMut<[u8]>>(
        &self,
        object: &(impl Named + ?Sized),
        mut into: B,
    ) -> (Result<Span>, B) {
        (self.whole(object).and_then(|span| span.expect_len(into.as_mut().len())), into)
    }

    fn copy_out_async<B>(
        &self,
        span: Result<Span>,
        mut into: B,
    ) -> BoxFuture<Result<B, Returned<B>>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let store = self.clone();
        Box::pin(async move {
            let buffer = into.as_mut();
            let outcome = store.copy_out(span, buffer).await;
            filled(outcome, into)
        })
    }

    async fn copy_out(&self, span: Result<Span>, into: &mut [u8]) -> Result<()> {
        let span = span?.expect_len(into.len())?;
        let handle = &self.0.handle;
        copy_parts(handle, &span, into, &mut Ahead::of(handle, &span)).await
    }

    async fn copy_out_many<B: AsMut<[u8]>>(
        &self,
        pairs: Vec<(Result<Span>, B)>,
    ) -> Vec<(Result<()>, B)> {
        let good = pairs.iter().filter_map(|(span, _)| span.as_ref().ok().map(Span::chunks));
        let handle = &self.0.handle;
        let mut ahead = Ahead::new(handle, good);
        let mut outcomes = Vec::with_capacity(pairs.len());
        for (span, mut buffer) in pairs {
            let outcome = match span {
                Ok(span) => copy_parts(handle, &span, buffer.as_mut(), &mut ahead).await,
                Err(error) => Err(error),
            };
            outcomes.push((outcome, buffer));
        }
        outcomes
    }

    async fn copy_in(&self, span: Result<Span>, bytes: &[u8]) -> Result<()> {
        let span = span?.expect_len(bytes.len())?;
        let mut left = bytes;
        let handle = &self.0.handle;
        let whole = |Part { chunk, within }: &Part| within.len() as u64 == chunk.bytes();
        // At most the first and the last chunk are loaded.
        if let Some(last) = span.parts().skip(1).last().filter(|last| !whole(last)) {
            handle.prefetch(vec![last.chunk]);
        }
        for part in span.parts() {
            let name = part.chunk.name();
            let ticket = match whole(&part) {
                true => handle.lease_to_overwrite(name),
                false => handle.lease(name, Mode::Write),
            };
            let (mut hold, within) = (ticket.await?, part.within);
            let (part, rest) = left.split_at(within.len());
            copy(part, &mut hold.bytes_mut()[within]);
            left = rest;
        }
        Ok(())
    }
}

/// Copies a span into a buffer as long, going through `ahead`.
async fn copy_parts(
    handle: &Handle,
    span: &Span,
    into: &mut [u8],
    ahead: &mut Ahead,
) -> Result<()> {
    let (mut left, mut parts) = (into, span.parts());
    while let Some(Part { chunk, within }) = parts.next() {
        let hold = match ahead.lease(handle, &chunk, Mode::Read).await {
            Ok(hold) => hold,
            Err(error) => {
                // Whoever reads on behind this span must not wait for what is left of it.
                parts.for_each(|part| ahead.pass(&part.chunk));
                return Err(error);
            }
        };
        let (part, rest) = left.split_at_mut(within.len());
        copy(&hold.bytes()[within], part);
        left = rest;
    }
    Ok(())
}

/// Hands the buffer back beside either outcome.
fn filled<B>(outcome: Result<()>, buffer: B) -> Result<B, Returned<B>> {
    Returned::beside(outcome, buffer).map(|((), buffer)| buffer)
}
