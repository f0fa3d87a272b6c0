//! What a pipeline shows of itself: totals, states, positions (E113, E143, E144), put together without asking the
//! controller, so that a pipeline that hangs can still be looked at.

mod books;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_types::{Clock, Code, PartitionId, Place, Timestamp};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use crate::contract::{PipelineId, Sink, TableId};
use crate::core::{FailCause, Wake, Waker};
use crate::dead_letter::LetterQueue;
use crate::driver::Beat;
use crate::exit::ExitReport;
use crate::shard::ShardQueue;
use crate::worker::{LastCommit, ShardView, SinkState};

pub use books::Balance;
pub(crate) use books::{Books, Live, Totals};
pub(crate) use tables::TableSight;
pub use tables::TableStatus;
use tables::table_statuses;

/// The state of a pipeline in one word (E143).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PipelineState {
    /// Positions are read, the sinks are opened.
    Starting,
    /// Records move, or would.
    Running,
    /// Something is in the way that a retry alone does not mend.
    Blocked,
    /// Something failed in a passing way and is tried again.
    Retrying,
    /// Shutdown has begun.
    Draining,
    /// It ended with an error and starts again by its back-off, unless an invariant broke.
    Failed,
    /// It has ended.
    Stopped,
}

/// A partition that is restarting.
#[derive(Clone, Debug, Serialize)]
pub struct RestartStatus {
    /// The partition.
    pub partition: u32,
    /// The table it is of, for a change source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<TableId>,
    /// Why it restarts.
    pub cause: String,
    /// The code of the cause.
    pub code: Code,
    /// Which attempt comes next.
    pub attempt: u32,
    /// When, in ms; null while it is being cleared.
    pub next_ms: Option<u64>,
    /// Whether only a human, or a repaired destination, helps.
    pub blocked: bool,
}

/// What the controller writes down in each pass.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    pub(crate) books: Books,
    pub(crate) tables: BTreeMap<TableId, Books>,
    pub(crate) table_sights: Vec<TableSight>,
    pub(crate) live: BTreeMap<PartitionId, Live>,
    pub(crate) watermarks: BTreeMap<PartitionId, Place>,
    pub(crate) committed: BTreeMap<PartitionId, Place>,
    pub(crate) sink_marks: Vec<BTreeMap<PartitionId, Place>>,
    pub(crate) tails: Vec<(PartitionId, Place)>,
    pub(crate) restarts: Vec<RestartStatus>,
    pub(crate) pending_batches: u64,
    pub(crate) pending_bytes: u64,
    pub(crate) oldest: Option<Duration>,
    pub(crate) source_report: serde_json::Value,
    pub(crate) stalled: Option<FailCause>,
}

/// A sink, as far as it is looked at.
#[derive(Clone)]
pub(crate) struct SinkSight {
    pub(crate) name: Arc<str>,
    pub(crate) guarantee: &'static str,
    /// None where each table has its own.
    pub(crate) sink: Option<Arc<dyn Sink>>,
    pub(crate) queues: Vec<Arc<ShardQueue>>,
    pub(crate) views: Vec<Arc<ShardView>>,
}

/// Why a pipeline is not simply running.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    /// Where: `sink delta`, `source`, `partition 0`.
    pub at: String,
    /// The code.
    pub code: Code,
    /// What happened, as the part that failed says it.
    pub cause: String,
    /// Which attempt failed last.
    pub attempt: u32,
    /// When it is tried again, in ms.
    pub next_ms: u64,
    /// The first place that waits.
    pub first: Option<FirstPlace>,
}

/// A place, as the status shows it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FirstPlace {
    /// The partition.
    pub partition: u32,
    /// The offset.
    pub offset: u64,
}

/// What was asked of a pipeline from outside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// Shutdown, by when.
    pub(crate) shutdown: Option<Instant>,
    /// How long the shutdown was given in all.
    pub(crate) grace: Duration,
    pub(crate) abort: bool,
    pub(crate) flush: bool,
}

#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) state: PipelineState,
    pub(crate) since: Timestamp,
    pub(crate) since_instant: Instant,
    pub(crate) why: Option<Why>,
}

