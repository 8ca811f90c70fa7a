//! Writing a safetensors file as a stream: the header first, then each tensor's bytes in order. Several
//! tensors may be written in turn.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};

use super::file::failed;
use super::header::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA_KEY, quote};

/// How much is gathered before it is given to the system.
const BUFFER_BYTES: usize = 1 << 20;

/// A tensor that is going to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name; not `__metadata__`, and not that of another.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
}

/// A safetensors file being written. It has a temporary name beside the final one until
/// [`finish`](TensorFileWriter::finish) and is removed if dropped before. The same input gives the
/// same bytes.
#[derive(Debug)]
pub struct TensorFileWriter {
    path: PathBuf,
    temporary: PathBuf,
    out: Option<BufWriter<File>>,
    /// Where in the file the next byte goes that `out` is given.
    position: u64,
    tensors: Vec<Unwritten>,
}

/// What is left of a tensor, in bytes of the file.
#[derive(Debug)]
struct Unwritten {
    name: String,
    next: u64,
    end: u64,
}

impl TensorFileWriter {
    /// Creates the file under a temporary name and writes its header. The tensors will lie in the
    /// order of `tensors`.
    ///
    /// # Errors
    /// [`Error::BadFile`] if a name is taken twice or reserved, a size overflows, or the file
    /// cannot be created.
    pub fn create(
        path: impl Into<PathBuf>,
        tensors: &[TensorSpec],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let path = path.into();
        if path.is_dir() {
            return Err(refuse(&path, "is a directory; name a file to write".into()));
        }
        // Replacing a device or a pipe by a file would take it away from everybody.
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(refuse(&path, "is not a regular file; name a file to write".into()));
        }
        let (header, ends) = encode(tensors, metadata).map_err(|why| refuse(&path, why))?;
        let mut next = header.len() as u64;
        let mut unwritten = Vec::with_capacity(ends.len());
        for (name, end) in ends {
            let end = (header.len() as u64).checked_add(end);
            let end = end.ok_or_else(|| refuse(&path, String::from("would be too long")))?;
            unwritten.push(Unwritten { name, next, end });
            next = end;
        }
        let temporary = temporary_name(&path)?;
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(|error| failed(&path, "cannot be created", &error, REMEDY))?;
        let out = Some(BufWriter::with_capacity(BUFFER_BYTES, file));
        let mut writer = TensorFileWriter { path, temporary, out, position: 0, tensors: unwritten };
        writer.write_at(0, &header)?;
        Ok(writer)
    }

    /// Appends bytes to the first tensor that lacks some, and to those after it, in any pieces.
    ///
    /// # Errors
    /// [`Error::BadFile`] if these are more bytes than were declared, or they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let left: u64 = self.tensors.iter().map(Unwritten::left).sum();
        if bytes.len() as u64 > left {
            let why = format!("was given {} bytes where {left} were left to write", bytes.len());
            return Err(refuse(&self.path, why));
        }
        let mut rest = bytes;
        while !rest.is_empty()
            && let Some(tensor) = self.tensors.iter().position(|tensor| tensor.left() > 0)
        {
            let (part, after) =
                rest.split_at(self.tensors[tensor].left().min(rest.len() as u64) as usize);
            self.write_to(tensor, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Appends bytes to one tensor, given by its place among those that the file was created with.
    ///
    /// # Errors
    /// [`Error::BadFile`] if there is no such tensor, these are more bytes than it lacks, or they
    /// cannot be written.
    pub fn write_to(&mut self, tensor: usize, bytes: &[u8]) -> Result<()> {
        let Some(to) = self.tensors.get(tensor) else {
            return Err(refuse(&self.path, format!("has no tensor number {tensor}")));
        };
        let (next, left) = (to.next, to.left());
        if bytes.len() as u64 > left {
            let why = format!(
                "was given {} bytes of tensor {} where {left} were left to write",
                bytes.len(),
                quote(&to.name)
            );
            return Err(refuse(&self.path, why));
        }
        self.write_at(next, bytes)?;
        self.tensors[tensor].next += bytes.len() as u64;
        Ok(())
    }

    /// Makes the file durable under its final name, replacing one that is there.
    ///
    /// # Errors
    /// [`Error::BadFile`] if a tensor is incomplete or the system refuses; the temporary file is
    /// gone then, and a file that was there before is untouched unless only the directory's own
    /// sync failed.
    pub fn finish(mut self) -> Result<()> {
        if let Some(tensor) = self.tensors.iter().find(|tensor| tensor.left() > 0) {
            let (name, missing) = (quote(&tensor.name), tensor.left());
            let why = format!("tensor {name} still lacks {missing} bytes");
            return Err(refuse(&self.path, why));
        }
        let result = self.publish();
        result.map_err(|error| failed(&self.path, "cannot be written", &error, REMEDY))
    }

    fn publish(&mut self) -> io::Result<()> {
        let Some(out) = self.out.take() else { return Ok(()) };
        let renamed = out
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&self.temporary, &self.path));
        if let Err(error) = renamed {
            self.remove();
            return Err(error);
        }
        // The name is durable only once its directory is.
        File::open(directory_of(&self.path))?.sync_all()
    }

    fn write_at(&mut self, position: u64, bytes: &[u8]) -> Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        // Seeking gives what is gathered to the system, so only if need be.
        let sought = match position == self.position {
            true => Ok(position),
            false => out.seek(SeekFrom::Start(position)),
        };
        sought
            .and_then(|_| out.write_all(bytes))
            .map_err(|error| failed(&self.path, "cannot be written", &error, REMEDY))?;
        self.position = position + bytes.len() as u64;
        Ok(())
    }

    fn remove(&self) {
        // A file that cannot be removed has nobody left to tell; the first error stands.
        let _ = fs::remove_file(&self.temporary);
    }
}

