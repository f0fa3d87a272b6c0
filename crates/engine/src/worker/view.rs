//! What a worker shows of itself: its state in one word, its positions, its last commit, its heartbeat.

use std::time::{Duration, Instant};

use landfall_types::{Clock, Code, PartitionId, Place, Timestamp};
use parking_lot::Mutex;

use crate::contract::{Covered, Positions, SinkError};

/// The state of a sink (E143).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SinkState {
    /// Writes go through.
    Running,
    /// A write failed in a passing way and is tried again.
    Retrying(Failure),
    /// The destination refuses everything, or a row error stops it; tried again at the longest back-off.
    Blocked(Failure),
}

/// What failed, and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// `destination`, `row error`, `dead letters`, or the class of a retry.
    pub(crate) reason: &'static str,
    pub(crate) code: Code,
    pub(crate) cause: String,
    pub(crate) attempt: u32,
    pub(crate) next: Instant,
    pub(crate) first: Option<(PartitionId, Place)>,
}

/// A commit of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastCommit {
    pub(crate) version: Option<u64>,
    pub(crate) took: Duration,
    pub(crate) at: Timestamp,
}

#[derive(Debug)]
struct Inside {
    state: SinkState,
    since: Instant,
    open_rows: u64,
    accepted_rows: u64,
    positions: Positions,
    last_commit: Option<LastCommit>,
    beat: Instant,
}

/// See the module. Short lock, memory only.
#[derive(Debug)]
pub(crate) struct ShardView {
    inside: Mutex<Inside>,
    pipeline: String,
    sink: String,
    up: Option<metrics::Gauge>,
}

/// A snapshot of a view.
#[derive(Clone, Debug)]
pub(crate) struct ShardSight {
    pub(crate) state: SinkState,
    pub(crate) open_rows: u64,
    pub(crate) accepted_rows: u64,
    pub(crate) last_commit: Option<LastCommit>,
}

impl ShardView {
    pub(crate) fn new(pipeline: &str, sink: &str, clock: &dyn Clock) -> Self {
        let now = clock.instant();
        ShardView {
            inside: Mutex::new(Inside {
                state: SinkState::Running,
                since: now,
                open_rows: 0,
                accepted_rows: 0,
                positions: Positions::new(),
                last_commit: None,
                beat: now,
            }),
            pipeline: pipeline.to_owned(),
            sink: sink.to_owned(),
            up: None,
        }
    }

    /// The same with the gauge that shows whether the sink answers.
    pub(crate) fn with_gauge(mut self, up: metrics::Gauge) -> Self {
        self.up = Some(up);
        self
    }

    pub(crate) fn beat(&self, now: Instant) {
        self.inside.lock().beat = now;
    }

    pub(crate) fn last_beat(&self) -> Instant {
        self.inside.lock().beat
    }

    pub(crate) fn set_rows(&self, open: u64, accepted: u64) {
        let mut inside = self.inside.lock();
        inside.open_rows = open;
        inside.accepted_rows = accepted;
    }

    /// Ends of what the destination says it holds.
    pub(crate) fn move_positions(&self, positions: Positions) {
        let mut inside = self.inside.lock();
        for (partition, end) in positions {
            let known = inside.positions.entry(partition).or_insert(end);
            *known = (*known).max(end);
        }
    }

    /// Ranges that were settled.
    pub(crate) fn cover(&self, covers: &[Covered]) {
        self.move_positions(covers.iter().map(|cover| (cover.partition, cover.range.end)).collect());
    }

    /// The end of what the destination holds of a partition.
    pub(crate) fn position(&self, partition: PartitionId) -> Option<Place> {
        self.inside.lock().positions.get(&partition).copied()
    }

    /// Why it does not simply run.
    pub(crate) fn failure_text(&self) -> Option<String> {
        match &self.inside.lock().state {
            SinkState::Running => None,
            SinkState::Retrying(failure) | SinkState::Blocked(failure) => Some(failure.cause.clone()),
        }
    }

    pub(crate) fn committed(&self, version: Option<u64>, took: Duration, at: Timestamp) {
        self.inside.lock().last_commit = Some(LastCommit { version, took, at });
    }

    pub(crate) fn is_running(&self) {
        self.change(SinkState::Running);
    }

    pub(crate) fn has_failed(
        &self,
        is_destination: bool,
        error: &SinkError,
        attempt: u32,
        delay: Duration,
        first: Option<(PartitionId, Place)>,
    ) {
        let reason = match error {
            _ if is_destination => "destination",
            SinkError::Unknown { .. } => "unknown",
            _ => "later",
        };
        let failure = Failure {
            reason,
            code: error.code(),
            cause: error.to_string(),
            attempt,
            next: Instant::now() + delay,
            first,
        };
        self.change(if is_destination { SinkState::Blocked(failure) } else { SinkState::Retrying(failure) });
    }

    /// Blocked for another reason than an error of a call.
    pub(crate) fn is_blocked(&self, failure: Failure) {
        self.change(SinkState::Blocked(failure));
    }

    fn change(&self, to: SinkState) {
        let mut inside = self.inside.lock();
        let word = |state: &SinkState| match state {
            SinkState::Running => 0,
            SinkState::Retrying(_) => 1,
            SinkState::Blocked(_) => 2,
        };
        let is_edge = word(&inside.state) != word(&to);
        let before = inside.since.elapsed();
        if is_edge {
            inside.since = Instant::now();
        }
        inside.state = to.clone();
        drop(inside);
        if !is_edge {
            return;
        }
        let before_ms = u64::try_from(before.as_millis()).unwrap_or(u64::MAX);
        if let Some(up) = &self.up {
            up.set(if to == SinkState::Running { 1.0 } else { 0.0 });
        }
        match to {
            SinkState::Running => {
                tracing::info!(pipeline = %self.pipeline, sink = %self.sink, before_ms, "the sink is running");
            }
            SinkState::Retrying(failure) => tracing::info!(
                pipeline = %self.pipeline, sink = %self.sink, before_ms, "the sink is retrying: {}", failure.cause
            ),
            SinkState::Blocked(failure) => tracing::error!(
                code = %failure.code, pipeline = %self.pipeline, sink = %self.sink, before_ms,
                "the sink is blocked ({}): {}", failure.reason, failure.cause
            ),
        }
    }

    pub(crate) fn sight(&self) -> ShardSight {
        let inside = self.inside.lock();
        ShardSight {
            state: inside.state.clone(),
            open_rows: inside.open_rows,
            accepted_rows: inside.accepted_rows,
            last_commit: inside.last_commit,
        }
    }
}
