//! The metrics of ingest (G29). Handles are made once; `received = the five outcomes + in flight` (I8).

use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// What became of received records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    Duplicate,
    Refused,
    NotStored,
    Unresolved,
}

/// The handles.
pub(crate) struct Meters {
    pub(crate) opening: Gauge,
    pub(crate) open: Gauge,
    pub(crate) received: Counter,
    outcomes: [Counter; 5],
    pub(crate) bytes: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) unacked_bytes: Gauge,
    pub(crate) acks: Counter,
    pub(crate) ack_seconds: Histogram,
    not_reading: [Gauge; 3],
    pub(crate) connections: Gauge,
    pub(crate) refused_connections: Counter,
}

/// Why a stream is not being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReading {
    /// The channel has not taken the last call yet.
    Channel,
    /// The stream has its fill of unacknowledged calls.
    Unacked,
    /// Calls are being tried again.
    Retry,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

impl Meters {
    pub(crate) fn new() -> Self {
        let outcome = |word: &'static str| counter!("landfall_ingest_records_total", "outcome" => word);
        // Seconds have fractions and counters have none.
        let waits = |why: &'static str| gauge!("landfall_ingest_not_reading_seconds_total", "why" => why);
        Meters {
            opening: gauge!("landfall_ingest_streams", "state" => "opening"),
            open: gauge!("landfall_ingest_streams", "state" => "open"),
            received: counter!("landfall_ingest_received_records_total"),
            outcomes: ["committed", "duplicate", "refused", "not_stored", "unresolved"].map(outcome),
            bytes: counter!("landfall_ingest_bytes_total"),
            in_flight: gauge!("landfall_ingest_in_flight_records"),
            unacked_bytes: gauge!("landfall_ingest_unacked_bytes"),
            acks: counter!("landfall_ingest_acks_total"),
            ack_seconds: histogram!("landfall_ingest_ack_seconds"),
            not_reading: ["channel", "unacked", "retry"].map(waits),
            connections: gauge!("landfall_ingest_connections"),
            refused_connections: counter!("landfall_ingest_refused_connections_total"),
        }
    }

    pub(crate) fn records(&self, outcome: Outcome, n: u64) {
        if let Some(counter) = self.outcomes.get(outcome as usize) {
            counter.increment(n);
        }
    }

    pub(crate) fn not_reading(&self, why: NotReading, since: Instant) {
        if let Some(gauge) = self.not_reading.get(why as usize) {
            gauge.increment(since.elapsed().as_secs_f64());
        }
    }

    pub(crate) fn open_failed(&self, code: &str) {
        counter!("landfall_ingest_open_failures_total", "code" => code.to_owned()).increment(1);
    }

    pub(crate) fn close_signal(&self, why: &'static str) {
        counter!("landfall_ingest_close_signals_total", "why" => why).increment(1);
    }

    /// `route` is one of ours, never what a client sent.
    pub(crate) fn http(&self, route: &'static str, status: u16) {
        counter!("landfall_ingest_http_requests_total", "route" => route, "status" => status.to_string()).increment(1);
    }

    pub(crate) fn acked(&self, age: Duration) {
        self.acks.increment(1);
        self.ack_seconds.record(age.as_secs_f64());
    }
}
