//! The worker's barrier: when what was accepted is made durable, and what becomes of it when that fails (E117, E120).
//!
//! A group is settled whole or lost whole. One that is lost is read again from what the destination holds, so its holds fail
//! and the writer forgets it (I7).

use tokio::task::JoinError;
use tokio::time::Instant;

use super::{Ledger, RESET_MAX, Settle, Worker, panic_text, write};
use crate::codes;
use crate::contract::{BarrierError, CommitId, Settled, SinkError};
use crate::core::FailCause;

impl Worker {
    pub(super) fn barrier_is_due(&self, now: Instant) -> bool {
        if self.accepted.is_empty() || self.barrier_not_before.is_some_and(|at| now < at) {
            return false;
        }
        let is_old = match (self.cx.barrier_every, self.accepted_since) {
            (Some(every), Some(since)) => {
                // A group that ends inside a transaction waits for its end, but not for ever (E129).
                let longest = if self.cx.writer.is_inside_transaction() { every * 2 } else { every };
                now.duration_since(since) >= longest
            }
            _ => true,
        };
        // While a group is wanted whole, the rest of it is sealed and written first.
        let has_rest = self.sealed.is_some() || !self.open.is_empty();
        let is_wanted = self.settle == Settle::Barrier
            || (self.drain.is_some() && !has_rest && self.cx.queue.queued().chunks == 0)
            || self.quiescing.iter().any(|(partition, _)| {
                self.accepted.iter().any(|ledger| ledger.holds(*partition)) && !self.has_unwritten(*partition)
            });
        is_old || is_wanted || self.barrier_attempts > 0 || self.cx.writer.wants_barrier()
    }

    pub(super) fn start_barrier(&mut self, now: Instant) {
        if self.settle == Settle::Barrier && self.accepted.is_empty() && self.writing.is_empty() {
            self.settle = Settle::No;
        }
        if !self.writing.is_empty() || self.barrier.is_some() || self.reset.is_some() || !self.barrier_is_due(now) {
            return;
        }
        if self.settle == Settle::Barrier {
            self.settle = Settle::No;
        }
        let writer = self.cx.writer.clone();
        self.barrier = Some((tokio::spawn(async move { writer.barrier().await }), now));
    }

    pub(super) fn barrier_ended(&mut self, ended: Result<Result<Settled, BarrierError>, JoinError>) {
        let Some((_, started)) = self.barrier.take() else { return };
        let now = Instant::now();
        let took = now.duration_since(started);
        match ended {
            // A writer that lost a part of the group without a word: what of it is durable, its positions say.
            Ok(Ok(settled)) if settled.batches < self.accepted.len() as u64 => {
                let (accepted, settled) = (self.accepted.len(), settled.batches);
                let text = format!("the sink has settled {settled} of {accepted} accepted batches");
                self.lose_accepted(&FailCause::new(codes::GROUP_LOST, text));
            }
            Ok(Ok(settled)) => {
                self.cx.meters.barrier_seconds.record(took.as_secs_f64());
                self.barrier_attempts = 0;
                self.barrier_not_before = None;
                self.accepted_since = None;
                let group = std::mem::take(&mut self.accepted);
                self.cx.view.committed(settled.version, took, self.cx.clock.now());
                self.cx.view.move_positions(settled.positions);
                self.settle(group);
                self.cx.view.is_running();
            }
            Ok(Err(BarrierError { error, lost })) => self.barrier_failed(error, &lost, now),
            Err(error) => {
                self.cx.meters.panics.increment(1);
                let text = if error.is_panic() { panic_text(error.into_panic()) } else { "cancelled".to_owned() };
                self.lose_accepted(&FailCause::new(codes::GROUP_LOST, format!("a commit panicked: {text}")));
            }
        }
    }

    pub(super) fn barrier_failed(&mut self, error: SinkError, lost: &[CommitId], now: Instant) {
        if !lost.is_empty() {
            let (gone, kept) = std::mem::take(&mut self.accepted)
                .into_iter()
                .partition::<Vec<_>, _>(|ledger| lost.contains(&ledger.id));
            self.accepted = kept;
            let cause = FailCause::new(codes::GROUP_LOST, format!("the sink lost accepted rows: {error}"));
            gone.into_iter().for_each(|ledger| ledger.fail(&cause));
            // Where nothing is left, no barrier is due any more that could end the wait for the next try; and what is left of
            // a partition behind its lost rows would be committed past them.
            if self.accepted.is_empty() || self.accepted.iter().any(Ledger::is_stale) {
                self.lose_accepted(&cause);
                return;
            }
        }
        let (is_destination, after) = match &error {
            SinkError::Later { after, .. } => (false, *after),
            SinkError::Destination { .. } => (true, None),
            // The writer has dropped the group: its rows are read again from the committed positions.
            SinkError::Row { .. } | SinkError::Unknown { .. } | SinkError::Superseded { .. } => {
                let cause = FailCause::new(error.code(), error.to_string());
                self.lose_accepted(&cause);
                return;
            }
        };
        self.barrier_attempts = self.barrier_attempts.saturating_add(1);
        let backoff = &self.cx.options.retry.backoff;
        let delay = match after {
            _ if is_destination => backoff.max,
            Some(after) => after.min(backoff.max),
            None => backoff.delay(self.barrier_attempts, crate::random::fraction()),
        };
        self.barrier_not_before = Some(now + delay);
        let first = self.accepted.first().and_then(Ledger::first);
        self.cx.view.has_failed(is_destination, &error, self.barrier_attempts, delay, first);
        write::log_attempt(
            &self.cx.pipeline,
            &self.cx.sink_name,
            &error,
            self.barrier_attempts,
            delay,
            first,
            self.accepted.iter().map(|ledger| ledger.rows).sum(),
        );
    }

    /// The group is gone: its rows are read again, and the writer starts from what the destination holds.
    pub(super) fn lose_accepted(&mut self, cause: &FailCause) {
        self.accepted_since = None;
        self.barrier_attempts = 0;
        self.barrier_not_before = None;
        let gone = std::mem::take(&mut self.accepted);
        if !gone.is_empty() {
            tracing::warn!(
                code = %cause.code, pipeline = %self.cx.pipeline, sink = %self.cx.sink_name,
                batches = gone.len(), "{}; the rows are read again", cause.text
            );
        }
        self.cx.meters.abandoned.increment(gone.len() as u64);
        gone.into_iter().for_each(|ledger| ledger.fail(cause));
        let writer = self.cx.writer.clone();
        self.reset = Some(tokio::spawn(async move {
            // A writer that does not come back must not hold its shard for ever.
            drop(tokio::time::timeout(RESET_MAX, writer.reset()).await);
        }));
        self.cx.view.is_running();
    }
}
