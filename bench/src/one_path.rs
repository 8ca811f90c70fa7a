//! One path: loads, write-backs and both at once through leases, and the copying verbs, each beside
//! the raw path store moving the same frames (see `raw.rs`), in interleaved pairs.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use tensortier::storage::codec::Checksums;
use tensortier::storage::dtype::DType;
use tensortier::storage::store::{ObjectRef, Store};

use crate::Failure;
use crate::fio;
use crate::machine::{Took, took};
use crate::options::{Options, Scratch};
use crate::raw::{Pass, Raw};
use crate::share::Share;
use crate::table::{Bar, Figure, Spread, Table};

const ROW: &str = "one-path";
const MIB: u64 = 1 << 20;
const PAIRS: usize = 5;

/// Host memory of the store, and bytes of the raw path's frames.
const BUDGET: u64 = 512 * MIB;

/// Bytes of one object of the copying verbs: small enough that the caller's buffer is no burden. Also
/// what is written at a time, half of the memory.
const PUT_BYTES: u64 = BUDGET / 2;

/// Bytes that one of those that share a path lays out before the next has its turn.
const TURN_BYTES: u64 = 64 * MIB;

/// A store on one path, with one object of many chunks and some to put.
#[derive(Debug)]
pub struct OneStore {
    store: Store,
    object: ObjectRef,
    buffer: Vec<u8>,
    bytes: u64,
    chunk_bytes: u64,
    sums: bool,
}

impl OneStore {
    /// Opens a store. Nothing of its object was written yet.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(
        share: Arc<Share>,
        bytes: u64,
        chunk_bytes: u64,
        sums: bool,
    ) -> Result<Self, Failure> {
        let builder = Store::builder().host_budget(BUDGET).chunk_bytes(chunk_bytes);
        let store = builder.checksums(sums).path_store(share).open()?;
        let object = store.create("object", DType::U8, &[bytes])?;
        let buffer = (0..PUT_BYTES / 8).flat_map(|i| (i * 0x9E37_79B9).to_le_bytes()).collect();
        Ok(OneStore { store, object, buffer, bytes, chunk_bytes, sums })
    }

    /// Reads all chunks in order, as a declared schedule has them read ahead.
    ///
    /// # Errors
    /// Those of the store.
    pub fn load(&self) -> Result<(), Failure> {
        self.declared(|chunk| {
            self.store.lease_write(&self.object, chunk).wait()?;
            Ok(())
        })
    }

    /// Reads all chunks in order, prefetched.
    ///
    /// # Errors
    /// Those of the store.
    pub fn load_prefetched(&self) -> Result<(), Failure> {
        self.store.prefetch(&self.object)?;
        for chunk in 0..self.object.chunks() {
            self.store.lease_read(&self.object, chunk).wait()?;
        }
        Ok(())
    }

    /// Reads all chunks, changes each, and has them written back, in the order of a schedule.
    ///
    /// # Errors
    /// Those of the store.
    pub fn update(&self) -> Result<(), Failure> {
        self.declared(|chunk| {
            let mut lease = self.store.lease_write(&self.object, chunk).wait()?;
            lease[0] = lease[0].wrapping_add(1);
            Ok(())
        })?;
        self.store.flush()?;
        Ok(())
    }

    fn declared(&self, visit: impl Fn(u32) -> Result<(), Failure>) -> Result<(), Failure> {
        let schedule = self.store.schedule();
        schedule.declare(std::slice::from_ref(&self.object), &[], 2 * self.chunk_bytes)?;
        for chunk in 0..self.object.chunks() {
            visit(chunk)?;
        }
        Ok(())
    }

    /// Makes some of the chunks dirty in memory.
    ///
    /// # Errors
    /// Those of the store.
    pub fn dirty(&self, chunks: Range<usize>) -> Result<(), Failure> {
        for chunk in chunks {
            let mut lease = self.store.lease_write(&self.object, chunk as u32).wait()?;
            lease[0] = lease[0].wrapping_add(1);
        }
        Ok(())
    }

    /// Writes what is dirty.
    ///
    /// # Errors
    /// Those of the store.
    pub fn flush(&self) -> Result<(), Failure> {
        Ok(self.store.flush()?)
    }

    /// Moves everything out of memory.
    ///
    /// # Errors
    /// Those of the store.
    pub fn evict(&self) -> Result<(), Failure> {
        for key in self.store.list("") {
            self.store.evict(&key)?;
        }
        Ok(self.store.barrier()?)
    }

    /// Puts as many bytes as the object has, as objects of 256 MiB, until all are on the path.
    ///
    /// # Errors
    /// Those of the store.
    pub fn put(&self) -> Result<(), Failure> {
        (0..self.bytes / PUT_BYTES).try_for_each(|i| self.put_one(i))?;
        self.flush()
    }

    fn put_one(&self, i: u64) -> Result<(), Failure> {
        self.store.put(&format!("put.{i}"), DType::U8, &[PUT_BYTES], &self.buffer)?;
        Ok(())
    }

    /// Copies all that was put out of the store, one object over the other.
    ///
    /// # Errors
    /// Those of the store.
    pub fn get_into(&self, into: &mut [u8]) -> Result<(), Failure> {
        for i in 0..self.bytes / PUT_BYTES {
            self.store.get_into(&format!("put.{i}"), into)?;
        }
        Ok(())
    }
}

