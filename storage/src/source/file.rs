//! A safetensors file opened for reading: directly past the page cache, or mapped on request.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::{Errno, Error, Result};
use crate::sync::Mutex;

use super::header::{self, Header, TensorEntry};
use super::map::Mapping;
use super::staged::{Staging, read_staged};

/// How much a direct read takes at a time.
const STAGING_BYTES: usize = 4 << 20;

/// How a file's bytes are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Past the page cache where the file system allows it, else through it.
    #[default]
    Direct,
    /// Through a memory map. If another process truncates the file meanwhile, this process may be
    /// ended by SIGBUS.
    Map,
}

/// An open tensor file. Its header was checked whole; it may be shared between threads, and direct
/// reads of one file take turns.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    header: Header,
    reader: Reader,
    how: String,
}

#[derive(Debug)]
enum Reader {
    Direct(Mutex<Staging>),
    Buffered,
    Map(Mapping),
}

impl TensorFile {
    /// Opens a safetensors file and checks its header against the file's length. Reads the header
    /// only; direct access allocates 4 MiB.
    ///
    /// # Errors
    /// [`Error::BadFile`] if it cannot be opened or mapped, or its header is refused.
    pub fn open(path: impl Into<PathBuf>, access: Access) -> Result<Self> {
        Self::open_with(path.into(), access, try_direct)
    }

    /// Opens with a way to switch to direct reads, so that tests can refuse them.
    fn open_with(
        path: PathBuf,
        access: Access,
        direct: impl FnOnce(&File) -> io::Result<Staging>,
    ) -> Result<Self> {
        let (file, bytes) = open_regular(&path)?;
        let header = read_header(&path, &file, bytes)?;
        let (reader, how) = match access {
            Access::Direct => match direct(&file) {
                Ok(staging) => (
                    Reader::Direct(Mutex::new(staging)),
                    String::from("direct reads (O_DIRECT), past the page cache"),
                ),
                Err(error) => (
                    Reader::Buffered,
                    format!("buffered reads: the file system refuses direct reads ({error})"),
                ),
            },
            Access::Map => {
                let mapping = Mapping::new(&file)
                    .map_err(|error| failed(&path, "cannot be mapped", &error, "drop --map"))?;
                (Reader::Map(mapping), String::from("a memory map, as asked for"))
            }
        };
        Ok(TensorFile { path, file, header, reader, how })
    }

    /// Returns the path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tensors in the order in which they lie in the file.
    pub fn entries(&self) -> &[TensorEntry] {
        &self.header.entries
    }

    /// Returns the file's free text.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// Returns in one sentence how the bytes are read, and why if not as asked.
    pub fn how(&self) -> &str {
        &self.how
    }

    /// Fills `out` with the tensor's bytes from `offset_bytes` on. Blocks; copies once.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the tensor is not that long, [`Error::BadFile`] if the file cannot
    /// be read or was truncated meanwhile.
    pub fn read_into(&self, entry: &TensorEntry, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let start = entry.range.start.checked_add(offset_bytes);
        let end = start.and_then(|start| start.checked_add(out.len() as u64));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= entry.range.end)) else {
            return Err(Error::OutOfRange {
                key: entry.name.clone(),
                why: format!(
                    "{} bytes from {offset_bytes} on do not lie in its {}",
                    out.len(),
                    entry.bytes()
                ),
            });
        };
        let read = match &self.reader {
            Reader::Map(mapping) => mapping.read(&self.file, start, out),
            Reader::Buffered => self.file.read_exact_at(out, start),
            Reader::Direct(staging) => {
                let read = |into: &mut [u8], at| pread(&self.file, into, at);
                read_staged(read, &mut staging.lock(), start..end, out)
            }
        };
        read.map_err(|error| {
            let what = format!("tensor {} cannot be read", header::quote(&entry.name));
            failed(&self.path, &what, &error, "fetch the file again")
        })
    }
}

/// Opens `path` and returns its length; anything but a regular file is refused before it is read,
/// as a pipe would block.
fn open_regular(path: &Path) -> Result<(File, u64)> {
    let refuse = |error: &io::Error| {
        failed(path, "cannot be opened", error, "check the path and its permissions")
    };
    let metadata = std::fs::metadata(path).map_err(|error| refuse(&error))?;
    if !metadata.is_file() {
        return Err(Error::BadFile {
            file: path.to_owned(),
            why: String::from("is not a regular file; name a .safetensors file"),
            source: None,
        });
    }
    let file = File::open(path).map_err(|error| refuse(&error))?;
    let bytes = file.metadata().map_err(|error| refuse(&error))?.len();
    Ok((file, bytes))
}

fn read_header(path: &Path, file: &File, file_bytes: u64) -> Result<Header> {
    let refuse =
        |error: io::Error| failed(path, "its header cannot be read", &error, "fetch it again");
    let mut start = vec![0; file_bytes.min(header::LENGTH_BYTES) as usize];
    file.read_exact_at(&mut start, 0).map_err(refuse)?;
    let needed = header::header_bytes(path, &start, file_bytes)?;
    start.resize(needed as usize, 0);
    file.read_exact_at(&mut start, 0).map_err(refuse)?;
    header::parse_header(path, &start, file_bytes)
}

