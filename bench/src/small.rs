//! Many small objects: how fast they come and go, and what each costs in memory beside its bytes.

use std::time::Instant;

use tensortier::storage::dtype::DType;
use tensortier::storage::path::Path;
use tensortier::storage::store::Store;

use crate::Failure;
use crate::machine::anonymous_bytes;
use crate::options::{Options, Scratch};
use crate::table::{Bar, Figure, Spread, Table};

const ROW: &str = "small";
const BYTES: usize = 4096;
const BUDGET: u64 = 256 << 20;

/// What a store may take beside its budget.
const BESIDE_MIB: u64 = 64;

/// Measures the row. Rates are the median over tenths of the objects.
///
/// # Errors
/// Those of the store, or that bytes are not as they were.
pub fn run(options: &Options, table: &Table) -> Result<(), Failure> {
    let scratch = Scratch::new(&options.dir(), "small")?;
    let count = options.objects.max(10);
    let mut bytes = vec![0; BYTES];
    let mut key = String::with_capacity(32);
    let before = anonymous_bytes()?;
    let store = Store::builder().host_budget(BUDGET).path(Path::new(scratch.path())).open()?;
    let put = tenths(count, |i| {
        fill(&mut bytes, i);
        name(&mut key, i);
        store.put(&key, DType::U8, &[BYTES as u64], &bytes)?;
        Ok(())
    })?;
    // What metadata takes the place of goes back a moment after.
    store.barrier()?;
    let host = store.stats().host;
    let after = anonymous_bytes()?;
    let all = after.saturating_sub(before);
    let own = all.saturating_sub(host.committed);
    store.flush()?;
    let left = count.saturating_sub(BUDGET / BYTES as u64);
    let note = format!("{left} of {count} no longer fit in memory");
    table.push(&Figure::new(ROW, "put 4 KiB", "objects/s", put).note(note));
    for (case, step) in [("get_into 4 KiB, in order", 1), ("get_into 4 KiB, scattered", 7919)] {
        // A tenth of them is enough: every one comes from the path.
        let get = tenths(count / 10, |i| {
            let i = i * step % count;
            name(&mut key, i);
            store.get_into(&key, &mut bytes)?;
            if bytes[..8] != i.to_le_bytes() {
                Err("other bytes than were put".into())
            } else {
                Ok(())
            }
        })?;
        table.push(&Figure::new(ROW, case, "objects/s", get));
    }
    name(&mut key, count);
    let per_object = own as f64 / count as f64 - key.len() as f64;
    let note = format!(
        "memory {} MiB beside {} MiB of arena; keys of {} B not counted",
        own >> 20,
        host.committed >> 20,
        key.len()
    );
    let figure = Figure::new(ROW, "metadata per object", "B", Spread::of([per_object]));
    table.push(&figure.bar(Bar::AtMost(200.0)).note(note));
    let all = Spread::of([(all >> 20) as f64]);
    let figure = Figure::new(ROW, "memory of the process", "MiB", all);
    table.push(&figure.bar(Bar::AtMost(((BUDGET >> 20) + BESIDE_MIB) as f64)));
    Ok(())
}

fn name(key: &mut String, i: u64) {
    use std::fmt::Write;
    key.clear();
    // Writing to a string cannot fail.
    let _ = write!(key, "object.{i:09}");
}

fn fill(bytes: &mut [u8], i: u64) {
    bytes[..8].copy_from_slice(&i.to_le_bytes());
}

/// Calls `one` for every number below `count`; returns calls per second over each tenth of them.
fn tenths(count: u64, mut one: impl FnMut(u64) -> Result<(), Failure>) -> Result<Spread, Failure> {
    let mut rates = Vec::new();
    for tenth in 0..10 {
        let (from, to) = (count * tenth / 10, count * (tenth + 1) / 10);
        let begin = Instant::now();
        for i in from..to {
            one(i)?;
        }
        rates.push((to - from) as f64 / begin.elapsed().as_secs_f64());
    }
    Ok(Spread::of(rates))
}