/// Times of one thing done by the raw path and by the store.
#[derive(Debug, Default)]
struct Pairs(Vec<(Took, Took)>);

impl Pairs {
    /// Returns the rate against the raw one.
    fn rate(&self, case: &str, moved: u64) -> Figure {
        let gb = moved as f64 / 1e9;
        let rates: Vec<_> =
            self.0.iter().map(|(raw, own)| (gb / own.seconds, gb / raw.seconds)).collect();
        Figure::of_pairs(ROW, case, "GB/s", &rates)
    }

    /// Prints the rate against the raw one, and processor time per GB moved.
    fn print(&self, table: &Table, case: &str, moved: u64, bar: Option<f64>, cpu_bar: f64) {
        let mut figure = self.rate(case, moved);
        figure.bar = bar.map(Bar::Ratio);
        table.push(&figure);
        let gb = moved as f64 / 1e9;
        let own = Spread::of(self.0.iter().map(|(_, own)| own.cpu / gb));
        let raw = Spread::of(self.0.iter().map(|(raw, _)| raw.cpu / gb));
        let figure = Figure::new(ROW, format!("{case}: processor"), "s/GB", own);
        table.push(&figure.bar(Bar::AtMost(cpu_bar)).note(format!("raw {raw}")));
    }
}

/// Measures the row.
///
/// # Errors
/// Those of the store, of the path, or of the system.
pub fn run(options: &Options, table: &Table) -> Result<(), Failure> {
    for chunk_mib in &options.chunk_mib {
        one_size(options, table, *chunk_mib)?;
    }
    fio::run(options, table, ROW)
}