/// The part of a pipeline that outlives its runs: what the handle sees and asks.
pub(crate) struct Shared {
    pub(crate) id: PipelineId,
    pub(crate) name: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) word: Mutex<Word>,
    pub(crate) sight: Mutex<Sight>,
    pub(crate) sinks: Mutex<Vec<SinkSight>>,
    pub(crate) letters: Mutex<Option<Arc<LetterQueue>>>,
    pub(crate) beats: Mutex<Vec<Arc<Beat>>>,
    pub(crate) asked: Mutex<Asked>,
    pub(crate) controller: Mutex<Option<Arc<Waker>>>,
    pub(crate) supervisor: Notify,
    /// Moves with every watermark and every change of state.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) ended: watch::Sender<Option<ExitReport>>,
    pub(crate) rates: Mutex<Rates>,
}

/// Rows since the last look, for the rates of the status.
#[derive(Debug)]
pub(crate) struct Rates {
    at: Instant,
    rows_in: u64,
    rows_out: u64,
    shown: (f64, f64),
}

impl Rates {
    pub(crate) fn new(now: Instant) -> Self {
        Rates { at: now, rows_in: 0, rows_out: 0, shown: (0.0, 0.0) }
    }

    fn look(&mut self, now: Instant, rows_in: u64, rows_out: u64) -> (f64, f64) {
        const WINDOW: Duration = Duration::from_millis(500);
        let passed = now.saturating_duration_since(self.at);
        if passed >= WINDOW {
            let per_second = |rows: u64, before: u64| rows.saturating_sub(before) as f64 / passed.as_secs_f64();
            self.shown = (per_second(rows_in, self.rows_in), per_second(rows_out, self.rows_out));
            (self.at, self.rows_in, self.rows_out) = (now, rows_in, rows_out);
        }
        self.shown
    }
}

impl Shared {
    /// Changes the pipeline's own word; what the sinks say comes on top when it is looked at.
    pub(crate) fn set_state(&self, state: PipelineState, why: Option<Why>) {
        let now = self.clock.instant();
        let mut word = self.word.lock();
        let is_edge = word.state != state;
        let (before, spent) = (word.state, now.saturating_duration_since(word.since_instant));
        if is_edge {
            word.since = self.clock.now();
            word.since_instant = now;
        }
        word.state = state;
        word.why = why.clone();
        drop(word);
        if is_edge {
            // A state changes seldom: the lookup of its gauge costs nothing that matters.
            let show = |state: PipelineState, value: f64| {
                let state = format!("{state:?}").to_lowercase();
                metrics::gauge!("landfall_pipeline_state", "pipeline" => self.id.0.clone(), "state" => state)
                    .set(value);
            };
            show(before, 0.0);
            show(state, 1.0);
            let before_ms = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
            match why {
                Some(why) if matches!(state, PipelineState::Failed | PipelineState::Blocked) => tracing::error!(
                    pipeline = %self.id, code = %why.code, before_ms, "{before:?} to {state:?}: {}", why.cause
                ),
                Some(why) => tracing::warn!(
                    pipeline = %self.id, code = %why.code, before_ms, "{before:?} to {state:?}: {}", why.cause
                ),
                None => tracing::info!(pipeline = %self.id, before_ms, "{before:?} to {state:?}"),
            }
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Wakes whoever looks after the pipeline now.
    pub(crate) fn wake(&self) {
        self.supervisor.notify_waiters();
        self.supervisor.notify_one();
        if let Some(controller) = &*self.controller.lock() {
            controller.wake(Wake::CONTROL);
        }
    }

    pub(crate) fn balance_of(&self, sink: usize) -> Balance {
        balance(&self.sight.lock(), sink)
    }
}

fn balance(sight: &Sight, sink: usize) -> Balance {
    sight.books.balance(sight.live.values(), sink)
}

/// A pipeline's part of `/v1/status`; fields are only ever added.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Its identity.
    pub id: PipelineId,
    /// Its worst state.
    pub state: PipelineState,
    /// Since when, RFC 3339.
    pub since: String,
    /// Why it is not simply running.
    pub why: Option<Why>,
    /// Rows per second since the last look.
    pub rates: RateStatus,
    /// How far it is behind its source.
    pub lag: LagStatus,
    /// What is not settled.
    pub in_flight: InFlightStatus,
    /// The age of the oldest batch that is not settled.
    pub oldest_unacked_ms: u64,
    /// Per partition the end of the settled prefix.
    pub watermarks: BTreeMap<String, u64>,
    /// Partitions that restart.
    pub restarts: Vec<RestartStatus>,
    /// Records set aside, of the sink that has most of them.
    pub dead_letters: u64,
    /// Its threads.
    pub threads: Vec<ThreadStatus>,
    /// The source's own report.
    pub source: serde_json::Value,
    /// Its sinks.
    pub sinks: Vec<SinkStatus>,
    /// Of a change source, its tables, those first that are not simply running; a thousand at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableStatus>,
}

/// See [`PipelineStatus::rates`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RateStatus {
    /// Source rows polled.
    pub rows_in: f64,
    /// Source rows settled, of the slowest sink.
    pub rows_out: f64,
}

