//! What fio makes of the same directory: the yardstick others can repeat. Said so if it is missing.

use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::options::{Options, Scratch};
use crate::table::{Figure, Spread, Table};

const ENGINES: [(&str, u32); 4] =
    [("libaio", 16), ("libaio", 32), ("io_uring", 16), ("io_uring", 32)];

/// Prints the best of fio's engines and depths for reading and writing 1 MiB blocks directly.
///
/// # Errors
/// What the system said; that fio is not installed is no error.
pub fn run(options: &Options, table: &Table, row: &'static str) -> Result<(), Failure> {
    let scratch = Scratch::new(&options.dir(), "fio")?;
    for (way, name) in [("read", "fio read, best"), ("write", "fio write, best")] {
        let mut best: Option<(f64, String)> = None;
        for (engine, depth) in ENGINES {
            match once(scratch.path(), way, engine, depth) {
                Ok(bps) if best.as_ref().is_none_or(|(most, _)| bps > *most) => {
                    best = Some((bps, format!("{engine}, depth {depth}, 1 MiB direct")));
                }
                Ok(_) => {}
                Err(error) => eprintln!("fio {way} {engine}: {error}"),
            }
        }
        match best {
            Some((bps, note)) => {
                table.push(&Figure::new(row, name, "GB/s", Spread::of([bps / 1e9])).note(note));
            }
            None => eprintln!("no figures of fio: it is not installed or refuses this directory"),
        }
    }
    Ok(())
}

fn once(dir: &Path, way: &str, engine: &str, depth: u32) -> Result<f64, Failure> {
    let output = Command::new("fio")
        .arg("--name=bench")
        .arg(format!("--directory={}", dir.display()))
        .args(["--size=1G", "--bs=1M", "--direct=1", "--scramble_buffers=0"])
        .args(["--time_based", "--runtime=2", "--output-format=json"])
        .arg(format!("--rw={way}"))
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--iodepth={depth}"))
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Notes of fio's may stand before the object.
    let object = text.find('{').map_or("", |at| &text[at..]);
    let report: serde_json::Value = serde_json::from_str(object)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
    let bps = report["jobs"][0][way]["bw_bytes"].as_f64().unwrap_or(0.0);
    if bps > 0.0 { Ok(bps) } else { Err("fio reports no bandwidth".into()) }
}