fn one_size(options: &Options, table: &Table, chunk_mib: u64) -> Result<(), Failure> {
    let (bytes, chunk) = (options.total_mib * MIB / PUT_BYTES * PUT_BYTES, chunk_mib * MIB);
    let scratch = Scratch::new(&options.dir(), &format!("one-{chunk_mib}"))?;
    let chunks = (bytes / chunk) as usize;
    let [raw, with, without] = Share::open(scratch.path())?;
    let mut raw = Raw::new(raw, chunk, chunks, (BUDGET / chunk) as usize)?;
    let open = |share, sums| OneStore::open(share, bytes, chunk, sums);
    let stores = [open(with, true)?, open(without, false)?];
    for part in turns(chunks, chunk) {
        raw.pass_over(part.clone(), Pass::Write)?;
        for store in &stores {
            store.dirty(part.clone())?;
            store.flush()?;
        }
        // The larger objects that are put as often as the chunks come to as many bytes.
        let [first, end] = [part.start, part.end].map(|at| (at as u64 * chunk).div_ceil(PUT_BYTES));
        for object in first..end {
            stores.iter().try_for_each(|store| store.put_one(object))?;
        }
    }
    // Touched, or the first repeat would measure the page tables.
    let mut into = vec![1; PUT_BYTES as usize];
    let mut all: [[Pairs; 6]; 2] = Default::default();
    let mut beside = Pairs::default();
    let mut own_first = false;
    options.repeat(PAIRS, || {
        own_first = !own_first;
        for (store, pairs) in stores.iter().zip(&mut all) {
            let [load, prefetched, write, update, put, get] = pairs;
            store.evict()?;
            load.0.push(pair(own_first, || raw.pass(Pass::Read), || store.load())?);
            store.evict()?;
            let own = || store.load_prefetched();
            prefetched.0.push(pair(own_first, || raw.pass(Pass::Read), own)?);
            write.0.push(write_pair(store, &mut raw, chunks, None)?);
            if store.sums {
                beside.0.push(write_pair(store, &mut raw, chunks, Some(&store.buffer))?);
            }
            store.evict()?;
            update.0.push(pair(own_first, || raw.pass(Pass::Update), || store.update())?);
            put.0.push(pair(own_first, || raw.pass(Pass::Write), || store.put())?);
            store.evict()?;
            get.0.push(pair(own_first, || raw.pass(Pass::Read), || store.get_into(&mut into))?);
            if into != store.buffer {
                return Err("get_into returned other bytes than were put".into());
            }
        }
        Ok(())
    })?;
    for (pairs, (sums, cpu)) in all.iter().zip([("", 0.15), (", no checksums", 0.05)]) {
        let [load, prefetched, write, update, put, get] = pairs;
        let case = |what: &str| format!("{what} {chunk_mib} MiB{sums}");
        load.print(table, &case("load"), bytes, Some(0.95), cpu);
        prefetched.print(table, &case("load prefetched"), bytes, Some(0.95), cpu);
        write.print(table, &case("write-back"), bytes, Some(0.95), cpu);
        if sums.is_empty() {
            let figure = beside.rate(&case("write-back, raw beside sums"), bytes);
            table.push(&figure.bar(Bar::Ratio(0.95)));
        }
        update.print(table, &case("load + write-back"), 2 * bytes, Some(0.95), cpu);
        put.print(table, &case("put"), bytes, None, cpu + 0.15);
        get.print(table, &case("get_into"), bytes, None, cpu + 0.15);
    }
    Ok(())
}

/// Returns the chunks in the turns in which those that share a path lay theirs out, so that every
/// part of the drive holds some of each.
pub fn turns(chunks: usize, chunk_bytes: u64) -> impl Iterator<Item = Range<usize>> {
    parts(chunks, chunk_bytes, TURN_BYTES)
}

/// Returns the chunks in parts of so many bytes, or of one chunk.
fn parts(chunks: usize, chunk_bytes: u64, bytes: u64) -> impl Iterator<Item = Range<usize>> {
    let at_once = (bytes / chunk_bytes).max(1) as usize;
    (0..chunks).step_by(at_once).map(move |first| first..chunks.min(first + at_once))
}

/// Measures the raw path and the store, one right after the other. Which comes first changes from pair
/// to pair: a drive may serve the second otherwise than the first.
fn pair(
    own_first: bool,
    raw: impl FnOnce() -> Result<(), Failure>,
    own: impl FnOnce() -> Result<(), Failure>,
) -> Result<(Took, Took), Failure> {
    if own_first {
        let own = took(own)?;
        Ok((took(raw)?, own))
    } else {
        Ok((took(raw)?, took(own)?))
    }
}

/// Writes all chunks, as many at a time as half the memory holds, and drains in between on both sides.
///
/// Both go round all of their extents: a few written again and again are no measure for others that lie
/// anywhere in the files. With `read_beside` (half the memory) the raw path writes while another
/// thread takes the checksums of as many bytes: what a machine's memory leaves of its rate.
fn write_pair(
    store: &OneStore,
    raw: &mut Raw,
    chunks: usize,
    read_beside: Option<&[u8]>,
) -> Result<(Took, Took), Failure> {
    let mut sum = (Took::default(), Took::default());
    let add = |sum: &mut Took, took: Took| {
        sum.seconds += took.seconds;
        sum.cpu += took.cpu;
    };
    for (round, part) in parts(chunks, store.chunk_bytes, PUT_BYTES).enumerate() {
        store.dirty(part.clone())?;
        let raw = || {
            thread::scope(|scope| {
                let sums = read_beside.map(|bytes| scope.spawn(|| Checksums::of(bytes)));
                let end = raw.pass_over(part, Pass::Write);
                black_box(sums.map(thread::ScopedJoinHandle::join));
                end
            })
        };
        let (raw, own) = pair(round % 2 == 1, raw, || store.flush())?;
        add(&mut sum.0, raw);
        add(&mut sum.1, own);
    }
    Ok(sum)
}
