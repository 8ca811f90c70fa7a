//! Bits that flip in a path's files under an open store: found, named with key, chunk, path and block,
//! never returned, and no other object is concerned.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;

use common::{PATIENCE, mix, read, rounds, soon};
use tensortier_storage::arena::GRANULE;
use tensortier_storage::codec::{BLOCK_BYTES, Compression};
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::path::Path;
use tensortier_storage::store::Store;

const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 5;

/// A store whose objects are all on its one path, and the file they are in.
struct Stored {
    dir: tempfile::TempDir,
    store: Store,
    file: File,
    contents: Vec<Vec<u8>>,
}

impl Stored {
    fn new(compression: Compression, contents: impl Fn(u64) -> Vec<u8>) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let builder = Store::builder().host_budget(24 * MIB).chunk_bytes(MIB);
        let builder = builder.compression(compression).path(Path::new(dir.path()));
        let store = builder.open().unwrap();
        let contents: Vec<_> = (0..OBJECTS).map(contents).collect();
        for (i, data) in contents.iter().enumerate() {
            store.put(&format!("t{i}"), DType::U8, &[data.len() as u64], data).unwrap();
            store.evict(&format!("t{i}")).unwrap();
        }
        let scratch = store.explain().paths[0].capabilities.scratch.clone();
        let options = File::options().read(true).write(true).to_owned();
        let file = options.open(scratch.join("segment-0")).unwrap();
        assert!(!scratch.join("segment-1").exists());
        Stored { dir, store, file, contents }
    }

    /// Flips a bit of the byte at `at`; once more makes it good.
    fn flip(&self, at: u64) {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 1 << (mix(at) % 8);
        self.file.write_all_at(&byte, at).unwrap();
        self.file.sync_data().unwrap();
    }

    /// Reads an object anew from the path.
    fn read(&self, object: usize) -> Result<(), Error> {
        self.store.evict(&format!("t{object}"))?;
        let all = read(&self.store, &format!("t{object}"))?;
        assert!(all == self.contents[object], "wrong bytes of t{object} were returned");
        Ok(())
    }

    /// Returns object, chunk and byte of the chunk that are stored at each byte of the file where a
    /// chunk begins.
    fn places(&self) -> Vec<(u64, usize, u32, u64)> {
        let mut all = vec![0; self.store.stats().paths[0].used_bytes as usize];
        self.file.read_exact_at(&mut all, 0).unwrap();
        let mut places = Vec::new();
        for (object, contents) in self.contents.iter().enumerate() {
            for (chunk, bytes) in (0..).zip(contents.chunks(MIB as usize)) {
                let begins = |at: &usize| all[*at..].starts_with(bytes);
                let at = (0..all.len()).step_by(GRANULE as usize).find(begins).unwrap();
                places.push((at as u64, object, chunk, bytes.len() as u64));
            }
        }
        places.sort_unstable();
        places
    }

    fn close(self) {
        assert_eq!(self.store.stats().counters.replaced, 0);
        self.store.close(PATIENCE).unwrap();
        assert_eq!(std::fs::read_dir(self.dir.path()).unwrap().count(), 0);
    }
}

/// Noise of a length that is no whole number of anything.
fn noise(seed: u64) -> Vec<u8> {
    let words = (3 * MIB / 2 + seed * 1000) / 8;
    let mut bytes: Vec<_> = (0..words).flat_map(|i| mix(seed << 40 | i).to_le_bytes()).collect();
    bytes.extend([7; 3]);
    bytes
}

/// Half of it noise, in stretches of a few bytes.
fn compressible(seed: u64) -> Vec<u8> {
    let mut bytes = noise(seed);
    for (i, stretch) in bytes.chunks_mut(24).enumerate() {
        if i % 3 != 0 {
            stretch.fill(seed as u8);
        }
    }
    bytes
}

/// How far apart the bytes are that are tried.
fn step() -> u64 {
    (60_013 / rounds(1)).max(101)
}

#[test]
fn a_flipped_bit_is_named_with_key_chunk_block_and_path() {
    let stored = Stored::new(Compression::Off, noise);
    let places = stored.places();
    let mut found = 0;
    for at in (1..stored.store.stats().paths[0].used_bytes).step_by(step() as usize) {
        let (begin, object, damaged, bytes) =
            *places.iter().rev().find(|(begin, ..)| *begin <= at).unwrap();
        if at - begin >= bytes {
            continue;
        }
        stored.flip(at);
        let error = stored.read(object).unwrap_err();
        let of_block = ((at - begin) / BLOCK_BYTES as u64) as u32;
        let named = matches!(&error, Error::Corrupt { key, chunk, path, block, expected, actual }
            if *key == format!("t{object}") && *chunk == damaged && path == stored.dir.path()
                && *block == of_block && expected != actual);
        assert!(named && error.kind() == ErrorKind::Corrupt, "at {at}: {error}");
        // Its other chunk and another object are as they were.
        let handle = stored.store.object(&format!("t{object}")).unwrap();
        drop(soon(stored.store.lease_read(&handle, 1 - damaged)).unwrap());
        stored.read((object + 1) % OBJECTS as usize).unwrap();
        stored.flip(at);
        stored.read(object).unwrap();
        found += 1;
    }
    assert!(found > 100, "{found}");
    stored.close();
}

#[test]
fn a_flipped_bit_of_what_is_compressed_is_found_too() {
    let stored = Stored::new(Compression::Lz4, compressible);
    assert!(stored.store.stats().counters.packed >= 2 * OBJECTS - 1);
    let (mut found, mut tried) = (0, 0);
    for at in (1..stored.store.stats().paths[0].used_bytes).step_by(step() as usize) {
        stored.flip(at);
        let answers: Vec<_> = (0..OBJECTS as usize).map(|object| stored.read(object)).collect();
        let failed: Vec<_> = (0..).zip(&answers).filter(|(_, answer)| answer.is_err()).collect();
        assert!(failed.len() <= 1, "one bit concerns one object: {failed:?}");
        for (object, answer) in &failed {
            let error = answer.as_ref().unwrap_err();
            let named = matches!(error, Error::Corrupt { key, path, .. }
                if *key == format!("t{object}") && path == stored.dir.path());
            assert!(named, "at {at}: {error}");
        }
        (found, tried) = (found + failed.len(), tried + 1);
        stored.flip(at);
        (0..OBJECTS as usize).for_each(|object| stored.read(object).unwrap());
    }
    // The rest were in the padding behind a chunk.
    assert!(found * 20 > tried * 19, "{found} of {tried}");
    stored.close();
}