impl Unwritten {
    fn left(&self) -> u64 {
        self.end - self.next
    }
}

impl Drop for TensorFileWriter {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            // Without flushing: these bytes are not wanted any more.
            let _ = out.into_parts();
            self.remove();
        }
    }
}

const REMEDY: &str = "check the directory, its permissions and its free space";

fn refuse(path: &Path, why: String) -> Error {
    Error::BadFile { file: path.to_owned(), why, source: None }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name beside `path` that nobody else uses: the process and a count in it.
fn temporary_name(path: &Path) -> Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(refuse(path, "has no file name; name a file to write".into()));
    };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{count}.partial", std::process::id()));
    Ok(directory_of(path).join(temporary))
}

type Ends = Vec<(String, u64)>;

/// Returns the length field and header, padded so that the tensors start on 8 bytes, and where each
/// tensor ends.
fn encode(
    tensors: &[TensorSpec],
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<u8>, Ends), String> {
    let mut ends: Ends = Vec::with_capacity(tensors.len());
    let mut names = std::collections::HashSet::new();
    let mut infos = Vec::with_capacity(tensors.len());
    let mut at = 0u64;
    for TensorSpec { name, dtype, shape } in tensors {
        let shown = quote(name);
        if name == METADATA_KEY || !names.insert(name) {
            return Err(format!("tensor name {shown} is reserved or taken; use another"));
        }
        let end = shape
            .iter()
            .try_fold(1u64, |product, dim| product.checked_mul(*dim))
            .and_then(|elements| elements.checked_mul(dtype.bytes()))
            .and_then(|bytes| bytes.checked_add(at))
            .ok_or_else(|| format!("tensor {shown} is too large; split it"))?;
        let info = Info { dtype: dtype.to_string(), shape, data_offsets: (at, end) };
        infos.push((name, info));
        ends.push((name.clone(), end));
        at = end;
    }
    let mut header = vec![0; LENGTH_BYTES as usize];
    serde_json::to_writer(&mut header, &Outline { metadata, infos: &infos })
        .map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = header.len() as u64 - LENGTH_BYTES;
    if length > MAX_HEADER_BYTES {
        return Err(format!("would have a header of {length} bytes; write fewer tensors"));
    }
    header[..LENGTH_BYTES as usize].copy_from_slice(&length.to_le_bytes());
    Ok((header, ends))
}

#[derive(Debug, Serialize)]
struct Info<'a> {
    dtype: String,
    shape: &'a [u64],
    data_offsets: (u64, u64),
}

struct Outline<'a> {
    metadata: &'a BTreeMap<String, String>,
    infos: &'a [(&'a String, Info<'a>)],
}

