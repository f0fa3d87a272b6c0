//! The handle of a running pipeline: look, wait, hurry, end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_types::{PartitionId, Place};
use tokio::sync::watch;

use crate::contract::PipelineId;
use crate::exit::ExitReport;
use crate::sight::{Balance, PipelineState, PipelineStatus, Shared};

/// See the module. Cheap to clone; dropping it changes nothing.
#[derive(Clone)]
pub struct PipelineHandle {
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for PipelineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelineHandle").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

impl PipelineHandle {
    /// The pipeline.
    pub fn id(&self) -> &PipelineId {
        &self.shared.id
    }

    /// Its part of `/v1/status`.
    pub fn status(&self) -> PipelineStatus {
        self.shared.status()
    }

    /// Its worst state.
    pub fn state(&self) -> PipelineState {
        self.shared.status().state
    }

    /// The balance of a sink, by name.
    pub fn balance(&self, sink: &str) -> Option<Balance> {
        let at = self.shared.sinks.lock().iter().position(|part| part.name.as_ref() == sink)?;
        Some(self.shared.balance_of(at))
    }

    /// Per partition the end of what every sink has settled.
    pub fn watermarks(&self) -> BTreeMap<PartitionId, Place> {
        self.shared.sight.lock().watermarks.clone()
    }

    /// Per partition the end of what is settled and durable as such.
    pub fn committed(&self) -> BTreeMap<PartitionId, Place> {
        self.shared.sight.lock().committed.clone()
    }

    /// A number that moves with every watermark and every change of state.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Waits until the watermarks have reached `positions`; false if the time ran out or the pipeline has ended.
    pub async fn wait_until(&self, positions: &BTreeMap<PartitionId, Place>, timeout: Duration) -> bool {
        let mut changes = self.shared.changes.subscribe();
        let mut ended = self.shared.ended.subscribe();
        let has_reached = || {
            let marks = self.watermarks();
            positions.iter().all(|(partition, place)| marks.get(partition).is_some_and(|mark| mark >= place))
        };
        let waiting = async {
            loop {
                if has_reached() {
                    return true;
                }
                if ended.borrow().is_some() {
                    return has_reached();
                }
                tokio::select! {
                    moved = changes.changed() => if moved.is_err() { return has_reached() },
                    _ = ended.changed() => {}
                }
            }
        };
        tokio::time::timeout(timeout, waiting).await.unwrap_or(false)
    }

    /// Asks for a commit soon: what is coalesced is handed over, sealed, made durable, and committed.
    pub fn flush(&self) {
        self.shared.asked.lock().flush = true;
        self.shared.wake();
    }

    /// Ends it within `grace` (I11): nothing new is read; what is in flight is finished, flushed and committed; what
    /// does not finish is named in the report. May be called again; an earlier deadline stands.
    pub async fn shutdown(&self, grace: Duration) -> ExitReport {
        let deadline = Instant::now() + grace;
        {
            let mut asked = self.shared.asked.lock();
            if asked.shutdown.is_none_or(|earlier| deadline < earlier) {
                asked.shutdown = Some(deadline);
                asked.grace = grace;
            }
        }
        self.shared.wake();
        self.ended().await
    }

    /// Ends it at once, without finishing anything (a second signal). Nothing is committed past what was.
    pub fn abort(&self) {
        self.shared.asked.lock().abort = true;
        self.shared.wake();
    }

    /// Waits for its end, whoever asked for it.
    pub async fn ended(&self) -> ExitReport {
        let mut ended = self.shared.ended.subscribe();
        loop {
            if let Some(report) = ended.borrow_and_update().clone() {
                return report;
            }
            if ended.changed().await.is_err() {
                // The sender lives in `shared`, which this handle keeps.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The report, if it has ended.
    pub fn exit_report(&self) -> Option<ExitReport> {
        self.shared.ended.borrow().clone()
    }

    /// The oldest heartbeat among its threads and workers, with a name (E78).
    pub fn oldest_beat(&self) -> Option<(String, Duration)> {
        let now = self.shared.clock.instant();
        let beats = self.shared.beats.lock().clone();
        let threads = beats.iter().map(|beat| (beat.name.clone(), beat.age(now)));
        let sinks = self.shared.sinks.lock().clone();
        let is_running = !beats.is_empty();
        let workers = sinks.iter().filter(|_| is_running).flat_map(|sink| {
            sink.views
                .iter()
                .map(|view| (format!("sink {}", sink.name), now.saturating_duration_since(view.last_beat())))
        });
        threads.chain(workers).max_by_key(|(_, age)| *age)
    }
}
