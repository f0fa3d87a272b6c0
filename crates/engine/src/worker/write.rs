//! The write of one sealed batch: attempts until it is stored, by class of error (E116, E117), with refused rows taken
//! out and set aside (E119), under the flood guard (E112).
//!
//! The same bytes under the same id go out in every attempt; nothing is ever appended to a batch (F-D1).

use std::sync::Arc;
use std::time::Duration;

use landfall_types::{Code, PartitionId, Place};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::bisect::{Piece, Pieces};
use super::ledger::Origins;
use super::view::{Failure, ShardView};
use crate::codes;
use crate::contract::{DeadLetter, Letter, PipelineId, SealedBatch, ShardWriter, SinkError, Stage, Written};
use crate::core::FailCause;
use crate::dead_letter::{Sender, store_until_durable};
use crate::meters::SinkMeters;
use crate::options::{OnError, RetryOptions};

/// What a write task is made with.
pub(crate) struct WriteCx {
    pub(crate) pipeline: PipelineId,
    pub(crate) source: String,
    pub(crate) sink_name: Arc<str>,
    pub(crate) writer: Arc<dyn ShardWriter>,
    pub(crate) retry: RetryOptions,
    pub(crate) on_error: OnError,
    pub(crate) max_bad_fraction: f64,
    pub(crate) max_bad_rows: u32,
    pub(crate) letters: Option<Arc<dyn DeadLetter>>,
    pub(crate) view: Arc<ShardView>,
    pub(crate) meters: SinkMeters,
}

/// A row that the destination refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Its index in the sealed batch.
    pub(crate) row: u32,
    /// Whether it is the first refused row of its record.
    pub(crate) is_first: bool,
    pub(crate) code: Code,
    pub(crate) text: Arc<str>,
}

/// How a write ended.
#[derive(Debug)]
pub(crate) enum WriteEnd {
    /// Every row is stored, or refused and set aside.
    Stored {
        written: Written,
        /// Rising by row.
        refused: Vec<Refused>,
    },
    /// The rows must be read again.
    GaveUp(FailCause),
}

enum Stop {
    Rows { code: Code, rows: Option<Vec<u32>>, text: String },
    GiveUp(FailCause),
}

/// How far the write of a batch has come; kept by the worker, beside the task.
#[derive(Debug)]
pub(crate) struct Progress {
    pieces: Pieces,
    refused: Vec<Refused>,
    worst: Written,
    floods: u32,
}

impl Progress {
    pub(crate) fn new(batch: Arc<SealedBatch>) -> Self {
        let rows = batch.rows();
        Progress { pieces: Pieces::of(batch, rows), refused: Vec::new(), worst: Written::AlreadyThere, floods: 0 }
    }
}

/// Writes what is left of a batch, whatever it takes. Runs in its own task; cancelling it leaves a piece unknown.
pub(crate) async fn write_out(cx: &WriteCx, origins: &Origins, progress: &Mutex<Progress>) -> WriteEnd {
    loop {
        let Some(piece) = progress.lock().pieces.next() else { break };
        let stop = match attempt(cx, &piece.batch, origins).await {
            Ok(written) => {
                let mut progress = progress.lock();
                progress.pieces.done();
                progress.worst = worse(progress.worst, written);
                continue;
            }
            Err(stop) => stop,
        };
        let flood = match stop {
            Stop::GiveUp(cause) => return WriteEnd::GaveUp(cause),
            Stop::Rows { code, rows, text } => progress.lock().refuse(cx, &piece, origins, code, rows, &text),
        };
        if let Some((cause, floods)) = flood {
            wait_blocked(cx, &piece.batch, "row error", codes::TOO_MANY_BAD_ROWS, cause, floods).await;
        }
    }
    let (written, mut refused) = {
        let progress = progress.lock();
        (progress.worst, progress.refused.clone())
    };
    refused.sort_by_key(|refused| refused.row);
    if !refused.is_empty() {
        set_aside(cx, origins, &refused).await;
    }
    WriteEnd::Stored { written, refused }
}

