//! Checkpoints of the table's log, beside the commits (E134).
//!
//! One at a time per sink, on a thread that may block, since the library's checkpoint does. A failure is a warning and a
//! counter, never a failed commit: the commit was in before this began. The library's clean-up of old log files is not
//! run. A process that ends in the middle leaves at most a file without a name.

use std::sync::Arc;

use buoyant_kernel::Snapshot;
use deltalake_core::logstore::LogStoreRef;
use tokio::sync::watch;

use crate::code;

/// How many checkpoints ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) running: bool,
    pub(crate) written: u64,
    pub(crate) failed: u64,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Housekeeping {
    log: LogStoreRef,
    every: u64,
    pipeline: String,
    done: Arc<watch::Sender<Done>>,
}

impl Housekeeping {
    pub(crate) fn new(log: LogStoreRef, every: u64, pipeline: String) -> Self {
        Housekeeping { log, every, pipeline, done: Arc::new(watch::Sender::new(Done::default())) }
    }

    pub(crate) fn done(&self) -> Done {
        *self.done.borrow()
    }

    #[cfg(test)]
    pub(crate) fn watch(&self) -> watch::Receiver<Done> {
        self.done.subscribe()
    }

    /// Starts a checkpoint if this version is due and none is running. Does not wait for it.
    pub(crate) fn after_commit(&self, version: u64) {
        if self.every == 0 || !version.is_multiple_of(self.every) {
            return;
        }
        let start = self.done.send_if_modified(|done| !std::mem::replace(&mut done.running, true));
        if start {
            let housekeeping = self.clone();
            tokio::spawn(async move { housekeeping.checkpoint(version).await });
        }
    }

    async fn checkpoint(&self, version: u64) {
        let engine = self.log.engine(None);
        let url = self.log.root_url().clone();
        let work = move || -> Result<(), String> {
            let text = |error: buoyant_kernel::Error| error.to_string();
            let snapshot =
                Snapshot::builder_for(url.as_str()).at_version(version).build(engine.as_ref()).map_err(text)?;
            snapshot.checkpoint(engine.as_ref(), None).map_err(text)?;
            Ok(())
        };
        let outcome = match tokio::task::spawn_blocking(work).await {
            Ok(outcome) => outcome,
            Err(error) => Err(error.to_string()),
        };
        let label = if outcome.is_ok() { "ok" } else { "failed" };
        metrics::counter!("landfall_delta_housekeeping_total", "pipeline" => self.pipeline.clone(), "task" => "checkpoint", "outcome" => label)
            .increment(1);
        if let Err(cause) = &outcome {
            tracing::warn!(
                code = %code::HOUSEKEEPING, pipeline = %self.pipeline, table = %self.log.root_url(), version, cause,
                "a checkpoint of the table's log failed; commits are not touched by it"
            );
        }
        self.done.send_modify(|done| {
            done.running = false;
            match outcome {
                Ok(()) => done.written += 1,
                Err(_) => done.failed += 1,
            }
        });
    }
}
