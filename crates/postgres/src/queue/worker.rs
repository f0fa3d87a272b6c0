//! The queue worker: the task that owns the inner sink and calls it, one log record at a time, in order (P23–P32).

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::time::Sleep;

use super::channel::{Bundle, Shared};
use super::error::QueueError;
use super::meters::QueueMeters;
use super::panics;
use super::sync::Arc;
use crate::log_record::{RecordSink, RecordSinkError};

/// When the next call that depends on time is due: counted from the last one, so a trickle cannot put it off (P37).
#[derive(Debug)]
pub(super) struct Cadence {
    interval: Duration,
    due: Instant,
}

impl Cadence {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Cadence { interval, due: now + interval }
    }

    /// Whether it is due; then the next one is an interval from now.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now + self.interval;
        }
        is_due
    }
}

/// The task's state. All of the sink's calls are made in [`Worker::poll`], inside one guard against panics; what must
/// outlive a panic, the bundle at work, is outside of it.
struct Worker {
    inner: Box<dyn RecordSink>,
    shared: Arc<Shared>,
    cadence: Cadence,
    timer: Pin<Box<Sleep>>,
    meters: QueueMeters,
}

/// Runs until the pump is gone and all is handed over, or until the first failure.
pub(super) async fn run(inner: Box<dyn RecordSink>, shared: Arc<Shared>, interval: Duration, meters: QueueMeters) {
    panics::watch();
    // Whatever ends this task, an abort too, the pump finds a dead worker and settled counters.
    let _end = EndGuard { shared: Arc::clone(&shared), meters: meters.clone() };
    let mut work: Option<Bundle> = None;
    let cadence = Cadence::new(interval, shared.clock.instant());
    let timer = Box::pin(tokio::time::sleep_until(tokio::time::Instant::from_std(cadence.due)));
    let mut worker = Worker { inner, shared: Arc::clone(&shared), cadence, timer, meters };
    let ended = AssertUnwindSafe(worker.drive(&mut work)).catch_unwind().await;
    let failure = match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(QueueError::of_sink(error)),
        Err(panic) => {
            let (text, location) = panics::describe(panic.as_ref());
            Some(QueueError::Panicked { text, location })
        }
    };
    if let Some(failure) = failure {
        tracing::error!(error = %failure, dispatched_through = %shared.counters.dispatched_end(), "the change queue stopped");
        // Stored first: whoever is woken by what follows reads the root cause (P27).
        shared.fail(failure);
    }
    shared.worker_ends();
    drop(work);
    drop(worker);
}

struct EndGuard {
    shared: Arc<Shared>,
    meters: QueueMeters,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.shared.worker_ends();
        self.shared.worker_closes();
        self.meters.export(&self.shared.counters.read(), false);
    }
}

impl Worker {
    async fn drive(&mut self, work: &mut Option<Bundle>) -> Result<(), RecordSinkError> {
        loop {
            let more = std::future::poll_fn(|cx| self.poll(cx, work)).await?;
            if !more {
                return self.inner.on_close();
            }
            // One turn per bundle: other tasks of this thread get theirs.
            tokio::task::consume_budget().await;
        }
    }

    /// One bundle from pick-up to its end; false when no more will come.
    fn poll(&mut self, cx: &mut Context<'_>, work: &mut Option<Bundle>) -> Poll<Result<bool, RecordSinkError>> {
        loop {
            let Some(bundle) = work else {
                match self.shared.poll_pop(cx) {
                    Poll::Ready(Some(bundle)) => *work = Some(bundle),
                    Poll::Ready(None) => return Poll::Ready(Ok(false)),
                    Poll::Pending => ready!(self.poll_idle(cx))?,
                }
                continue;
            };
            match self.inner.on_bundle(cx, &mut bundle.view()) {
                Poll::Ready(taken) => taken?,
                Poll::Pending => {
                    ready!(self.poll_idle(cx))?;
                    continue;
                }
            }
            self.inner.on_idle_advance(self.shared.counters.dispatched_end())?;
            // Settled only now: whoever sees it gone may rely on the sink having been told.
            *work = None;
            let now = self.shared.clock.instant();
            self.meters.export(&self.shared.counters.read(), true);
            if self.cadence.take(now) {
                self.inner.on_idle()?;
            }
            return Poll::Ready(Ok(true));
        }
    }

    /// Waits for the next due time and makes its call.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RecordSinkError>> {
        let due = tokio::time::Instant::from_std(self.cadence.due);
        if self.timer.deadline() != due {
            self.timer.as_mut().reset(due);
        }
        ready!(self.timer.as_mut().poll(cx));
        let now = self.shared.clock.instant().max(self.cadence.due);
        self.cadence.take(now);
        self.meters.export(&self.shared.counters.read(), true);
        Poll::Ready(self.inner.on_idle())
    }
}
