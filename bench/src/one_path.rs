//! One path: loads, write-backs and both at once through leases, and the copying verbs, each beside
//! the raw path store moving the same frames (see `raw.rs`), in interleaved pairs.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;

use tensortier::storage::codec::Checksums;
use tensortier::storage::path::FilePathStore;

use crate::Failure;
use crate::fio;
use crate::machine::{Took, took};
use crate::one_store::{BUDGET, OneStore, PUT_BYTES, turns};
use crate::options::{Options, Scratch};
use crate::raw::{Pass, Raw};
use crate::share::{Share, shared_path};
use crate::table::{Bar, Figure, Spread, Table};

const ROW: &str = "one-path";
const MIB: u64 = 1 << 20;
const PAIRS: usize = 5;

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

/// What is held against each other on one path: it alone, a store with and one without checksums.
///
/// All is laid out in turns; who comes first is another one with each `first`. Laid out once more on
/// the same path, each gets the places that another one had.
fn lay_out(
    path: &Arc<FilePathStore>,
    bytes: u64,
    chunk: u64,
    first: usize,
) -> Result<(Raw, [OneStore; 2]), Failure> {
    let chunks = (bytes / chunk) as usize;
    let mut raw = Raw::new(Share::of(path), chunk, chunks, (BUDGET / chunk) as usize)?;
    let open = |sums| OneStore::open(Share::of(path), bytes, chunk, sums);
    let stores = [open(true)?, open(false)?];
    for part in turns(chunks, chunk) {
        for side in 0..=stores.len() {
            match (side + first) % (stores.len() + 1) {
                0 => raw.pass_over(part.clone(), Pass::Write)?,
                store => stores[store - 1].lay_out(part.clone())?,
            }
        }
    }
    Ok((raw, stores))
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
    let path = shared_path(scratch.path())?;
    // Touched, or the first repeat would measure the page tables.
    let mut into = vec![1; PUT_BYTES as usize];
    let mut all: [[Pairs; 6]; 2] = Default::default();
    let mut beside = Pairs::default();
    let mut repeat = 0;
    options.repeat(PAIRS, || {
        // Anew each time: how fast a drive is depends on where things come to lie.
        let (mut raw, stores) = lay_out(&path, bytes, chunk, repeat)?;
        let own_first = repeat % 2 == 1;
        repeat += 1;
        for (store, pairs) in stores.iter().zip(&mut all) {
            let [load, prefetched, write, update, put, get] = pairs;
            store.evict()?;
            load.0.push(pair(own_first, || raw.pass(Pass::Read), || store.load())?);
            store.evict()?;
            let own = || store.load_prefetched();
            prefetched.0.push(pair(own_first, || raw.pass(Pass::Read), own)?);
            write.0.push(write_pair(store, &mut raw, None)?);
            if store.sums() {
                beside.0.push(write_pair(store, &mut raw, Some(store.buffer()))?);
            }
            store.evict()?;
            update.0.push(pair(own_first, || raw.pass(Pass::Update), || store.update())?);
            put.0.push(pair(own_first, || raw.pass(Pass::Write), || store.put())?);
            store.evict()?;
            get.0.push(pair(own_first, || raw.pass(Pass::Read), || store.get_into(&mut into))?);
            if into != store.buffer() {
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
    read_beside: Option<&[u8]>,
) -> Result<(Took, Took), Failure> {
    let mut sum = (Took::default(), Took::default());
    let add = |sum: &mut Took, took: Took| {
        sum.seconds += took.seconds;
        sum.cpu += took.cpu;
    };
    for (round, part) in store.halves_of_memory().enumerate() {
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
