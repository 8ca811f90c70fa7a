//! Spills every file below a folder through a store of little memory, and compares what comes back:
//! `cargo run --release --example spill_folder -- DIR [SPILL_DIR]`.

use std::error::Error;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path as StorePath;
use tensortier::storage::store::{ObjectRef, Store};
use tensortier::storage::units::{Bytes, BytesPerSecond};

const CHUNK: u64 = 1 << 20;
const BUDGET: u64 = 8 * CHUNK;

/// What was spilled.
#[derive(Debug, Default)]
pub struct Report {
    /// How many files.
    pub files: usize,
    /// Their length together, in bytes.
    pub bytes: u64,
}

/// Spills the files below `folder` to a directory of the store's own in `spill_dir`.
pub fn spill(folder: &Path, spill_dir: &Path) -> Result<Report, Box<dyn Error>> {
    let store = Store::builder()
        .host_budget(BUDGET)
        .chunk_bytes(CHUNK)
        .path(StorePath::new(spill_dir))
        .open()?;
    let mut report = Report::default();
    let begin = Instant::now();
    let mut spilled = Vec::new();
    for file in files_below(folder)? {
        let object = write(&store, &file)?;
        report.files += 1;
        report.bytes += object.bytes();
        spilled.push((file, object));
    }
    let written = begin.elapsed();
    println!("{:>10} {:>10} {:>7}  file", "bytes", "spilled", "chunks");
    let begin = Instant::now();
    for (file, object) in &spilled {
        let stat = object.stat();
        compare(&store, file, object)?;
        let (bytes, stored) = (Bytes(stat.bytes).to_string(), Bytes(stat.stored_bytes).to_string());
        println!("{bytes:>10} {stored:>10} {:>7}  {}", object.chunks(), file.display());
    }
    let rate = |took: Duration| BytesPerSecond(report.bytes as f64 / took.as_secs_f64());
    println!(
        "{} files of {} came back the same through {} of memory: in {}, out {}",
        report.files,
        Bytes(report.bytes),
        Bytes(BUDGET),
        rate(written),
        rate(begin.elapsed())
    );
    store.close(Duration::from_secs(10))?;
    Ok(report)
}

/// Copies a file into the store, a chunk at a time, whatever its length.
fn write(store: &Store, file: &Path) -> Result<ObjectRef, Box<dyn Error>> {
    let len = fs::metadata(file)?.len();
    let object = store.create(&file.to_string_lossy(), DType::U8, &[len])?;
    let (mut from, mut buffer) = (File::open(file)?, vec![0; CHUNK as usize]);
    for start in (0..len).step_by(CHUNK as usize) {
        let part = &mut buffer[..CHUNK.min(len - start) as usize];
        from.read_exact(part)?;
        store.write_range(&object, start..start + part.len() as u64, part)?;
    }
    Ok(object)
}

/// Compares an object with its file, a chunk at a time, read ahead.
fn compare(store: &Store, file: &Path, object: &ObjectRef) -> Result<(), Box<dyn Error>> {
    let (mut from, mut buffer) = (File::open(file)?, vec![0; CHUNK as usize]);
    for part in store.get(object)? {
        let part = part?;
        from.read_exact(&mut buffer[..part.len()])?;
        if buffer[..part.len()] != part {
            return Err(format!("{} came back changed", file.display()).into());
        }
    }
    Ok(())
}

/// Returns the files below a folder, in order; links are not followed.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("usage: spill_folder DIR [SPILL_DIR]")?;
    let spill_dir = arguments.next().unwrap_or_else(std::env::temp_dir);
    spill(&folder, &spill_dir).map(drop)
}
