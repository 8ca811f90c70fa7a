//! What checksums cost, and what compression costs and saves: the same moves with and without them,
//! interleaved.

use crate::Failure;
use crate::compression;
use crate::machine::took;
use crate::one_store::{OneStore, turns};
use crate::options::{Options, Scratch};
use crate::share::{Share, shared_path};
use crate::table::{Figure, Spread, Table};

const ROW: &str = "overheads";
const MIB: u64 = 1 << 20;
const CHUNK: u64 = 16 * MIB;
const PAIRS: usize = 5;

/// Measures the row.
///
/// # Errors
/// Those of the store, or that bytes are not as they were.
pub fn run(options: &Options, table: &Table) -> Result<(), Failure> {
    checksums(options, table)?;
    compression::run(options, table, ROW)
}

fn checksums(options: &Options, table: &Table) -> Result<(), Failure> {
    let bytes = options.total_mib * MIB / CHUNK * CHUNK;
    let scratch = Scratch::new(&options.dir(), "overheads")?;
    let path = shared_path(scratch.path())?;
    let with = OneStore::open(Share::of(&path), bytes, CHUNK, true)?;
    let without = OneStore::open(Share::of(&path), bytes, CHUNK, false)?;
    for part in turns((bytes / CHUNK) as usize, CHUNK) {
        for store in [&with, &without] {
            store.dirty(part.clone())?;
            store.flush()?;
        }
    }
    let mut times = [Vec::new(), Vec::new()];
    options.repeat(PAIRS, || {
        for (update, times) in [false, true].into_iter().zip(&mut times) {
            let one = |store: &OneStore| {
                store.evict()?;
                took(|| if update { store.update() } else { store.load() })
            };
            times.push((one(&with)?, one(&without)?));
        }
        Ok(())
    })?;
    for ((case, moved), times) in
        [("load", bytes), ("load + write-back", 2 * bytes)].iter().zip(times)
    {
        let gb = *moved as f64 / 1e9;
        let rates: Vec<_> =
            times.iter().map(|(on, off)| (gb / on.seconds, gb / off.seconds)).collect();
        let cpu = Spread::of(times.iter().map(|(on, off)| (on.cpu - off.cpu) / gb));
        let case = format!("{case}: checksums on / off");
        let note = format!("checksums take {cpu} s/GB of a processor");
        table.push(&Figure::of_pairs(ROW, case, "GB/s", &rates).note(note));
    }
    Ok(())
}
