//! How far the capture is, on a terminal only: the copy with its rate and rest, then the lag.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

/// One line that moves.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Shows it, if anybody looks.
    pub(super) fn start(shown: bool) -> Self {
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(1_000), target);
        bar.enable_steady_tick(Duration::from_millis(250));
        Progress(bar)
    }

    /// What the source reports.
    pub(super) fn show(&self, report: &Value, transactions: u64) {
        let detail = &report["detail"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        match report["stage"].as_str() {
            Some("copying") => {
                self.style("copying   {wide_bar} {percent:>3} %  {msg}");
                self.0.set_position((detail["ratio"].as_f64().unwrap_or(0.0) * 1_000.0) as u64);
                let left = detail["seconds_left"].as_u64().map_or(String::new(), |left| format!(", {left} s left"));
                self.0.set_message(format!("{} rows{left}", number(&detail["rows"])));
            }
            stage => {
                self.style("{spinner} {wide_msg}");
                let rows: u64 =
                    report["tables"].as_array().into_iter().flatten().map(|table| number(&table["rows"])).sum();
                let behind = number(&report["behind_bytes"]);
                self.0.set_message(format!(
                    "{}: {rows} rows taken, {behind} bytes of log behind, {transactions} transactions at the source",
                    stage.unwrap_or("starting")
                ));
            }
        }
    }

    /// Prints above the line.
    pub(super) fn print(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }

    fn style(&self, template: &'static str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
