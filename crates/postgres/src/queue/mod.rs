//! The queueing record sink: a bounded hop between the pump and the decoder (P10–P41).
//!
//! The pump copies borrowed log records into bundles; a task of its own, the queue worker, hands them to the inner sink
//! in order. Promises: room is held before a record enters and the caps of records and memory are never passed (P11,
//! P17, I6), but for a single record larger than the cap, which enters alone; the balance
//! `admitted = processed + dropped + in flight` holds at every instant (P41); the first failure, a panic's text
//! included, is what every later call returns (P38, P39); a close is bounded and names what was not processed (P31).
//!
//! It does not decode, retry or reorder. What is dropped behind a failure is read again from the slot.

mod arena;
#[cfg(feature = "bench")]
mod bench;
mod channel;
mod counters;
mod error;
mod intake;
mod meters;
mod panics;
mod settings;
mod sync;
mod trace;
mod worker;

#[cfg(all(test, feature = "loom"))]
mod loom_tests;
#[cfg(all(test, not(feature = "loom")))]
mod model_tests;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use landfall_types::{Clock, SystemClock, Timestamp};
use tokio::task::JoinHandle;

pub use arena::Need;
#[cfg(feature = "bench")]
pub use bench::{QueueBench, QueueBenchError, bench_queue};
pub use channel::BundleView;
pub use counters::QueueCounts;
pub use error::{CloseError, CloseReport, QueueError};
pub use intake::Room;
pub use meters::QueueMeters;
pub use settings::{QueueSettings, QueueSettingsError};
pub use trace::{TracedTransaction, TransactionTrace};

use channel::Shared;
use intake::Intake;
use sync::Arc;

use crate::log_record::{LogRecord, RecordSink};

/// Wall time of the machine, monotonic time of the runtime, which tests can pause.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeClock;

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn instant(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// What a queue is built from, besides the inner sink.
#[derive(Debug)]
pub struct QueueParts {
    /// The bounds.
    pub settings: QueueSettings,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Sampled transactions.
    pub trace: Arc<TransactionTrace>,
    /// Metrics.
    pub meters: QueueMeters,
}

impl QueueParts {
    /// With these bounds, the runtime's clock, and nothing sampled or exported.
    pub fn new(settings: QueueSettings) -> Self {
        QueueParts {
            settings,
            clock: Arc::new(RuntimeClock),
            trace: Arc::new(TransactionTrace::off()),
            meters: QueueMeters::noop(),
        }
    }
}

/// See the module. Owned by the pump; dropping it without [`close`](QueueingSink::close) or
/// [`abandon`](QueueingSink::abandon) aborts the worker (P32).
#[derive(Debug)]
pub struct QueueingSink {
    intake: Intake,
    worker: Option<JoinHandle<()>>,
}

/// Looks at a queue from anywhere.
#[derive(Clone, Debug)]
pub struct QueueView {
    shared: Arc<Shared>,
}

impl QueueView {
    /// The counts of this moment; they balance.
    pub fn counts(&self) -> QueueCounts {
        self.shared.counters.read()
    }

    /// Whether the worker runs (P29).
    pub fn worker_alive(&self) -> bool {
        self.shared.is_worker_alive()
    }

    /// The first failure, if there is one.
    pub fn failure(&self) -> Option<QueueError> {
        self.shared.failure().cloned()
    }
}

impl QueueingSink {
    /// Starts the queue worker with `inner` on the current runtime.
    pub fn start(inner: Box<dyn RecordSink>, parts: QueueParts) -> Self {
        let settings = parts.settings.raised();
        let shared = Shared::new(parts.clock, parts.trace, settings.spare_cost_max());
        let work = worker::run(inner, Arc::clone(&shared), settings.idle_interval, parts.meters);
        QueueingSink { intake: Intake::new(shared, settings), worker: Some(tokio::spawn(work)) }
    }

    /// Room for one log record; waits until there is some. Cancel-safe. Fails with the worker's first failure.
    pub async fn room(&mut self, need: Need) -> Result<Room, QueueError> {
        self.intake.forget_wait();
        std::future::poll_fn(|cx| self.poll_room(cx, need)).await
    }

    /// The same, to poll.
    pub fn poll_room(&mut self, cx: &mut Context<'_>, need: Need) -> Poll<Result<Room, QueueError>> {
        self.intake.poll_room(cx, need)
    }

    /// Ready with the first failure once the worker is gone; else the task is woken when that may be so.
    pub fn poll_failure(&mut self, cx: &Context<'_>) -> Poll<QueueError> {
        self.intake.poll_failure(cx)
    }

    /// Copies the log record into the open bundle and returns; the inner sink is never run here (P13).
    pub fn on_record(&mut self, room: Room, record: &LogRecord<'_>) -> Result<(), QueueError> {
        self.intake.admit(room, record)
    }

    /// Ships what is open; called at the end of a read (P16). Room that was given before is void.
    pub fn flush(&mut self) -> Result<(), QueueError> {
        self.intake.flush()
    }

    /// Whether the worker runs; asks without shipping anything (P29).
    pub fn worker_alive(&self) -> bool {
        self.intake.shared.is_worker_alive()
    }

    /// A handle to look at it.
    pub fn view(&self) -> QueueView {
        QueueView { shared: Arc::clone(&self.intake.shared) }
    }

    /// Gives up what is queued, and waits until the worker has ended: an abort alone lets it go on beside the caller to the
    /// end of its turn, which may be many bundles. After this the inner sink is not called any more.
    pub async fn abandon(mut self) {
        if let Some(worker) = self.worker.take() {
            worker.abort();
            self.intake.shared.pump_ends();
            // Cancelled, or ended by itself: either way it is gone.
            let _ = worker.await;
        }
    }

    /// Ships the tail, waits until everything is handed over and `on_close` has returned; after `deadline` aborts the
    /// worker and names what was not processed (P31).
    pub async fn close(mut self, deadline: Duration) -> Result<CloseReport, CloseError> {
        // A failure that is there already is the answer, whatever became of the tail (P39).
        let flushed = self.intake.flush();
        let shared = Arc::clone(&self.intake.shared);
        shared.pump_ends();
        let Some(mut worker) = self.worker.take() else { return Err(QueueError::Ended.into()) };
        match tokio::time::timeout(deadline, &mut worker).await {
            Ok(ended) => {
                if let Some(failure) = shared.failure() {
                    return Err(failure.clone().into());
                }
                flushed?;
                ended.map_err(|_| QueueError::Ended)?;
                let counts = shared.counters.read();
                Ok(CloseReport { processed: counts.processed, through: counts.dispatched_end })
            }
            Err(_) => {
                worker.abort();
                if let Some(failure) = shared.failure() {
                    return Err(failure.clone().into());
                }
                let counts = shared.counters.read();
                Err(CloseError::Deadline {
                    after: deadline,
                    records: counts.in_flight.saturating_add(counts.dropped),
                    processed_through: counts.dispatched_end,
                    through: counts.admitted_end,
                })
            }
        }
    }
}

impl Drop for QueueingSink {
    fn drop(&mut self) {
        self.intake.shared.pump_ends();
        if let Some(worker) = self.worker.take() {
            worker.abort();
        }
    }
}
