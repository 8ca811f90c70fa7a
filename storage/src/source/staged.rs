//! Reading any byte range through a read that only takes aligned offsets, lengths and memory.

use std::io;
use std::ops::Range;

/// The unit of alignment: no device of today asks for more.
const ALIGN: u64 = 4096;

/// Memory that starts on an aligned address, without `unsafe`: a vector that is a little longer
/// than needed, used from its first aligned byte on.
#[derive(Debug)]
pub(super) struct Staging {
    memory: Vec<u8>,
    skip: usize,
    bytes: usize,
}

impl Staging {
    /// Allocates `bytes`, rounded up to the alignment.
    pub(super) fn new(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(ALIGN as usize);
        let memory = vec![0; bytes + ALIGN as usize];
        let skip = memory.as_ptr().align_offset(ALIGN as usize).min(ALIGN as usize);
        Staging { memory, skip, bytes }
    }

    fn aligned(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + self.bytes]
    }
}

/// Fills `out` with the bytes of `range` by aligned reads of at most the staging memory each. A
/// short read is resumed; one that brings nothing new means that the file ends there.
///
/// # Errors
/// What `read` says, or `UnexpectedEof`.
pub(super) fn read_staged(
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    staging: &mut Staging,
    range: Range<u64>,
    out: &mut [u8],
) -> io::Result<()> {
    debug_assert_eq!(range.end - range.start, out.len() as u64);
    let mut at = range.start;
    let mut out = out;
    while at < range.end {
        let block = at / ALIGN * ALIGN;
        let aligned = staging.aligned();
        let wanted = (range.end - block).next_multiple_of(ALIGN).min(aligned.len() as u64);
        let got = read(&mut aligned[..wanted as usize], block)?;
        let end = (block + got as u64).min(range.end);
        if end <= at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (head, rest) = out.split_at_mut((end - at) as usize);
        head.copy_from_slice(&aligned[(at - block) as usize..(end - block) as usize]);
        out = rest;
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads from `bytes` as a direct file does, at most `most` bytes at a time.
    fn aligned_reader(
        bytes: &[u8],
        most: usize,
    ) -> impl FnMut(&mut [u8], u64) -> io::Result<usize> + '_ {
        move |into, offset| {
            let aligned = |value: usize| value.is_multiple_of(ALIGN as usize);
            if !aligned(into.as_ptr().addr()) || !aligned(into.len()) || !aligned(offset as usize) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let n = rest.len().min(into.len()).min(most);
            into[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        }
    }

    proptest! {
        #[test]
        fn any_range_is_read_byte_for_byte(
            total in 0usize..40_000,
            cut in 0usize..40_000,
            length in 0usize..40_000,
            most in 4096usize..20_000,
        ) {
            let bytes: Vec<u8> = (0..total).map(|i| (i * 7 + i / 256) as u8).collect();
            let start = cut.min(total);
            let end = (start + length).min(total);
            let mut out = vec![0; end - start];
            let mut staging = Staging::new(8192);
            let range = start as u64..end as u64;
            read_staged(aligned_reader(&bytes, most), &mut staging, range, &mut out).unwrap();
            prop_assert_eq!(&out[..], &bytes[start..end]);
        }
    }

    #[test]
    fn the_end_of_the_file_is_an_error_not_a_loop() {
        let bytes = vec![1; 5000];
        let mut out = vec![0; 9000];
        let mut staging = Staging::new(4096);
        let read = aligned_reader(&bytes, usize::MAX);
        let error = read_staged(read, &mut staging, 10..9010, &mut out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
