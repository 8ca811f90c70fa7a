//! What `tensortier adam --ablate` says: one row for each mechanism that is added.

use serde::Serialize;
use tensortier::storage::units::{Bytes, BytesPerSecond, Count};

use super::table::Table;
use super::text::seconds;

/// What each mechanism brings (`--ablate`).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ablation {
    pub(crate) format: u32,
    pub(crate) parameters: u64,
    pub(crate) host_memory_bytes: u64,
    pub(crate) steps: u64,
    pub(crate) paths: Vec<String>,
    pub(crate) rows: Vec<AblationRow>,
    /// Whether all rows ended with the same weights, to the bit.
    pub(crate) same_weights: bool,
}

/// One way of running the steps: means from the second step on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct AblationRow {
    pub(crate) name: String,
    /// Of a step, the hand-over of gradients included.
    pub(crate) seconds: f64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) bytes_per_second: f64,
    /// Achieved rate over what the raw paths carried beside the row; 1 is perfect.
    pub(crate) achieved: f64,
    /// How many times as fast as the first row.
    pub(crate) times_first: f64,
    /// How many times as fast as the row before.
    pub(crate) times_before: f64,
}

impl Ablation {
    /// Version of the names.
    pub(crate) const FORMAT: u32 = 1;

    /// Returns it as one JSON object.
    ///
    /// # Errors
    /// If a figure is no number JSON can hold.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// Returns the table, what it stands for, and the verdict over the weights.
pub(crate) fn ablation_text(ablation: &Ablation) -> String {
    let mut table = Table::default();
    let widest = ablation.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let heading = format!("{:widest$}", "way");
    table.group("", &[&heading, "s/step", "read", "written", "moved/s", "achieved"]);
    table.group("times as fast as", &["the first", "before"]);
    for row in &ablation.rows {
        table.row(vec![
            format!("{:widest$}", row.name),
            seconds(row.seconds),
            Bytes(row.read_bytes).to_string(),
            Bytes(row.written_bytes).to_string(),
            BytesPerSecond(row.bytes_per_second).to_string(),
            format!("{:.0} %", 100.0 * row.achieved),
            format!("{:.2}", row.times_first),
            format!("{:.2}", row.times_before),
        ]);
    }
    let same = if ablation.same_weights {
        "all rows end with the same weights: bit-identical"
    } else {
        "the rows do NOT end with the same weights"
    };
    format!(
        "{} parameters, {} of memory for state, paths {}\n\n{}\n\
         means of steps 2 to {}; achieved: of what the raw paths of the row carried beside it\n\
         as ZeRO-3: ascending order, least recently used leaves, fp32 gradients written and read back,\n\
         one subgroup read ahead, one path\n{same}\n",
        Count(ablation.parameters),
        Bytes(ablation.host_memory_bytes),
        ablation.paths.join(", "),
        table.render(),
        ablation.steps,
    )
}

/// Returns an ablation of two rows, for tests.
#[cfg(test)]
pub(super) fn sample() -> Ablation {
    let row = |name: &str, seconds, times| AblationRow {
        name: name.into(),
        seconds,
        read_bytes: 3 << 30,
        written_bytes: 2 << 30,
        bytes_per_second: 1.5e9,
        achieved: 0.931,
        times_first: times,
        times_before: times,
    };
    Ablation {
        format: Ablation::FORMAT,
        parameters: 500_000_000,
        host_memory_bytes: 1 << 30,
        steps: 5,
        paths: vec!["/nvme0".into(), "/nvme1".into()],
        rows: vec![row("slow", 7.5, 1.0), row("+ something faster", 2.5, 3.0)],
        same_weights: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_to_the_left_and_the_verdict_last() {
        let ablation = sample();
        let text = ablation_text(&ablation);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("1.00 GiB") && lines[0].ends_with("/nvme0, /nvme1"), "{text}");
        assert!(lines[4].starts_with("slow  ") && lines[4].contains("7.50"), "{text}");
        assert!(lines[5].starts_with("+ something faster") && lines[5].ends_with("3.00"), "{text}");
        assert!(lines[5].contains("93 %"), "{text}");
        assert!(text.ends_with("bit-identical\n"), "{text}");
        assert!(lines.iter().all(|line| line.len() <= 110), "{text}");
        assert!(ablation_text(&Ablation { same_weights: false, ..ablation }).contains("NOT"));
    }
}
