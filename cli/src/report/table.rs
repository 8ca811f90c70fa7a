//! Columns of text, aligned to the right under their headings.

/// A table under construction: columns stand in groups that share a heading.
#[derive(Debug, Default)]
pub(super) struct Table {
    groups: Vec<(String, usize)>,
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Blanks between two columns, and between two groups.
const GAP: usize = 2;
const GROUP_GAP: usize = 4;

impl Table {
    /// Adds a group of columns.
    pub(super) fn group(&mut self, name: &str, headings: &[&str]) {
        self.groups.push((name.to_owned(), headings.len()));
        self.headings.extend(headings.iter().map(|heading| (*heading).to_owned()));
    }

    /// Adds a row; cells that are missing stay blank.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns the table, every line ended.
    pub(super) fn render(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        if self.groups.iter().any(|(name, _)| !name.is_empty()) {
            text.push_str(&self.group_line(&widths));
        }
        text.push_str(&self.line(&widths, &self.headings));
        for row in &self.rows {
            text.push_str(&self.line(&widths, row));
        }
        text
    }

    /// Returns each column's width; the first of a group is widened if the group's name needs it.
    fn widths(&self) -> Vec<usize> {
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let mut widths: Vec<usize> = (0..self.headings.len())
            .map(|column| {
                let heading = self.headings.get(column).into_iter();
                heading.chain(cells(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut first = 0;
        for (name, columns) in &self.groups {
            let lacking = name.chars().count().saturating_sub(span(&widths, first, *columns));
            if let Some(width) = widths.get_mut(first) {
                *width += lacking;
            }
            first += columns;
        }
        widths
    }

    fn group_line(&self, widths: &[usize]) -> String {
        let mut line = String::new();
        let mut first = 0;
        for (name, columns) in &self.groups {
            let gap = if first == 0 { 0 } else { GROUP_GAP };
            let width = span(widths, first, *columns);
            line.push_str(&format!("{:gap$}{name:>width$}", ""));
            first += columns;
        }
        finish(line)
    }

    fn line(&self, widths: &[usize], cells: &[String]) -> String {
        let mut line = String::new();
        let mut column = 0;
        for (_, columns) in &self.groups {
            for index in 0..*columns {
                let gap = match (column, index) {
                    (0, _) => 0,
                    (_, 0) => GROUP_GAP,
                    _ => GAP,
                };
                let cell = cells.get(column).map_or("", String::as_str);
                let width = widths.get(column).copied().unwrap_or(0);
                line.push_str(&format!("{:gap$}{cell:>width$}", ""));
                column += 1;
            }
        }
        finish(line)
    }
}

/// Returns how wide some columns are with their gaps.
fn span(widths: &[usize], first: usize, columns: usize) -> usize {
    let widths = widths.iter().skip(first).take(columns);
    widths.sum::<usize>() + GAP * columns.saturating_sub(1)
}

fn finish(line: String) -> String {
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_under_their_headings_and_groups() {
        let mut table = Table::default();
        table.group("", &["step"]);
        table.group("a long name", &["n", "bytes"]);
        table.group("b", &["n"]);
        table.row(vec!["1".into(), "12".into(), "3 B".into(), "4567".into()]);
        table.row(vec!["2".into()]);
        let lines = [
            "        a long name       b",
            "step       n  bytes       n",
            "   1      12    3 B    4567",
            "   2",
            "",
        ];
        assert_eq!(table.render(), lines.join("\n"));
    }
}
