//! One figure per row: what was achieved, the limit, their ratio, and the bar it is held against.

use std::fmt;

use serde_json::json;

/// The median and the range of repeated measurements.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many there are.
    pub count: usize,
}

impl Spread {
    /// Returns the spread of some values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let count = values.len();
        Spread { median: at(count / 2), min: at(0), max: at(count.saturating_sub(1)), count }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = |value: f64| match value.abs() {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            value if value >= 0.5 => 2,
            _ => 3,
        };
        let (median, min, max) = (self.median, self.min, self.max);
        let text = if self.count > 1 {
            let d = digits(median);
            format!("{median:.d$} [{min:.d$}..{max:.d$}]")
        } else {
            format!("{median:.*}", digits(median))
        };
        f.pad(&text)
    }
}

/// What a figure must reach.
#[derive(Debug, Clone, Copy)]
pub enum Bar {
    /// The ratio to the limit is at least this.
    Ratio(f64),
    /// The figure itself is at most this.
    AtMost(f64),
}

/// One figure.
#[derive(Debug)]
pub struct Figure {
    /// The row it belongs to, as named on the command line.
    pub row: &'static str,
    /// What was done.
    pub case: String,
    /// The unit of `achieved` and `limit`.
    pub unit: &'static str,
    /// What was measured.
    pub achieved: Spread,
    /// What could be had at best, measured beside it or configured.
    pub limit: Option<Spread>,
    /// `achieved / limit`, pair by pair.
    pub ratio: Option<Spread>,
    /// What is demanded.
    pub bar: Option<Bar>,
    /// What else there is to say.
    pub note: String,
}

impl Figure {
    /// Returns a figure without a limit.
    pub fn new(
        row: &'static str,
        case: impl Into<String>,
        unit: &'static str,
        achieved: Spread,
    ) -> Self {
        let (limit, ratio, bar, note) = (None, None, None, String::new());
        Figure { row, case: case.into(), unit, achieved, limit, ratio, bar, note }
    }

    /// Returns a figure of pairs: what was achieved and the limit beside it.
    pub fn of_pairs(
        row: &'static str,
        case: impl Into<String>,
        unit: &'static str,
        pairs: &[(f64, f64)],
    ) -> Self {
        let achieved = Spread::of(pairs.iter().map(|(achieved, _)| *achieved));
        let mut figure = Figure::new(row, case, unit, achieved);
        figure.limit = Some(Spread::of(pairs.iter().map(|(_, limit)| *limit)));
        figure.ratio = Some(Spread::of(pairs.iter().map(|(achieved, limit)| achieved / limit)));
        figure
    }

    /// Sets what is demanded.
    #[must_use]
    pub fn bar(mut self, bar: Bar) -> Self {
        self.bar = Some(bar);
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn verdict(&self) -> &'static str {
        let met = match self.bar {
            None => return "",
            Some(Bar::Ratio(least)) => self.ratio.is_some_and(|ratio| ratio.median >= least),
            Some(Bar::AtMost(most)) => self.achieved.median <= most,
        };
        if met { "met" } else { "MISSED" }
    }
}

/// Prints figures as they come.
#[derive(Debug)]
pub struct Table {
    json: bool,
}

impl Table {
    /// Returns a table and prints its head.
    pub fn new(json: bool) -> Self {
        if !json {
            println!(
                "{:10} {:48} {:25} {:25} {:19} {:8} {:6} note",
                "row", "case", "achieved", "limit", "achieved/limit", "bar", ""
            );
        }
        Table { json }
    }

    /// Prints one figure.
    pub fn push(&self, figure: &Figure) {
        let bar = match figure.bar {
            None => String::new(),
            Some(Bar::Ratio(least)) => format!(">= {least}"),
            Some(Bar::AtMost(most)) => format!("<= {most}"),
        };
        if self.json {
            let spread =
                |s: &Spread| json!({"median": s.median, "min": s.min, "max": s.max, "n": s.count});
            let line = json!({
                "row": figure.row, "case": figure.case, "unit": figure.unit,
                "achieved": spread(&figure.achieved),
                "limit": figure.limit.as_ref().map(spread),
                "ratio": figure.ratio.as_ref().map(spread),
                "bar": bar, "verdict": figure.verdict(), "note": figure.note,
            });
            println!("{line}");
            return;
        }
        let shown = |s: Option<Spread>, unit| s.map_or_else(String::new, |s| format!("{s} {unit}"));
        println!(
            "{:10} {:48} {:25} {:25} {:19} {:8} {:6} {}",
            figure.row,
            figure.case,
            shown(Some(figure.achieved), figure.unit),
            shown(figure.limit, figure.unit),
            figure.ratio.map_or_else(String::new, |ratio| ratio.to_string()),
            bar,
            figure.verdict(),
            figure.note
        );
    }
}
