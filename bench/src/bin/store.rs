//! Measures the store beside its limits; `README.md` says what each row and column means.

use clap::Parser;
use tensortier_bench::options::Options;
use tensortier_bench::table::Table;
use tensortier_bench::{Failure, lease, one_gib, one_path, overheads, paths, recovery, small};

type Row = fn(&Options, &Table) -> Result<(), Failure>;

const ROWS: [(&str, Row); 7] = [
    ("one-path", one_path::run),
    ("paths", paths::run),
    ("recovery", recovery::run),
    ("lease", lease::run),
    ("small", small::run),
    ("one-gib", one_gib::run),
    ("overheads", overheads::run),
];

fn main() -> Result<(), Failure> {
    let options = Options::parse();
    if let Some(unknown) = options.rows.iter().find(|row| ROWS.iter().all(|(name, _)| name != row))
    {
        return Err(format!("there is no row {unknown:?}; see --help").into());
    }
    let table = Table::new(options.json);
    for (name, run) in ROWS {
        if options.wants(name) {
            run(&options, &table)?;
        }
    }
    Ok(())
}
