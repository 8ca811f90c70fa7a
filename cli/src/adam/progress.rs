//! The progress bar, on standard error and only on a terminal.

use std::time::Duration;

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
                    let _ = write!(out, "{:>7.1} Mparam/s", rate(state) / 1e6);
                })
                .with_key("left", move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    let seconds =
                        parameters.saturating_sub(state.pos()) as f64 / rate(state).max(1e-3);
                    let left = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
                    let _ = write!(out, "{:#}", HumanDuration(left));
                }),
        );
    }
    bar.set_prefix(verb);
    bar
}

/// Returns the mean rate so far: what came last would jump with every subgroup that was waited for.
fn rate(state: &ProgressState) -> f64 {
    state.pos() as f64 / state.elapsed().as_secs_f64().max(1e-9)
}
