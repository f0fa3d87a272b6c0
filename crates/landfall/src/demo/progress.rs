//! Progress bars of the demo, on a terminal only.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar for what is published and one for what has landed.
pub(super) struct Progress {
    records: u64,
    published: ProgressBar,
    landed: ProgressBar,
}

impl Progress {
    /// Shows the bars, if anybody looks.
    pub(super) fn start(records: u64, shown: bool) -> Self {
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bars = MultiProgress::with_draw_target(target);
        let bar = |name: &'static str| {
            let bar = bars.add(ProgressBar::new(records).with_prefix(name));
            if let Ok(style) =
                ProgressStyle::with_template("{prefix:<10} {wide_bar} {human_pos:>12}/{human_len} {per_sec:>14}")
            {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        };
        Progress { records, published: bar("published"), landed: bar("landed") }
    }

    /// So many records were handed to the client.
    pub(super) fn published(&self, records: u64) {
        self.published.set_position(records);
    }

    /// So many records of this run are settled.
    pub(super) fn landed(&self, records: u64) {
        self.landed.set_position(records.min(self.records));
    }

    /// Leaves the bars as they are.
    pub(super) fn finish(&self) {
        self.published.abandon();
        self.landed.abandon();
    }
}
