//! The write of one sealed batch: attempts until it is stored, by class of error (E116, E117), with refused rows taken
//! out and set aside (E119), under the flood guard (E112).
//!
//! The same bytes under the same id go out in every attempt; nothing is ever appended to a batch (F-D1).

use std::sync::Arc;
use std::time::Duration;

use landfall_types::{Code, PartitionId, Place};
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

/// Why a batch was given up.
#[derive(Clone, Debug)]
pub(crate) struct GiveUp {
    cause: FailCause,
    is_superseded: bool,
}

impl GiveUp {
    pub(crate) fn new(cause: FailCause) -> Self {
        GiveUp { cause, is_superseded: false }
    }

    pub(crate) fn cause(&self) -> &FailCause {
        &self.cause
    }

    /// Another writer owns the positions: what was accepted before is lost as well.
    pub(crate) fn is_superseded(&self) -> bool {
        self.is_superseded
    }

    pub(crate) fn into_cause(self) -> FailCause {
        self.cause
    }
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
    GaveUp(GiveUp),
}

enum Stop {
    Rows { code: Code, rows: Option<Vec<u32>>, text: String },
    GiveUp(GiveUp),
}

/// Writes a batch whole, whatever it takes. Runs in its own task; cancelling it leaves the batch unknown.
pub(crate) async fn write_out(cx: &WriteCx, batch: Arc<SealedBatch>, origins: &Origins) -> WriteEnd {
    let mut floods = 0u32;
    loop {
        match write_pieces(cx, &batch, origins).await {
            Ok((written, refused)) => {
                if !refused.is_empty() {
                    set_aside(cx, origins, &refused).await;
                }
                return WriteEnd::Stored { written, refused };
            }
            Err(Ended::GaveUp(give_up)) => return WriteEnd::GaveUp(give_up),
            Err(Ended::Flood { refused, of, code, text }) => {
                floods = floods.saturating_add(1);
                let cause = format!("row error: {refused} of {of} rows refused, first {code}: {text}");
                wait_blocked(cx, &batch, "row error", codes::TOO_MANY_BAD_ROWS, cause, floods).await;
            }
        }
    }
}

enum Ended {
    GaveUp(GiveUp),
    Flood { refused: usize, of: usize, code: Code, text: Arc<str> },
}

async fn write_pieces(
    cx: &WriteCx,
    batch: &Arc<SealedBatch>,
    origins: &Origins,
) -> Result<(Written, Vec<Refused>), Ended> {
    let total = batch.rows();
    let mut pieces = Pieces::of(batch.clone(), total);
    let mut refused: Vec<Refused> = Vec::new();
    let mut worst = Written::AlreadyThere;
    while let Some(piece) = pieces.next() {
        let stop = match attempt(cx, &piece.batch, origins).await {
            Ok(written) => {
                worst = worse(worst, written);
                continue;
            }
            Err(stop) => stop,
        };
        let (code, rows, text) = match stop {
            Stop::GiveUp(give_up) => return Err(Ended::GaveUp(give_up)),
            Stop::Rows { code, rows, text } => (code, rows, Arc::<str>::from(text)),
        };
        if pieces.is_whole() {
            cx.meters.bisects.increment(1);
        }
        let out = match named(&piece, rows) {
            Some(named) => Some(origins.whole_records(&named)),
            // Not named: halves between records, until a refused record is alone.
            None if pieces.halve(&piece, origins) => None,
            None => Some(piece.rows.clone()),
        };
        let Some(out) = out else { continue };
        pieces.without(&piece, &out);
        let mut last = None;
        for row in out {
            let record = origins.position(row as usize);
            let is_first = last != Some(record);
            last = Some(record);
            refused.push(Refused { row, is_first, code, text: text.clone() });
        }
        if refused.len() > cx.max_bad_rows as usize && refused.len() as f64 > cx.max_bad_fraction * total as f64 {
            return Err(Ended::Flood { refused: refused.len(), of: total, code, text });
        }
    }
    refused.sort_by_key(|refused| refused.row);
    Ok((worst, refused))
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
                let give_up = GiveUp { cause: FailCause::new(*code, text.as_str()), is_superseded: true };
                return Err(Stop::GiveUp(give_up));
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
            return Err(Stop::GiveUp(GiveUp::new(FailCause::new(codes::WRITE_GAVE_UP, text))));
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
