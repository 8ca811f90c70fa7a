//! The progress bar, on standard error and only on a terminal.

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// A bar over a number of parameters to be updated, with their rate and the time left.
pub(super) fn bar(parameters: u64, verb: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(parameters);
    let template = "{prefix} [{bar:32}] {percent:>3} %  {rate}  {left} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(
            style
                .progress_chars("=> ")
                .with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    let _ = write!(out, "{:>7.1} Mparam/s", state.per_sec() / 1e6);
                })
                .with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    let _ = write!(out, "{:#}", HumanDuration(state.eta()));
                }),
        );
    }
    bar.set_prefix(verb);
    bar
}