impl Serialize for Outline<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA_KEY, self.metadata)?;
        }
        for (name, info) in self.infos {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Access, TensorFile};

    fn spec(name: &str, dtype: DType, shape: &[u64]) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, shape: shape.into() }
    }

    fn specs() -> Vec<TensorSpec> {
        vec![
            spec("one \"odd\" name\n\u{e9}", DType::U8, &[3]),
            spec("scalar", DType::F32, &[]),
            spec("empty", DType::BF16, &[4, 0]),
            spec("square", DType::F16, &[5, 5]),
        ]
    }

    fn listed(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn what_is_written_in_pieces_is_read_back_by_us_and_by_the_formats_own_library() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.safetensors");
        let metadata = BTreeMap::from([("b".into(), "2".into()), ("a".into(), "1".into())]);
        let data: Vec<u8> = (0..57).collect();
        let mut writer = TensorFileWriter::create(&path, &specs(), &metadata).unwrap();
        for piece in data.chunks(10) {
            writer.write(piece).unwrap();
        }
        assert!(!path.exists());
        writer.finish().unwrap();
        assert_eq!(listed(dir.path()), ["out.safetensors"]);
        let bytes = fs::read(&path).unwrap();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        assert!(header.is_multiple_of(8));
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ours = TensorFile::open(&path, Access::Direct).unwrap();
        assert_eq!(ours.metadata(), &metadata);
        let mut at = 0;
        for (entry, spec) in ours.entries().iter().zip(specs()) {
            assert_eq!(
                (&entry.name, entry.dtype, &entry.shape),
                (&spec.name, spec.dtype, &spec.shape)
            );
            let view = theirs.tensor(&entry.name).unwrap();
            assert_eq!(view.data(), &data[at..at + entry.bytes() as usize]);
            at += view.data().len();
        }
        assert_eq!(at, data.len());
    }

    #[test]
    fn tensors_written_in_turn_are_those_written_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..57).collect();
        let path = |name: &str| dir.path().join(name);
        let mut plain =
            TensorFileWriter::create(path("plain"), &specs(), &BTreeMap::new()).unwrap();
        plain.write(&data).unwrap();
        plain.finish().unwrap();
        let mut turns =
            TensorFileWriter::create(path("turns"), &specs(), &BTreeMap::new()).unwrap();
        let parts =
            [(3, 7..20), (0, 0..1), (3, 20..21), (2, 7..7), (1, 3..7), (0, 1..3), (3, 21..57)];
        for (tensor, part) in parts {
            turns.write_to(tensor, &data[part]).unwrap();
        }
        assert!(turns.write_to(0, &[0]).unwrap_err().to_string().contains("0 were left"));
        assert!(turns.write_to(4, &[]).unwrap_err().to_string().contains("no tensor number 4"));
        turns.finish().unwrap();
        assert_eq!(fs::read(path("plain")).unwrap(), fs::read(path("turns")).unwrap());
        let mut unfinished =
            TensorFileWriter::create(path("plain"), &specs(), &BTreeMap::new()).unwrap();
        unfinished.write_to(3, &data[7..]).unwrap();
        let error = unfinished.finish().unwrap_err().to_string();
        assert!(error.contains("lacks 3 bytes"), "{error}");
    }

    #[test]
    fn the_same_input_gives_the_same_bytes_and_replaces_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.safetensors");
        let write = || {
            let mut writer = TensorFileWriter::create(&path, &specs(), &BTreeMap::new()).unwrap();
            writer.write(&[7; 57]).unwrap();
            writer.finish().unwrap();
            fs::read(&path).unwrap()
        };
        assert_eq!(write(), write());
    }

    #[test]
    fn an_unfinished_file_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.safetensors");
        fs::write(&path, "before").unwrap();
        let mut writer = TensorFileWriter::create(&path, &specs(), &BTreeMap::new()).unwrap();
        writer.write(&[0; 20]).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("\"square\" still lacks 37 bytes"), "{error}");
        drop(TensorFileWriter::create(&path, &specs(), &BTreeMap::new()).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(listed(dir.path()), ["out.safetensors"]);
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.safetensors");
        let refused = |tensors: &[TensorSpec]| {
            TensorFileWriter::create(&path, tensors, &BTreeMap::new()).unwrap_err().to_string()
        };
        let twice = [spec("a", DType::U8, &[1]), spec("a", DType::U8, &[1])];
        assert!(refused(&twice).contains("reserved or taken"));
        assert!(refused(&[spec("__metadata__", DType::U8, &[1])]).contains("reserved or taken"));
        assert!(refused(&[spec("a", DType::F32, &[u64::MAX, 2])]).contains("too large"));
        let mut writer = TensorFileWriter::create(&path, &specs(), &BTreeMap::new()).unwrap();
        assert!(writer.write(&[0; 58]).unwrap_err().to_string().contains("57 were left"));
        drop(writer);
        for bad in [dir.path().to_owned(), dir.path().join("no/out"), PathBuf::from("/")] {
            assert!(TensorFileWriter::create(bad, &specs(), &BTreeMap::new()).is_err());
        }
        assert!(listed(dir.path()).is_empty());
    }
}
