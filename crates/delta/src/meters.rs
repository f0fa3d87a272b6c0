//! The sink's metrics: commits by outcome, and what they wrote.

use std::time::Duration;

use deltalake_core::kernel::Add;
use metrics::{Counter, Histogram};

use crate::commit::Committed;

/// Metric handles, made once.
pub(crate) struct Handles {
    pub(crate) ok: Counter,
    pub(crate) already: Counter,
    pub(crate) kept: Counter,
    pub(crate) superseded: Counter,
    pub(crate) closed_early: Counter,
    conflicts: Counter,
    seconds: Histogram,
    files: Counter,
    file_bytes: Histogram,
}

impl Handles {
    pub(crate) fn of(pipeline: &str) -> Self {
        let pipeline = || pipeline.to_owned();
        let commits = |outcome: &'static str| metrics::counter!("landfall_delta_commits_total", "pipeline" => pipeline(), "outcome" => outcome);
        Handles {
            ok: commits("ok"),
            already: commits("already_there"),
            kept: commits("retried"),
            superseded: commits("superseded"),
            closed_early: metrics::counter!("landfall_delta_files_closed_early_total", "pipeline" => pipeline()),
            conflicts: metrics::counter!("landfall_delta_conflicts_total", "pipeline" => pipeline()),
            seconds: metrics::histogram!("landfall_delta_commit_seconds", "pipeline" => pipeline()),
            files: metrics::counter!("landfall_delta_files_total", "pipeline" => pipeline()),
            file_bytes: metrics::histogram!("landfall_delta_file_bytes", "pipeline" => pipeline()),
        }
    }

    pub(crate) fn committed(&self, committed: &Committed, adds: &[Add], took: Duration) {
        self.conflicts.increment(u64::from(committed.conflicts));
        if committed.already_there {
            self.already.increment(1);
            return;
        }
        self.ok.increment(1);
        self.seconds.record(took.as_secs_f64());
        self.files.increment(adds.len() as u64);
        for add in adds {
            self.file_bytes.record(add.size as f64);
        }
    }
}
