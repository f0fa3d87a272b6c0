//! The worker of a shard: takes chunks, seals batches, has them written, settles their holds (E114–E122).
//!
//! One select loop; everything it decides is in the synchronous [`Worker::step`]. No permit, retry or slow write ever
//! keeps it from seeing a drain. Holds stay in its ledgers and never enter a write task (H6), so a task that panics or
//! is left behind loses nothing but time. It carries I6 (its memory is the shard's share), I7 (a hold is delivered
//! only once its rows are durable) and its part of I11 (a drain ends by its deadline).

mod barrier;
mod bisect;
mod give_up;
mod ledger;
mod open;
mod tasks;
mod view;
mod write;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use landfall_types::{Clock, PartitionId};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::contract::{BarrierError, PipelineId, SealedBatch, Settled, ShardId, ShardWriter};
use crate::meters::SinkMeters;
use crate::options::{OnError, SinkOptions};
use crate::shard::{ShardQueue, Urgency};

pub(crate) use ledger::{Ledger, Origins};
pub(crate) use open::{BatchName, Limits, OpenBatch, SealReason};
pub(crate) use tasks::panic_text;
pub(crate) use view::{LastCommit, ShardSight, ShardView, SinkState};
pub(crate) use write::{Progress, WriteCx, WriteEnd, write_out};

/// How long a writer may take to forget what it had accepted.
pub(crate) const RESET_MAX: Duration = Duration::from_secs(10);

/// How long nothing may come before a batch that fills is not waited for.
const QUIET: Duration = Duration::from_millis(50);

/// What a worker tells the controller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerReport {
    /// Nothing of the partition is left here: settled, or given up.
    Quiesced(PartitionId, u64),
    /// The worker has ended.
    Ended,
}

/// What a worker is made with.
pub(crate) struct WorkerCx {
    pub(crate) pipeline: PipelineId,
    pub(crate) source: String,
    pub(crate) sink_name: Arc<str>,
    pub(crate) shard: ShardId,
    pub(crate) writer: Arc<dyn ShardWriter>,
    pub(crate) barrier_every: Option<Duration>,
    /// Batches are written one after the other: an ordered sink, or one that holds positions.
    pub(crate) is_serial: bool,
    pub(crate) queue: Arc<ShardQueue>,
    pub(crate) options: SinkOptions,
    pub(crate) on_error: OnError,
    pub(crate) max_bad_fraction: f64,
    pub(crate) max_bad_rows: u32,
    pub(crate) letters: Option<Arc<dyn crate::contract::DeadLetter>>,
    pub(crate) view: Arc<ShardView>,
    pub(crate) meters: SinkMeters,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) report: Arc<dyn Fn(WorkerReport) + Send + Sync>,
}

struct InWriting {
    ledger: Ledger,
    bytes: usize,
    origins: Arc<Origins>,
    progress: Arc<Mutex<Progress>>,
    panics: u32,
    task: AbortHandle,
    started: Instant,
}

struct Sealed {
    batch: SealedBatch,
    ledger: Ledger,
    origins: Origins,
}

/// See the module.
pub(crate) struct Worker {
    cx: WorkerCx,
    name: BatchName,
    limits: Limits,
    concurrency: usize,
    open: OpenBatch,
    sealed: Option<Sealed>,
    writes: JoinSet<(u64, WriteEnd)>,
    writing: HashMap<u64, InWriting>,
    tasks: HashMap<tokio::task::Id, u64>,
    sequence: u64,
    accepted: Vec<Ledger>,
    accepted_since: Option<Instant>,
    barrier: Option<(JoinHandle<Result<Settled, BarrierError>>, Instant)>,
    barrier_attempts: u32,
    barrier_not_before: Option<Instant>,
    reset: Option<JoinHandle<()>>,
    quiescing: Vec<(PartitionId, u64)>,
    settle: Settle,
    drain: Option<Instant>,
    is_stopped: bool,
}

/// How far a wish to settle soon has come: what was open then is sealed, written, and made durable. What comes after
/// the wish is not part of it, or a busy shard would seal every chunk alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settle {
    /// Nobody asked.
    No,
    /// The open batch is to be sealed.
    Seal,
    /// The sealed batch is to be written.
    Write,
    /// What was accepted is to be made durable.
    Barrier,
}

impl Worker {
    pub(crate) fn new(cx: WorkerCx) -> Self {
        let name = BatchName::new(&cx.pipeline, &cx.sink_name, cx.shard, &cx.source);
        let limits =
            Limits { rows: cx.options.batch_rows, bytes: cx.options.batch_bytes.as_usize(), age: cx.options.batch_age };
        let concurrency = if cx.is_serial { 1 } else { cx.options.concurrency };
        Worker {
            cx,
            name,
            limits,
            concurrency,
            open: OpenBatch::default(),
            sealed: None,
            writes: JoinSet::new(),
            writing: HashMap::new(),
            tasks: HashMap::new(),
            sequence: 0,
            accepted: Vec::new(),
            accepted_since: None,
            barrier: None,
            barrier_attempts: 0,
            barrier_not_before: None,
            reset: None,
            quiescing: Vec::new(),
            settle: Settle::No,
            drain: None,
            is_stopped: false,
        }
    }

