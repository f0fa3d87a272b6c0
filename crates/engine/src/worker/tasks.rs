//! The worker's write tasks: when a sealed batch goes out, and what becomes of it when its task ends (E118, E120).
//!
//! A task that panics leaves its batch and its holds here, so it is tried again; after a few times the batch is given up.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinError};
use tokio::time::Instant;

use super::{InWriting, Origins, Progress, Settle, Worker, WriteCx, WriteEnd, write_out};
use crate::codes;
use crate::contract::Written;
use crate::core::FailCause;

/// How many times a write task may panic over one batch before the batch is given up (E120).
const PANICS_MAX: u32 = 3;

impl Worker {
    pub(super) fn start_write(&mut self, now: Instant) -> bool {
        // A barrier that is due goes first, or a busy shard would never settle.
        let waits = self.writing.len() >= self.concurrency
            || self.barrier.is_some()
            || self.reset.is_some()
            // A destination that does not commit gets no more: the group would grow for nothing.
            || self.barrier_attempts > 0
            || (self.barrier_is_due(now) && !self.accepted.is_empty());
        if waits {
            return false;
        }
        let Some(sealed) = self.sealed.take() else { return false };
        if self.settle == Settle::Write {
            self.settle = Settle::Barrier;
        }
        if sealed.ledger.is_stale() {
            // A position behind rows that were lost would say that they are there: all of it is read again.
            return true;
        }
        self.sequence += 1;
        let bytes = sealed.batch.bytes;
        let progress = Arc::new(Mutex::new(Progress::new(Arc::new(sealed.batch))));
        let origins = Arc::new(sealed.origins);
        let task = self.spawn_write(self.sequence, origins.clone(), progress.clone());
        let ledger = sealed.ledger;
        let writing = InWriting { ledger, bytes, origins, progress, panics: 0, task, started: now };
        self.writing.insert(self.sequence, writing);
        true
    }

    fn spawn_write(&mut self, sequence: u64, origins: Arc<Origins>, progress: Arc<Mutex<Progress>>) -> AbortHandle {
        let cx = WriteCx {
            pipeline: self.cx.pipeline.clone(),
            source: self.cx.source.clone(),
            sink_name: self.cx.sink_name.clone(),
            writer: self.cx.writer.clone(),
            retry: self.cx.options.retry,
            on_error: self.cx.on_error,
            max_bad_fraction: self.cx.max_bad_fraction,
            max_bad_rows: self.cx.max_bad_rows,
            letters: self.cx.letters.clone(),
            view: self.cx.view.clone(),
            meters: self.cx.meters.clone(),
        };
        let task = self.writes.spawn(async move { (sequence, write_out(&cx, &origins, &progress).await) });
        self.tasks.insert(task.id(), sequence);
        task
    }

    pub(super) fn write_ended(&mut self, ended: Result<(tokio::task::Id, (u64, WriteEnd)), JoinError>) {
        let now = Instant::now();
        let (sequence, end) = match ended {
            Ok((id, (sequence, end))) => {
                self.tasks.remove(&id);
                (sequence, Ok(end))
            }
            Err(error) => {
                let Some(sequence) = self.tasks.remove(&error.id()) else { return };
                (sequence, Err(error))
            }
        };
        // A batch that was given up in the meantime has no ledger any more.
        let Some(mut written) = self.writing.remove(&sequence) else { return };
        let seconds = now.duration_since(written.started).as_secs_f64();
        match end {
            Ok(WriteEnd::Stored { written: kind, refused }) => {
                self.cx.meters.write_seconds.record(seconds);
                self.cx.meters.rows.increment(written.ledger.rows as u64);
                self.cx.meters.bytes.increment(written.bytes as u64);
                let mut ledger = written.ledger;
                let set_aside = ledger.book_refused(&refused, self.cx.on_error);
                self.cx.meters.dead_lettered.increment(set_aside);
                // The rows are the writer's now, or durable: their bytes leave the share (H7).
                ledger.release();
                match kind {
                    Written::Durable | Written::AlreadyThere => self.settle(vec![ledger]),
                    Written::Accepted => {
                        self.accepted_since.get_or_insert(now);
                        self.accepted.push(ledger);
                    }
                }
            }
            Ok(WriteEnd::GaveUp(cause)) => {
                self.cx.meters.write_failed_seconds.record(seconds);
                self.give_up(written, &cause);
            }
            Err(error) if error.is_panic() => {
                self.cx.meters.panics.increment(1);
                let text = panic_text(error.into_panic());
                tracing::error!(
                    code = %codes::PANIC, pipeline = %self.cx.pipeline, sink = %self.cx.sink_name,
                    panics = written.panics + 1, "a write panicked: {text}"
                );
                written.panics += 1;
                if written.panics < PANICS_MAX {
                    written.task = self.spawn_write(sequence, written.origins.clone(), written.progress.clone());
                    self.writing.insert(sequence, written);
                } else {
                    let text = format!("writing a batch panicked {PANICS_MAX} times: {text}");
                    self.give_up(written, &FailCause::new(codes::PANIC, text));
                }
            }
            Err(_) => {
                self.give_up(written, &FailCause::new(codes::ABANDONED, "the write was cancelled"));
            }
        }
    }
}

/// What a panic said, cut short.
pub(crate) fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned());
    text.chars().take(512).collect()
}