impl Progress {
    /// Takes refused rows out of a piece, or cuts it in halves where they are not named. Too many refused rows mean a
    /// mismatch (E112): they are put back, and the sentence that says so is returned.
    fn refuse(
        &mut self,
        cx: &WriteCx,
        piece: &Piece,
        origins: &Origins,
        code: Code,
        rows: Option<Vec<u32>>,
        text: &str,
    ) -> Option<(String, u32)> {
        if self.pieces.is_whole() {
            cx.meters.bisects.increment(1);
        }
        let out = match named(piece, rows) {
            Some(named) => origins.whole_records(&named),
            // Not named: halves between records, until a refused record is alone.
            None if self.pieces.halve(piece, origins) => return None,
            None => piece.rows.clone(),
        };
        self.pieces.without(piece, &out);
        let text: Arc<str> = Arc::from(text);
        let mut last = None;
        for row in out {
            let record = origins.position(row as usize);
            let is_first = last != Some(record);
            last = Some(record);
            self.refused.push(Refused { row, is_first, code, text: text.clone() });
        }
        let (refused, of) = (self.refused.len(), origins.rows());
        if refused <= cx.max_bad_rows as usize || refused as f64 <= cx.max_bad_fraction * of as f64 {
            return None;
        }
        self.floods = self.floods.saturating_add(1);
        let mut rows: Vec<u32> = self.refused.drain(..).map(|refused| refused.row).collect();
        rows.sort_unstable();
        self.pieces.put_back(rows, self.floods);
        Some((format!("row error: {refused} of {of} rows refused, last {code}: {text}"), self.floods))
    }
}

/// The refused rows as rows of the sealed batch; `None` where the destination does not say which.
fn named(piece: &Piece, rows: Option<Vec<u32>>) -> Option<Vec<u32>> {
    let rows = rows?;
    let mapped: Option<Vec<u32>> = rows.iter().map(|row| piece.rows.get(*row as usize).copied()).collect();
    // A row that the batch does not have says that the answer cannot be trusted.
    mapped.filter(|mapped| !mapped.is_empty())
}

/// Accepted waits for a barrier, so it is worse than Durable.
fn worse(one: Written, other: Written) -> Written {
    let rank = |written| match written {
        Written::AlreadyThere => 0,
        Written::Durable => 1,
        Written::Accepted => 2,
    };
    if rank(other) > rank(one) { other } else { one }
}

