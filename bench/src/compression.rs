//! What lz4 costs and saves: the same puts, loads and updates of the same contents with and without
//! it, interleaved, out of core.

use std::path::Path;

use tensortier::storage::dtype::DType;
use tensortier::storage::path;
use tensortier::storage::store::{Compression, ObjectRef, Store};

use crate::Failure;
use crate::contents;
use crate::machine::{Took, took};
use crate::options::{Options, Scratch};
use crate::table::{Figure, Spread, Table};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 16 * MIB;
const PAIRS: usize = 5;

/// Bytes of one object, and of the contents that all have.
const OBJECT: u64 = 128 * MIB;

/// Host memory of the store, what is set aside for stored bytes included.
const BUDGET: u64 = 256 * MIB;

/// One chunk for the one path and one more.
const PACKING: u64 = 2 * CHUNK;

/// What is looked at in a chunk that was read, and written anew in one that is updated.
const SAMPLE: usize = 4096;

type Content = (&'static str, DType, Vec<u8>);

/// A store whose objects all have the same contents.
struct Filled {
    store: Store,
    objects: Vec<ObjectRef>,
}

impl Filled {
    fn open(dir: &Path, compression: Compression) -> Result<Self, Failure> {
        let builder = Store::builder().host_budget(BUDGET).chunk_bytes(CHUNK);
        let builder = builder.compression(compression).packing_bytes(PACKING);
        let store = builder.path(path::Path::new(dir)).open()?;
        Ok(Filled { store, objects: Vec::new() })
    }

    /// Puts `count` objects until all are on the path.
    fn put(&mut self, (_, dtype, bytes): &Content, count: u64) -> Result<(), Failure> {
        let elements = bytes.len() as u64 / dtype.bytes();
        let put = |i| self.store.put(&format!("object.{i}"), *dtype, &[elements], bytes);
        self.objects = (0..count).map(put).collect::<Result<_, _>>()?;
        Ok(self.store.flush()?)
    }

    fn evict(&self) -> Result<(), Failure> {
        self.objects.iter().try_for_each(|object| self.store.evict(object))?;
        Ok(self.store.barrier()?)
    }

    /// Reads all chunks in a declared order and compares samples of each; has each written back if
    /// asked to.
    fn load(&self, bytes: &[u8], update: bool) -> Result<(), Failure> {
        let schedule = self.store.schedule();
        schedule.declare(&self.objects, &[], 2 * CHUNK)?;
        for object in &self.objects {
            for (chunk, expected) in (0..).zip(bytes.chunks(CHUNK as usize)) {
                let mut lease = self.store.lease_write(object, chunk).wait()?;
                let (middle, last) = (expected.len() / 2, expected.len() - SAMPLE);
                for at in [0, middle, last].map(|at| at..at + SAMPLE) {
                    if lease[at.clone()] != expected[at] {
                        return Err(format!("chunk {chunk} is not what was put").into());
                    }
                }
                if update {
                    lease[..SAMPLE].copy_from_slice(&expected[..SAMPLE]);
                }
            }
        }
        Ok(self.store.flush()?)
    }

    /// Returns which part of the bytes written was stored, and of how many chunks how many were
    /// compressed.
    fn stored(&self) -> String {
        let counters = self.store.stats().counters;
        let (packed, written) = (counters.packed, counters.written);
        let part = counters.stored_ratio().unwrap_or(f64::NAN);
        format!("{part:.3} of the bytes stored, {packed} of {written} chunks compressed")
    }
}

/// Measures each content.
///
/// # Errors
/// Those of the store, or that bytes are not as they were.
pub fn run(options: &Options, table: &Table, row: &'static str) -> Result<(), Failure> {
    let len = OBJECT as usize;
    let mut moments = contents::first_moments(len / 2);
    moments.extend(contents::second_moments(len / 2));
    one(options, table, row, &("moments", DType::F32, moments))?;
    let embedding = contents::embedding_moments(len);
    one(options, table, row, &("embedding", DType::F32, embedding))?;
    one(options, table, row, &("token ids", DType::I64, contents::token_ids(len)))
}

fn one(
    options: &Options,
    table: &Table,
    row: &'static str,
    content: &Content,
) -> Result<(), Failure> {
    let count = (options.total_mib * MIB / OBJECT).max(2 * BUDGET / OBJECT);
    let scratch = Scratch::new(&options.dir(), "compression")?;
    let open = |compression| Filled::open(scratch.path(), compression);
    let mut stores = [open(Compression::Lz4)?, open(Compression::Off)?];
    // Once unmeasured: memory that was never touched costs page faults.
    stores.iter_mut().try_for_each(|store| store.put(content, count))?;
    let mut times: [Vec<[Took; 2]>; 3] = Default::default();
    options.repeat(PAIRS, || {
        let mut put = [Took::default(); 2];
        for (store, took_by) in stores.iter_mut().zip(&mut put) {
            *took_by = took(|| store.put(content, count))?;
        }
        times[0].push(put);
        for (update, times) in [false, true].into_iter().zip(&mut times[1..]) {
            let mut both = [Took::default(); 2];
            for (store, took_by) in stores.iter().zip(&mut both) {
                store.evict()?;
                *took_by = took(|| store.load(&content.2, update))?;
            }
            times.push(both);
        }
        Ok(())
    })?;
    let mut into = vec![0; content.2.len()];
    for store in &stores {
        store.store.get_into("object.0", &mut into)?;
        if into != content.2 {
            return Err("get_into returned other bytes than were put".into());
        }
    }
    let bytes = count * OBJECT;
    for ((what, moved), times) in
        [("put", bytes), ("load", bytes), ("load + write-back", 2 * bytes)].iter().zip(&times)
    {
        let gb = *moved as f64 / 1e9;
        let rates: Vec<_> =
            times.iter().map(|[on, off]| (gb / on.seconds, gb / off.seconds)).collect();
        let cpu = |of: usize| Spread::of(times.iter().map(|both| both[of].cpu / gb));
        let note = format!("processor {} / {} s/GB; {}", cpu(0), cpu(1), stores[0].stored());
        let case = format!("{what} {}: lz4 on / off", content.0);
        table.push(&Figure::of_pairs(row, case, "GB/s", &rates).note(note));
    }
    Ok(())
}
