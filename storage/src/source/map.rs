//! A file mapped into memory, read-only: the one place of this module that needs `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// The whole of a file as it was long when it was mapped.
///
/// If another process truncates the file meanwhile, touching the lost pages raises SIGBUS and ends
/// this process; [`Mapping::read`] asks for the length first, which narrows that window but cannot
/// close it. Whoever cannot rule this out uses direct reads, which return an error instead.
#[derive(Debug)]
pub(super) struct Mapping {
    map: Mmap,
}

impl Mapping {
    /// Maps `file`.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is private and read-only, and its bytes are only ever copied out, never
        // lent. A writer in another process can change what a copy sees, and a truncation raises
        // SIGBUS; both are the documented price of asking for a map.
        let map = unsafe { Mmap::map(file)? };
        Ok(Mapping { map })
    }

    /// Copies the bytes from `offset` on into `out`.
    pub(super) fn read(&self, file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = offset.checked_add(out.len() as u64).ok_or_else(short)?;
        if file.metadata()?.len() < end {
            return Err(short());
        }
        let from = usize::try_from(offset).map_err(|_| short())?;
        let bytes = self.map.get(from..from + out.len()).ok_or_else(short)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}