    /// Runs until a drain or a stop has ended it. Dropping the future fails every hold.
    pub(crate) async fn run(mut self) {
        const HEARTBEAT: Duration = Duration::from_secs(1);
        loop {
            self.cx.view.beat(self.cx.clock.instant());
            self.step();
            if self.has_ended() {
                break;
            }
            let timer = self.next_timer().unwrap_or_else(|| Instant::now() + HEARTBEAT);
            tokio::select! {
                biased;
                Some(ended) = self.writes.join_next_with_id(), if !self.writes.is_empty() => self.write_ended(ended),
                ended = async {
                    match &mut self.barrier {
                        Some((task, _)) => task.await,
                        None => std::future::pending().await,
                    }
                } => self.barrier_ended(ended),
                () = async {
                    match &mut self.reset {
                        Some(task) => drop(task.await),
                        None => std::future::pending().await,
                    }
                } => self.reset = None,
                () = self.cx.queue.has_work() => {}
                () = tokio::time::sleep_until(timer.min(Instant::now() + HEARTBEAT)) => {}
            }
        }
        self.give_up_everything();
        (self.cx.report)(WorkerReport::Ended);
    }

    /// Everything that can be done without waiting.
    fn step(&mut self) {
        self.take_urgencies();
        let now = Instant::now();
        if self.drain.is_some_and(|deadline| now >= deadline) {
            self.is_stopped = true;
        }
        if self.is_stopped {
            return;
        }
        self.open.drop_stale();
        loop {
            self.take_chunks();
            let has_sealed = self.seal_if_due(now);
            let has_started = self.start_write(now);
            if !has_sealed && !has_started {
                break;
            }
        }
        self.start_barrier(now);
        self.answer_quiesced();
        let accepted = self.accepted.iter().map(|ledger| ledger.rows as u64).sum();
        let writing: u64 = self.writing.values().map(|writing| writing.ledger.rows as u64).sum();
        let sealed = self.sealed.as_ref().map_or(0, |sealed| sealed.ledger.rows as u64);
        self.cx.view.set_rows(self.open.rows() as u64 + sealed + writing, accepted);
    }

    fn take_urgencies(&mut self) {
        while let Some(urgency) = self.cx.queue.pop_urgency() {
            match urgency {
                Urgency::Quiesce(partition, number) => self.quiescing.push((partition, number)),
                Urgency::Abort(partition, number) => {
                    self.abort(partition);
                    // Answered once the writer has forgotten what was accepted, like any other.
                    if !self.quiescing.contains(&(partition, number)) {
                        self.quiescing.push((partition, number));
                    }
                }
                Urgency::Settle => {
                    self.settle = match (self.open.is_empty(), self.sealed.is_some()) {
                        (false, _) => Settle::Seal,
                        (true, true) => Settle::Write,
                        (true, false) => Settle::Barrier,
                    };
                }
                Urgency::Drain(deadline) => {
                    self.drain = Some(self.drain.map_or(deadline, |earlier| earlier.min(deadline)));
                }
                Urgency::Stop => self.is_stopped = true,
            }
        }
    }

    fn take_chunks(&mut self) {
        const CHUNKS_PER_TURN: usize = 64;
        for _ in 0..CHUNKS_PER_TURN {
            if self.sealed.is_some() || self.open.is_full(&self.limits) {
                return;
            }
            let Some(chunk) = self.cx.queue.pop() else { return };
            for segment in chunk.segments {
                // Rows of a closed epoch are read again: they must not be written under the old one (E121).
                if !segment.is_stale() {
                    self.open.push(segment, Instant::now());
                }
            }
        }
    }

