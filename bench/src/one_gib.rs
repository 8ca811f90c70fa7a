//! One tensor of 1 GiB, put and read back whole by the copying verbs, in memory that holds it and in
//! memory that does not: what `python/bench/put_get.py` does beside it through Python.

use std::hint::black_box;

use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::Store;

use crate::Failure;
use crate::machine::took;
use crate::options::{Options, Scratch};
use crate::table::{Figure, Spread, Table};

const ROW: &str = "one-gib";
const MIB: u64 = 1 << 20;
const BYTES: usize = 1 << 30;
const REPEATS: usize = 5;

/// What a case is called, and its host memory: two tensors of 1 GiB and some, or a quarter of one.
const CASES: [(&str, u64); 2] = [("in memory", 2304 * MIB), ("out of core", 256 * MIB)];

/// Measures the row.
///
/// # Errors
/// Those of the store.
pub fn run(options: &Options, table: &Table) -> Result<(), Failure> {
    let numbers = 0..BYTES as u64 / 8;
    let tensor: Vec<u8> = numbers.flat_map(|i| (i * 0x9E37_79B9).to_le_bytes()).collect();
    let mut into = vec![1; BYTES];
    for (case, host_memory) in CASES {
        let scratch = Scratch::new(&options.dir(), "one-gib")?;
        let builder = Store::builder().host_budget(host_memory);
        let store = builder.path(Path::new(scratch.path())).open()?;
        let put = || {
            store.put("tensor", DType::U8, &[BYTES as u64], &tensor)?;
            // In memory nothing has to be written.
            if host_memory < BYTES as u64 {
                store.flush()?
            }
            Ok(())
        };
        // The first also commits memory and allocates space.
        put()?;
        let (mut puts, mut fills, mut gets) = (Vec::new(), Vec::new(), Vec::new());
        options.repeat(REPEATS, || {
            puts.push(rate(put)?);
            fills.push(rate(|| Ok(store.get_into("tensor", &mut into)?))?);
            gets.push(rate(|| {
                let mut new = vec![0; BYTES];
                store.get_into("tensor", &mut new)?;
                drop(black_box(new));
                Ok(())
            })?);
            Ok(())
        })?;
        for (verb, rates) in [("put", puts), ("get into", fills), ("get", gets)] {
            let achieved = Spread::of(rates);
            table.push(&Figure::new(ROW, format!("{verb}, {case}"), "MB/s", achieved));
        }
        store.close(std::time::Duration::from_secs(10))?;
    }
    Ok(())
}

fn rate(call: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    Ok(BYTES as f64 / 1e6 / took(call)?.seconds)
}