/// See [`PipelineStatus::lag`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LagStatus {
    /// Tail minus watermark over all partitions.
    pub records: u64,
}

/// See [`PipelineStatus::in_flight`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct InFlightStatus {
    /// Source batches.
    pub batches: u64,
    /// Source rows, of the sink that has most.
    pub rows: u64,
    /// Bytes of source batches.
    pub bytes: u64,
}

/// See [`PipelineStatus::threads`].
#[derive(Clone, Debug, Serialize)]
pub struct ThreadStatus {
    /// The thread's name.
    pub name: String,
    /// The age of its heartbeat.
    pub beat_ms: u64,
    /// How much of the last second it worked.
    pub busy: f64,
}

/// One sink's part.
#[derive(Clone, Debug, Serialize)]
pub struct SinkStatus {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: PipelineState,
    /// Why it is not simply running.
    pub why: Option<Why>,
    /// "exactly once" or "at least once".
    pub guarantee: &'static str,
    /// Per partition the end of what it has.
    pub positions: BTreeMap<String, u64>,
    /// Its queues, over all shards.
    pub queue: QueueStatus,
    /// Rows that wait in a worker or are being written.
    pub open_rows: u64,
    /// Rows that the writer has accepted and not made durable.
    pub accepted_rows: u64,
    /// The destination's last commit.
    pub last_commit: Option<CommitStatus>,
    /// Its balance.
    pub balance: Balance,
    /// The sink's own report.
    pub report: serde_json::Value,
}

/// See [`SinkStatus::queue`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct QueueStatus {
    /// Chunks that wait.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the share in use.
    pub share: u64,
    /// The share's limit.
    pub limit: u64,
}