    fn seal_if_due(&mut self, now: Instant) -> bool {
        if self.sealed.is_some() || self.open.is_empty() {
            return false;
        }
        let reason = if self.open.rows() >= self.limits.rows {
            SealReason::Rows
        } else if self.open.bytes() >= self.limits.bytes {
            SealReason::Bytes
        } else if self.drain.is_some() {
            SealReason::Drain
        } else if self.quiescing.iter().any(|(partition, _)| self.open.holds(*partition)) {
            SealReason::Quiesce
        } else if self.settle == Settle::Seal {
            SealReason::Settle
        } else if self.open.age(now).is_some_and(|age| age >= self.limits.age) {
            SealReason::Age
        } else if self.writing.is_empty() && self.cx.queue.is_shut() {
            SealReason::Pressure
        } else if self.is_lull(now) {
            SealReason::Lull
        } else if self.writer_idles() {
            SealReason::Idle
        } else {
            return false;
        };
        let seals = &self.cx.meters.seals;
        match reason {
            SealReason::Rows => &seals.rows,
            SealReason::Bytes => &seals.bytes,
            SealReason::Age => &seals.age,
            SealReason::Pressure => &seals.pressure,
            SealReason::Lull => &seals.lull,
            SealReason::Idle => &seals.idle,
            SealReason::Settle => &seals.settle,
            SealReason::Quiesce => &seals.quiesce,
            SealReason::Drain => &seals.drain,
        }
        .increment(1);
        let Some((batch, ledger, origins)) = self.open.seal(&self.limits, &self.name) else { return false };
        self.cx.meters.batch_rows.record(ledger.rows as f64);
        self.cx.meters.batch_bytes.record(batch.bytes as f64);
        self.sealed = Some(Sealed { batch, ledger, origins });
        if self.settle == Settle::Seal && self.open.is_empty() {
            self.settle = Settle::Write;
        }
        true
    }

    /// Nothing more comes for now, and the writer has nothing to do: to wait would only make the rows older. A source under
    /// load pauses too, but for less than [`QUIET`], and what came in before was not little: such batches fill.
    fn is_lull(&self, now: Instant) -> bool {
        const LITTLE: usize = 8;
        let is_little =
            self.open.rows() <= self.limits.rows / LITTLE && self.open.bytes() <= self.limits.bytes / LITTLE;
        let is_quiet = || self.open.grown().is_some_and(|grown| now.duration_since(grown) >= QUIET);
        self.writing.is_empty() && self.barrier.is_none() && self.cx.queue.is_lull() && (is_little || is_quiet())
    }

    /// A writer that gathers batches into a group of its own makes no smaller files of smaller batches, so it need not
    /// wait for full ones: it encodes while the chain decodes. It gets some thousand rows at a time nevertheless, for each
    /// hand-over wakes three threads, and an encoder is faster the longer it stays with one column.
    fn writer_idles(&self) -> bool {
        const ROWS_MIN: usize = 16_384;
        const BYTES_MIN: usize = 1 << 20;
        self.cx.barrier_every.is_some()
            && self.writing.is_empty()
            && self.barrier.is_none()
            && (self.open.rows() >= ROWS_MIN || self.open.bytes() >= BYTES_MIN)
    }

    fn is_idle(&self) -> bool {
        self.writing.is_empty() && self.sealed.is_none() && self.barrier.is_none()
    }

    fn settle(&mut self, group: Vec<Ledger>) {
        let now = self.cx.clock.now();
        for ledger in group {
            self.cx.view.cover(&ledger.covers);
            let age = now.0.saturating_sub(ledger.oldest.0).max(0);
            self.cx.meters.e2e_seconds.record(age as f64 / 1e6);
            ledger.deliver();
        }
        self.cx.meters.up.set(1.0);
    }

    fn has_unwritten(&self, partition: PartitionId) -> bool {
        self.open.holds(partition)
            || self.sealed.as_ref().is_some_and(|sealed| sealed.ledger.holds(partition))
            || self.writing.values().any(|writing| writing.ledger.holds(partition))
            || self.cx.queue.holds(partition)
    }

    fn answer_quiesced(&mut self) {
        let waiting = std::mem::take(&mut self.quiescing);
        for (partition, number) in waiting {
            let is_held = self.has_unwritten(partition) || self.accepted.iter().any(|ledger| ledger.holds(partition));
            if is_held || self.reset.is_some() {
                self.quiescing.push((partition, number));
            } else {
                (self.cx.report)(WorkerReport::Quiesced(partition, number));
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.is_stopped
            || (self.drain.is_some()
                && self.open.is_empty()
                && self.is_idle()
                && self.accepted.is_empty()
                && self.reset.is_none()
                && self.cx.queue.queued().chunks == 0)
    }

    fn next_timer(&self) -> Option<Instant> {
        let now = Instant::now();
        let seal = self.open.opened().map(|opened| opened + self.limits.age);
        let quiet = self.open.grown().filter(|_| self.cx.queue.is_lull()).map(|grown| grown + QUIET);
        let barrier = match (self.accepted_since, self.cx.barrier_every) {
            _ if self.barrier_not_before.is_some() => self.barrier_not_before,
            (Some(since), Some(every)) if self.barrier.is_none() && now >= since + every => Some(since + every * 2),
            (Some(since), Some(every)) if self.barrier.is_none() => Some(since + every),
            _ => None,
        };
        // A timer in the past would spin where something else is waited for.
        [seal, quiet, barrier, self.drain].into_iter().flatten().filter(|at| *at > now).min()
    }
}
