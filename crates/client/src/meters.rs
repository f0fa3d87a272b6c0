//! The client's metrics: handles made once per stream, counted up in steps by acks and frames, never per record.
//!
//! Per sub-stream, admitted = acked + taken back + dropped + in flight (I8).

use landfall_types::Coded;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;

use crate::error::IngestError;
use crate::ledger::Totals;

/// The metrics of one stream.
pub(crate) struct Meters {
    table: String,
    pub(crate) capacity_timeouts: Counter,
    pub(crate) capacity_wait: Histogram,
    sub_streams: Box<[Mutex<SubStreamMeters>]>,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Meters {
    pub(crate) fn new(table: &str, sub_streams: u16) -> Self {
        let table = table.to_owned();
        Meters {
            capacity_timeouts: counter!("landfall_client_capacity_timeouts_total", "channel" => table.clone()),
            capacity_wait: histogram!("landfall_client_capacity_wait_seconds", "channel" => table.clone()),
            sub_streams: (0..sub_streams).map(|index| Mutex::new(SubStreamMeters::new(&table, index))).collect(),
            table,
        }
    }

    /// A stream ended for good.
    pub(crate) fn failed(&self, error: &IngestError) {
        let code = error.code().to_string();
        counter!("landfall_client_poisoned_total", "channel" => self.table.clone(), "code" => code).increment(1);
    }

    /// An attempt to reconnect.
    pub(crate) fn reconnect(&self, sub_stream: u16, cause: &IngestError) {
        let labels = [
            ("channel", self.table.clone()),
            ("sub_stream", sub_stream.to_string()),
            ("cause", cause.code().to_string()),
        ];
        counter!("landfall_client_reconnects_total", &labels).increment(1);
    }

    /// Brings the counters of a sub-stream up to its ledger's.
    pub(crate) fn report(&self, sub_stream: u16, totals: Totals, queued_records: u64) {
        if let Some(meters) = self.sub_streams.get(usize::from(sub_stream)) {
            meters.lock().report(totals, queued_records);
        }
    }
}

/// The metrics of one sub-stream.
struct SubStreamMeters {
    last: Totals,
    admitted_records: Counter,
    admitted_bytes: Counter,
    acked_records: Counter,
    acked_bytes: Counter,
    taken_back: Counter,
    dropped: Counter,
    resent: Counter,
    frames: Counter,
    ignored_acks: Counter,
    in_flight: Gauge,
    queued: Gauge,
}

impl SubStreamMeters {
    fn new(table: &str, sub_stream: u16) -> Self {
        let labels = [("channel", table.to_owned()), ("sub_stream", sub_stream.to_string())];
        let count = |name: &'static str| counter!(name, &labels);
        let protected = [labels[0].clone(), labels[1].clone(), ("protected", "no".to_owned())];
        SubStreamMeters {
            last: Totals::default(),
            admitted_records: count("landfall_client_admitted_records_total"),
            admitted_bytes: count("landfall_client_admitted_bytes_total"),
            acked_records: count("landfall_client_acked_records_total"),
            acked_bytes: count("landfall_client_acked_bytes_total"),
            taken_back: count("landfall_client_taken_back_records_total"),
            dropped: count("landfall_client_dropped_unacked_total"),
            resent: counter!("landfall_client_resent_records_total", &protected),
            frames: count("landfall_client_frames_total"),
            ignored_acks: count("landfall_client_ignored_acks_total"),
            in_flight: gauge!("landfall_client_in_flight_records", &labels),
            queued: gauge!("landfall_client_queued_records", &labels),
        }
    }

    fn report(&mut self, totals: Totals, queued_records: u64) {
        // Two reports may pass each other on their way here: the older one has nothing to add.
        if totals.frames < self.last.frames || totals.admitted.records < self.last.admitted.records {
            return;
        }
        let last = std::mem::replace(&mut self.last, totals);
        let step = |now: u64, before: u64| now.saturating_sub(before);
        self.admitted_records.increment(step(totals.admitted.records, last.admitted.records));
        self.admitted_bytes.increment(step(totals.admitted.bytes, last.admitted.bytes));
        self.acked_records.increment(step(totals.acked.records, last.acked.records));
        self.acked_bytes.increment(step(totals.acked.bytes, last.acked.bytes));
        self.taken_back.increment(step(totals.taken_back.records, last.taken_back.records));
        self.dropped.increment(step(totals.dropped.records, last.dropped.records));
        self.resent.increment(step(totals.resent_records, last.resent_records));
        self.frames.increment(step(totals.frames, last.frames));
        self.ignored_acks.increment(step(totals.ignored_acks, last.ignored_acks));
        self.in_flight.set(totals.in_flight_records() as f64);
        self.queued.set(queued_records as f64);
    }
}