/// See [`SinkStatus::last_commit`].
#[derive(Clone, Debug, Serialize)]
pub struct CommitStatus {
    /// The destination's version, where it has one.
    pub version: Option<u64>,
    /// How long the commit took.
    pub ms: u64,
    /// When, RFC 3339.
    pub at: String,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn offsets(places: &BTreeMap<PartitionId, Place>) -> BTreeMap<String, u64> {
    places.iter().map(|(partition, place)| (partition.to_string(), place.at)).collect()
}

impl Shared {
    /// The whole of it, at this instant.
    pub(crate) fn status(&self) -> PipelineStatus {
        let now = self.clock.instant();
        let sinks = self.sinks.lock().clone();
        let threads: Vec<ThreadStatus> = self
            .beats
            .lock()
            .iter()
            .map(|beat| ThreadStatus { name: beat.name.clone(), beat_ms: millis(beat.age(now)), busy: beat.busy() })
            .collect();
        let (mut state, since, mut why) = {
            let word = self.word.lock();
            (word.state, rfc3339(word.since), word.why.clone())
        };
        let sight = self.sight.lock();
        let shown: Vec<SinkStatus> = sinks.iter().enumerate().map(|(at, sink)| sink.status(at, &sight)).collect();
        if matches!(state, PipelineState::Running) {
            let worst = shown.iter().max_by_key(|sink| severity(sink.state));
            if let Some(worst) = worst.filter(|sink| severity(sink.state) > 0) {
                (state, why) = (worst.state, worst.why.clone());
            } else if let Some(restart) = sight.restarts.iter().max_by_key(|restart| restart.blocked) {
                state = if restart.blocked { PipelineState::Blocked } else { PipelineState::Retrying };
                why = Some(restart.why());
            } else if let Some(table) =
                sight.table_sights.iter().max_by_key(|table| severity(table.state)).filter(|table| table.why.is_some())
            {
                state = table.state;
                why = table.why.clone().map(|why| Why { at: format!("table {}, {}", table.name, why.at), ..why });
            } else if let Some(cause) = self.letters.lock().as_ref().and_then(|letters| letters.cause()) {
                state = PipelineState::Blocked;
                why = Some(Why::of("dead letters", &cause));
            } else if let Some(stalled) = &sight.stalled {
                state = PipelineState::Blocked;
                why = Some(Why::of("pipeline", stalled));
            }
        }
        let tables = table_statuses(&sight, &sinks);
        let rows_in = shown.iter().map(|sink| sink.balance.rows_in).max().unwrap_or_default();
        let settled = |balance: &Balance| balance.delivered + balance.filtered + balance.dead_lettered;
        let rows_out = shown.iter().map(|sink| settled(&sink.balance)).min().unwrap_or_default();
        let rates = self.rates.lock().look(now, rows_in, rows_out);
        let lag = sight
            .tails
            .iter()
            .map(|(partition, tail)| {
                let reached = sight.watermarks.get(partition).copied().unwrap_or(Place::START);
                tail.at.saturating_sub(reached.at)
            })
            .sum();
        PipelineStatus {
            name: self.name.clone(),
            id: self.id.clone(),
            state,
            since,
            why,
            rates: RateStatus { rows_in: rates.0, rows_out: rates.1 },
            lag: LagStatus { records: lag },
            in_flight: InFlightStatus {
                batches: sight.pending_batches,
                rows: shown.iter().map(|sink| sink.balance.in_flight).max().unwrap_or_default(),
                bytes: sight.pending_bytes,
            },
            oldest_unacked_ms: sight.oldest.map_or(0, millis),
            watermarks: offsets(&sight.watermarks),
            restarts: sight.restarts.clone(),
            dead_letters: shown.iter().map(|sink| sink.balance.dead_lettered).max().unwrap_or_default(),
            threads,
            source: sight.source_report.clone(),
            sinks: shown,
            tables,
        }
    }
}

fn severity(state: PipelineState) -> u8 {
    match state {
        PipelineState::Blocked => 2,
        PipelineState::Retrying => 1,
        _ => 0,
    }
}

impl Why {
    pub(crate) fn of(at: &str, cause: &FailCause) -> Why {
        Why { at: at.to_owned(), code: cause.code, cause: cause.text.to_string(), attempt: 0, next_ms: 0, first: None }
    }
}

/// The worst that a sink's workers say.
fn worst_view(views: &[crate::worker::ShardSight], at: &str) -> (PipelineState, Option<Why>) {
    let (mut state, mut why) = (PipelineState::Running, None);
    for view in views {
        let (word, failure) = match &view.state {
            SinkState::Running => continue,
            SinkState::Retrying(failure) => (PipelineState::Retrying, failure),
            SinkState::Blocked(failure) => (PipelineState::Blocked, failure),
        };
        if severity(word) > severity(state) {
            state = word;
            let waits = failure.next.saturating_duration_since(Instant::now());
            why = Some(Why {
                at: at.to_owned(),
                code: failure.code,
                cause: failure.cause.clone(),
                attempt: failure.attempt,
                next_ms: millis(waits),
                first: failure.first.map(|(partition, place)| FirstPlace { partition: partition.0, offset: place.at }),
            });
        }
    }
    (state, why)
}

impl RestartStatus {
    fn why(&self) -> Why {
        Why {
            at: format!("partition {}", self.partition),
            code: self.code,
            cause: self.cause.clone(),
            attempt: self.attempt,
            next_ms: self.next_ms.unwrap_or_default(),
            first: None,
        }
    }
}

impl SinkSight {
    fn status(&self, at: usize, sight: &Sight) -> SinkStatus {
        let mut queue = QueueStatus::default();
        for shard in &self.queues {
            let queued = shard.queued();
            queue.chunks += queued.chunks as u64;
            queue.bytes += queued.bytes as u64;
            queue.share += queued.share as u64;
            queue.limit += shard.limits().high as u64;
        }
        let views: Vec<_> = self.views.iter().map(|view| view.sight()).collect();
        let (state, why) = worst_view(&views, &format!("sink {}", self.name));
        let last: Option<LastCommit> = views.iter().filter_map(|view| view.last_commit).max_by_key(|commit| commit.at);
        let marks = sight.sink_marks.get(at + 1).cloned().unwrap_or_default();
        SinkStatus {
            name: self.name.to_string(),
            state,
            why,
            guarantee: self.guarantee,
            positions: offsets(&marks),
            queue,
            open_rows: views.iter().map(|view| view.open_rows).sum(),
            accepted_rows: views.iter().map(|view| view.accepted_rows).sum(),
            last_commit: last.map(|commit| CommitStatus {
                version: commit.version,
                ms: millis(commit.took),
                at: rfc3339(commit.at),
            }),
            balance: balance(sight, at),
            report: self.sink.as_ref().map_or(serde_json::Value::Null, |sink| sink.report()),
        }
    }
}

/// A timestamp as text. Days are counted by the civil calendar; years outside 0–9999 are not met.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let (seconds, micros) = (at.0.div_euclid(1_000_000), at.0.rem_euclid(1_000_000));
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}