async fn attempt(cx: &WriteCx, batch: &SealedBatch, origins: &Origins) -> Result<Written, Stop> {
    let started = Instant::now();
    let mut attempts = 0u32;
    loop {
        attempts = attempts.saturating_add(1);
        let ended = match tokio::time::timeout(cx.retry.attempt_timeout, cx.writer.write(batch)).await {
            Ok(ended) => ended,
            Err(_) => Err(SinkError::Unknown {
                code: codes::ATTEMPT_TIMEOUT,
                text: format!("no answer within {:?}", cx.retry.attempt_timeout),
            }),
        };
        let error = match ended {
            Ok(written) => {
                if attempts > 1 {
                    tracing::info!(
                        pipeline = %cx.pipeline, sink = %cx.sink_name, attempts, "writing resumed"
                    );
                }
                cx.view.is_running();
                return Ok(written);
            }
            Err(error) => error,
        };
        let backoff = &cx.retry.backoff;
        let mut is_destination = false;
        let delay = match &error {
            SinkError::Row { code, rows, text } => {
                if cx.on_error == OnError::Fail {
                    let cause = format!("a row was refused and `on_error` is fail: {text}");
                    wait_blocked(cx, batch, "row error", codes::ROW_FAILS_PIPELINE, cause, attempts).await;
                    continue;
                }
                if cx.on_error == OnError::Skip || (cx.letters.is_some() && origins.has_records()) {
                    return Err(Stop::Rows { code: *code, rows: rows.clone(), text: text.clone() });
                }
                // A sink that said it refuses no rows: nothing is at hand to set aside.
                is_destination = true;
                backoff.max
            }
            SinkError::Superseded { code, text, .. } => {
                return Err(Stop::GiveUp(FailCause::new(*code, text.as_str())));
            }
            SinkError::Destination { .. } => {
                is_destination = true;
                cx.meters.retries_destination.increment(1);
                backoff.max
            }
            SinkError::Later { after, .. } => {
                cx.meters.retries_later.increment(1);
                match after {
                    Some(after) => (*after).min(backoff.max),
                    None => backoff.delay(attempts, crate::random::fraction()),
                }
            }
            SinkError::Unknown { .. } => {
                cx.meters.retries_unknown.increment(1);
                if let Ok(Some(true)) = cx.writer.was_committed(&batch.id).await {
                    cx.view.is_running();
                    return Ok(Written::AlreadyThere);
                }
                cx.meters.resends.increment(1);
                backoff.delay(attempts, crate::random::fraction())
            }
        };
        if cx.retry.max_elapsed.is_some_and(|max| started.elapsed() + delay > max) {
            let text = format!("given up after {:?}: {error}", started.elapsed());
            return Err(Stop::GiveUp(FailCause::new(codes::WRITE_GAVE_UP, text)));
        }
        let first = first_of(batch);
        cx.view.has_failed(is_destination, &error, attempts, delay, first);
        log_attempt(&cx.pipeline, &cx.sink_name, &error, attempts, delay, first, batch.rows());
        tokio::time::sleep(delay).await;
    }
}

fn first_of(batch: &SealedBatch) -> Option<(PartitionId, Place)> {
    batch.covers.first().map(|cover| (cover.partition, cover.range.start))
}

/// One line per attempt (F-V2).
pub(crate) fn log_attempt(
    pipeline: &PipelineId,
    sink: &str,
    error: &SinkError,
    attempt: u32,
    delay: Duration,
    first: Option<(PartitionId, Place)>,
    rows: usize,
) {
    let next_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    let (partition, offset) = first.map_or((0, 0), |(partition, place)| (partition.0, place.at));
    let cause = error.to_string();
    tracing::warn!(
        code = %error.code(), %pipeline, sink, attempt, next_ms, partition, first_offset = offset, rows,
        "writing failed and is tried again: {cause}"
    );
}

async fn wait_blocked(
    cx: &WriteCx,
    batch: &SealedBatch,
    reason: &'static str,
    code: Code,
    cause: String,
    attempt: u32,
) {
    let delay = cx.retry.backoff.max;
    cx.view.is_blocked(Failure {
        reason,
        code,
        cause,
        attempt,
        next: std::time::Instant::now() + delay,
        first: first_of(batch),
    });
    tokio::time::sleep(delay).await;
}

async fn set_aside(cx: &WriteCx, origins: &Origins, refused: &[Refused]) {
    let Some(store) = cx.letters.as_ref().filter(|_| cx.on_error == OnError::DeadLetter) else { return };
    let sender = Sender { pipeline: cx.pipeline.clone(), source: cx.source.clone() };
    let letters: Vec<Letter> = refused
        .iter()
        .filter(|refused| refused.is_first)
        .filter_map(|refused| {
            let record = origins.record(refused.row as usize)?;
            Some(sender.letter(record, Some(&cx.sink_name), Stage::Sink, refused.code, &refused.text))
        })
        .collect();
    store_until_durable(store, &letters, &cx.retry.backoff, |cause| match cause {
        None => cx.view.is_running(),
        Some(cause) => cx.view.is_blocked(Failure {
            reason: "dead letters",
            code: cause.code,
            cause: cause.text.to_string(),
            attempt: 1,
            next: std::time::Instant::now() + cx.retry.backoff.max,
            first: None,
        }),
    })
    .await;
}
