//! Handles of the queue's metrics (P111), made when the source is built; nothing is looked up while records move.

use metrics::{Counter, Gauge, counter, gauge};

use super::counters::QueueCounts;

/// See the module. The queue worker writes them, once per bundle and on its cadence.
#[derive(Clone)]
pub struct QueueMeters {
    admitted: Counter,
    processed: Counter,
    dropped: Counter,
    in_flight_records: Gauge,
    in_flight_bytes: Gauge,
    room_wait_seconds: Gauge,
    worker_alive: Gauge,
}

impl std::fmt::Debug for QueueMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueMeters").finish_non_exhaustive()
    }
}

impl QueueMeters {
    /// The handles of a pipeline's queue.
    pub fn new(pipeline: &str) -> Self {
        let pipeline = pipeline.to_owned();
        QueueMeters {
            admitted: counter!("landfall_pg_queue_admitted_total", "pipeline" => pipeline.clone()),
            processed: counter!("landfall_pg_queue_processed_total", "pipeline" => pipeline.clone()),
            dropped: counter!("landfall_pg_queue_dropped_total", "pipeline" => pipeline.clone()),
            in_flight_records: gauge!("landfall_pg_queue_in_flight_records", "pipeline" => pipeline.clone()),
            in_flight_bytes: gauge!("landfall_pg_queue_in_flight_bytes", "pipeline" => pipeline.clone()),
            // A sum of fractions of a second; counters hold whole numbers only.
            room_wait_seconds: gauge!("landfall_pg_queue_room_wait_seconds_total", "pipeline" => pipeline.clone()),
            worker_alive: gauge!("landfall_pg_queue_worker_alive", "pipeline" => pipeline),
        }
    }

    /// Handles that go nowhere.
    pub fn noop() -> Self {
        QueueMeters {
            admitted: Counter::noop(),
            processed: Counter::noop(),
            dropped: Counter::noop(),
            in_flight_records: Gauge::noop(),
            in_flight_bytes: Gauge::noop(),
            room_wait_seconds: Gauge::noop(),
            worker_alive: Gauge::noop(),
        }
    }

    pub(super) fn export(&self, counts: &QueueCounts, is_alive: bool) {
        self.admitted.absolute(counts.admitted);
        self.processed.absolute(counts.processed);
        self.dropped.absolute(counts.dropped);
        self.in_flight_records.set(counts.in_flight as f64);
        self.in_flight_bytes.set(counts.held_bytes as f64);
        self.room_wait_seconds.set(counts.room_wait_nanos as f64 / 1e9);
        self.worker_alive.set(if is_alive { 1.0 } else { 0.0 });
    }
}
