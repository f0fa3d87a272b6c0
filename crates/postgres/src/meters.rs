//! Handles of the stream's and the slot's metrics (P111), made when the source is built.

use std::time::Duration;

use landfall_types::Code;
use metrics::{Counter, Gauge, counter, gauge};

use crate::Lsn;
use crate::log_record::RecordKind;
use crate::transport::StatusUpdate;

/// See the module.
#[derive(Clone)]
pub struct StreamMeters {
    pipeline: String,
    received_bytes: Counter,
    messages: Counter,
    keepalives: Counter,
    oversized: Counter,
    stream_starts: Counter,
    received_lsn: Gauge,
    durable_lsn: Gauge,
    slot_lag_bytes: Gauge,
    feedback_sent: Counter,
    feedback_age_seconds: Gauge,
}

impl std::fmt::Debug for StreamMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamMeters").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}

impl StreamMeters {
    /// The handles of a pipeline's stream.
    pub fn new(pipeline: &str) -> Self {
        let name = || pipeline.to_owned();
        let kind =
            |kind: RecordKind| counter!("landfall_pg_log_records_total", "pipeline" => name(), "kind" => kind.label());
        StreamMeters {
            received_bytes: counter!("landfall_pg_received_bytes_total", "pipeline" => name()),
            messages: kind(RecordKind::Message),
            keepalives: kind(RecordKind::KeepAlive),
            oversized: kind(RecordKind::Oversized { len: 0 }),
            stream_starts: kind(RecordKind::StreamStart),
            received_lsn: gauge!("landfall_pg_received_lsn", "pipeline" => name()),
            durable_lsn: gauge!("landfall_pg_durable_lsn", "pipeline" => name()),
            slot_lag_bytes: gauge!("landfall_pg_slot_lag_bytes", "pipeline" => name()),
            feedback_sent: counter!("landfall_pg_feedback_sent_total", "pipeline" => name()),
            feedback_age_seconds: gauge!("landfall_pg_feedback_age_seconds", "pipeline" => name()),
            pipeline: name(),
        }
    }

    /// A connection ended for this reason, and another one is made. The one place where a handle is looked up: it is
    /// rare, and the label is the reason.
    pub fn reconnected(&self, code: Code) {
        counter!("landfall_pg_reconnects_total", "pipeline" => self.pipeline.clone(), "code" => code.to_string())
            .increment(1);
    }

    /// How long ago the server heard from us, by whoever looks at the source ([`DurableLsn::feedback_age`]).
    ///
    /// [`DurableLsn::feedback_age`]: crate::DurableLsn::feedback_age
    pub fn feedback_age(&self, age: Duration) {
        self.feedback_age_seconds.set(age.as_secs_f64());
    }

    pub(crate) fn fed_back(&self, status: &StatusUpdate, server_end: Lsn) {
        self.feedback_sent.increment(1);
        self.feedback_age_seconds.set(0.0);
        self.received_lsn.set(status.write.0 as f64);
        self.durable_lsn.set(status.flush.0 as f64);
        self.slot_lag_bytes.set(server_end.since(status.flush) as f64);
    }

    pub(crate) fn read(&self, counts: &mut ReadCounts) {
        let ReadCounts { bytes, messages, keepalives, oversized, stream_starts } = std::mem::take(counts);
        self.received_bytes.increment(bytes);
        self.messages.increment(messages);
        self.keepalives.increment(keepalives);
        self.oversized.increment(oversized);
        self.stream_starts.increment(stream_starts);
    }
}

/// A table is another one from some change on, and goes on. Looked up when it happens, which is rare.
pub(crate) fn table_changed(pipeline: &str, table: &str) {
    counter!("landfall_pg_table_changes_total", "pipeline" => pipeline.to_owned(), "table" => table.to_owned())
        .increment(1);
}

/// What the pump has counted since the last flush: plain numbers, so that no record touches a metric.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    bytes: u64,
    messages: u64,
    keepalives: u64,
    oversized: u64,
    stream_starts: u64,
}

impl ReadCounts {
    pub(crate) fn add(&mut self, kind: RecordKind, bytes: usize) {
        self.bytes += bytes as u64;
        match kind {
            RecordKind::Message => self.messages += 1,
            RecordKind::KeepAlive => self.keepalives += 1,
            RecordKind::Oversized { .. } => self.oversized += 1,
            RecordKind::StreamStart | RecordKind::TimelineEnd { .. } => self.stream_starts += 1,
        }
    }
}
