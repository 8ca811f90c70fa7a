//! Sizes, rates and counts with units: how they are written by people and read back.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Displayed with binary units; parsed from `4096`, `8MiB`, `8Mi`, `1.5GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A rate in bytes per second. Displayed in decimal units; parsed from `1.5GB/s`, `600MB/s`, `1GiB/s`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct BytesPerSecond(pub f64);

/// A number of things (parameters, steps). Displayed as `500.0M`; parsed from `500M`, `8Mi`, `1_000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Count(pub u64);

/// Why a size, rate or count could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct ParseUnitError {
    text: String,
    wanted: &'static str,
}

const BYTES_WANTED: &str = "a size; write for example 4096, 512MiB, 8Mi or 1.5GB";
const RATE_WANTED: &str = "a rate; write for example 600MB/s or 1.5GB/s";
const COUNT_WANTED: &str = "a count; write for example 500M, 8Mi or 1000000";

/// Splits `1.5GiB` into its number and its multiplier; `b` says that a trailing `B` is allowed.
fn parse_scaled(text: &str, b: bool) -> Option<f64> {
    let text = text.trim();
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.replace('_', "").parse().ok()?;
    let unit = unit.trim_start();
    let unit = if b { unit.strip_suffix('B').unwrap_or(unit) } else { unit };
    let (prefix, base) = match unit.strip_suffix('i') {
        Some(prefix) if !prefix.is_empty() => (prefix, 1024f64),
        Some(_) => return None,
        None => (unit, 1000f64),
    };
    let power = match prefix {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        _ => return None,
    };
    let scaled = number * base.powi(power);
    scaled.is_finite().then_some(scaled)
}

/// Reads a whole number: what has a fraction left after scaling is refused, not rounded.
fn parse_whole(text: &str, b: bool) -> Option<u64> {
    let scaled = parse_scaled(text, b)?;
    // Above 2^53 an f64 cannot tell whole numbers apart, and no size of ours is that large.
    (scaled.fract() == 0.0 && scaled <= 9_007_199_254_740_992.0).then_some(scaled as u64)
}

impl FromStr for Bytes {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_whole(text, true).map(Bytes).ok_or_else(|| refuse(text, BYTES_WANTED))
    }
}

impl FromStr for Count {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_whole(text, false).map(Count).ok_or_else(|| refuse(text, COUNT_WANTED))
    }
}

impl FromStr for BytesPerSecond {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_suffix("B/s")
            .and_then(|scaled| parse_scaled(scaled, false))
            .filter(|rate| *rate >= 1.0)
            .map(BytesPerSecond)
            .ok_or_else(|| refuse(text, RATE_WANTED))
    }
}

fn refuse(text: &str, wanted: &'static str) -> ParseUnitError {
    ParseUnitError { text: text.to_owned(), wanted }
}

/// Writes `value` with the largest unit that keeps it at 1 or more, three significant digits.
fn write_scaled(f: &mut fmt::Formatter<'_>, value: f64, base: f64, units: &[&str]) -> fmt::Result {
    let mut value = value;
    let mut index = 0;
    while value >= base * 0.9995 && index + 1 < units.len() {
        value /= base;
        index += 1;
    }
    let digits = if index == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    f.pad(&format!("{value:.digits$}{}", units.get(index).unwrap_or(&"")))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = [" B", " KiB", " MiB", " GiB", " TiB", " PiB"];
        write_scaled(f, self.0 as f64, 1024.0, &UNITS)
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = [" B/s", " kB/s", " MB/s", " GB/s", " TB/s"];
        write_scaled(f, self.0, 1000.0, &UNITS)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0 as f64, 1000.0, &["", "k", "M", "G", "T"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units() {
        let read = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(read("4096"), Ok(4096));
        assert_eq!(read("8Mi"), Ok(8 << 20));
        assert_eq!(read("8MiB"), Ok(8 << 20));
        assert_eq!(read("1.5GB"), Ok(1_500_000_000));
        assert_eq!(read("1 GiB"), Ok(1 << 30));
        assert_eq!(read("1_000"), Ok(1000));
        for bad in ["", "x", "8Q", "8i", "-1", "1.5", "1..5", "GB", "8MiBs", "9e99", "1e3", "8Mib"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read("8Qi").unwrap_err().to_string().contains("8Qi"));
    }

    #[test]
    fn rates_need_their_second_and_counts_have_no_bytes() {
        assert_eq!("1.5GB/s".parse::<BytesPerSecond>(), Ok(BytesPerSecond(1.5e9)));
        assert_eq!("1GiB/s".parse::<BytesPerSecond>(), Ok(BytesPerSecond(1_073_741_824.0)));
        for bad in ["1.5GB", "1.5GBs", "1.5Gb/s", "0GB/s", "/s", "B/s"] {
            assert!(bad.parse::<BytesPerSecond>().is_err(), "{bad}");
        }
        assert_eq!("500M".parse(), Ok(Count(500_000_000)));
        assert_eq!("8Mi".parse(), Ok(Count(8 << 20)));
        assert!("8MB".parse::<Count>().is_err());
    }

    #[test]
    fn display_keeps_three_digits() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(Bytes((1 << 30) - 1).to_string(), "1.00 GiB");
        assert_eq!(BytesPerSecond(6e8).to_string(), "600 MB/s");
        assert_eq!(Count(22_713_216).to_string(), "22.7M");
        assert_eq!(Count(12).to_string(), "12");
    }
}