/// Switches `file` to direct reads and proves with one that they work; on refusal the file reads
/// through the page cache as before.
fn try_direct(file: &File) -> io::Result<Staging> {
    let before = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, before | OFlags::DIRECT)?;
    let mut staging = Staging::new(STAGING_BYTES);
    let mut probe = [0];
    match read_staged(|into, at| pread(file, into, at), &mut staging, 0..1, &mut probe) {
        Ok(()) => Ok(staging),
        Err(error) => {
            rustix::fs::fcntl_setfl(file, before)?;
            Err(error)
        }
    }
}

fn pread(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *into, at))?)
}

/// Words a failure of the system about a tensor file.
pub(super) fn failed(path: &Path, what: &str, error: &io::Error, remedy: &str) -> Error {
    let why = if error.kind() == io::ErrorKind::UnexpectedEof {
        format!("{what}: it was truncated while being read; {remedy}")
    } else {
        format!("{what}: {error}; {remedy}")
    };
    let source = error.raw_os_error().map(Errno);
    Error::BadFile { file: path.to_owned(), why, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const FIXTURE: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tiny.safetensors");

    #[test]
    fn the_fixture_reads_as_the_formats_own_library_reads_it() {
        let bytes = std::fs::read(FIXTURE).unwrap();
        assert!(bytes.len() <= 4096);
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for access in [Access::Direct, Access::Map] {
            let ours = TensorFile::open(FIXTURE, access).unwrap();
            assert_eq!(ours.entries().len(), theirs.len());
            for entry in ours.entries() {
                let view = theirs.tensor(&entry.name).unwrap();
                assert_eq!(view.dtype().to_string(), entry.dtype.to_string());
                let shape: Vec<u64> = view.shape().iter().map(|dim| *dim as u64).collect();
                assert_eq!(shape, entry.shape);
                let mut read = vec![0; entry.bytes() as usize];
                ours.read_into(entry, 0, &mut read).unwrap();
                assert_eq!(read, view.data(), "{}", entry.name);
            }
            let types: Vec<DType> = ours.entries().iter().map(|entry| entry.dtype).collect();
            assert!([DType::F32, DType::F16, DType::BF16].iter().all(|t| types.contains(t)));
            assert!(ours.entries().iter().any(|entry| entry.shape.is_empty()));
            assert!(ours.entries().iter().any(|entry| entry.elements() == 0));
            assert_eq!(ours.metadata()["made-by"], "scripts/make-fixture.py");
            assert!(!ours.how().is_empty());
        }
    }

    #[test]
    fn a_file_system_that_refuses_direct_reads_is_read_through_the_cache() {
        let refuse = |_: &File| Err(io::Error::from_raw_os_error(libc::EINVAL));
        let cached = TensorFile::open_with(FIXTURE.into(), Access::Direct, refuse).unwrap();
        assert!(cached.how().starts_with("buffered reads: the file system refuses"));
        let direct = TensorFile::open(FIXTURE, Access::Direct).unwrap();
        for entry in cached.entries() {
            let mut bytes = [vec![0; entry.bytes() as usize], vec![1; entry.bytes() as usize]];
            cached.read_into(entry, 0, &mut bytes[0]).unwrap();
            direct.read_into(entry, 0, &mut bytes[1]).unwrap();
            assert_eq!(bytes[0], bytes[1], "{}", entry.name);
        }
    }

    #[test]
    fn a_part_of_a_tensor_is_read_and_more_than_it_refused() {
        let file = TensorFile::open(FIXTURE, Access::Direct).unwrap();
        let entry = file.entries().iter().find(|entry| entry.elements() > 4).unwrap();
        let mut whole = vec![0; entry.bytes() as usize];
        file.read_into(entry, 0, &mut whole).unwrap();
        let mut part = [0; 5];
        file.read_into(entry, 3, &mut part).unwrap();
        assert_eq!(part, whole[3..8]);
        for offset in [entry.bytes() - 4, u64::MAX] {
            let error = file.read_into(entry, offset, &mut part).unwrap_err();
            assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
        }
    }

    #[test]
    fn a_file_truncated_after_it_was_opened_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cut.safetensors");
        for access in [Access::Direct, Access::Map] {
            std::fs::copy(FIXTURE, &path).unwrap();
            let file = TensorFile::open(&path, access).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(600).unwrap();
            let last = file.entries().iter().rfind(|entry| entry.bytes() > 0).unwrap();
            let mut out = vec![0; last.bytes() as usize];
            let error = file.read_into(last, 0, &mut out).unwrap_err().to_string();
            assert!(error.contains("truncated while being read"), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let missing = TensorFile::open(dir.path().join("none"), Access::Direct).unwrap_err();
        assert!(missing.to_string().contains("cannot be opened"), "{missing}");
        let folder = TensorFile::open(dir.path(), Access::Map).unwrap_err();
        assert!(folder.to_string().contains("not a regular file"), "{folder}");
    }
}
