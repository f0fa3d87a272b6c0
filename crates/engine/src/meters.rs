//! Handles of the metrics (E142), made when the pipeline is built: nothing is looked up while records move.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::contract::Stage;

/// The source's and the driver's.
#[derive(Clone)]
pub(crate) struct DriverMeters {
    pub(crate) rows: Counter,
    pub(crate) bytes: Counter,
    pub(crate) poll_seconds: Histogram,
    pub(crate) errors: Counter,
    pub(crate) chain_seconds: Histogram,
    pub(crate) decode_seconds: Histogram,
    pub(crate) not_ready: Counter,
    pub(crate) panics: Counter,
    pub(crate) missed_wakes: Counter,
    pub(crate) blocks_capacity: Counter,
    pub(crate) blocks_dead_letters: Counter,
    pub(crate) lanes: Gauge,
    pub(crate) busy: Gauge,
}

impl DriverMeters {
    pub(crate) fn new(pipeline: &str) -> Self {
        let pipeline = pipeline.to_owned();
        DriverMeters {
            rows: counter!("landfall_source_rows_total", "pipeline" => pipeline.clone()),
            bytes: counter!("landfall_source_bytes_total", "pipeline" => pipeline.clone()),
            poll_seconds: histogram!("landfall_source_poll_seconds", "pipeline" => pipeline.clone()),
            errors: counter!("landfall_source_errors_total", "pipeline" => pipeline.clone()),
            chain_seconds: histogram!("landfall_chain_seconds", "pipeline" => pipeline.clone()),
            decode_seconds: histogram!("landfall_decode_seconds", "pipeline" => pipeline.clone()),
            not_ready: counter!("landfall_not_ready_total", "pipeline" => pipeline.clone()),
            panics: counter!("landfall_panics_total", "pipeline" => pipeline.clone(), "where" => "chain"),
            missed_wakes: counter!("landfall_driver_missed_wakes_total", "pipeline" => pipeline.clone()),
            blocks_capacity: counter!("landfall_lane_blocks_total", "pipeline" => pipeline.clone(),
                "reason" => "capacity"),
            blocks_dead_letters: counter!("landfall_lane_blocks_total", "pipeline" => pipeline.clone(),
                "reason" => "dead_letters"),
            lanes: gauge!("landfall_lanes", "pipeline" => pipeline.clone()),
            busy: gauge!("landfall_driver_busy_ratio", "pipeline" => pipeline),
        }
    }
}

/// One sink's.
#[derive(Clone)]
pub(crate) struct SinkMeters {
    pub(crate) rows: Counter,
    pub(crate) bytes: Counter,
    pub(crate) batch_rows: Histogram,
    pub(crate) batch_bytes: Histogram,
    pub(crate) seals: SealMeters,
    pub(crate) write_seconds: Histogram,
    pub(crate) write_failed_seconds: Histogram,
    pub(crate) barrier_seconds: Histogram,
    pub(crate) retries_later: Counter,
    pub(crate) retries_unknown: Counter,
    pub(crate) retries_destination: Counter,
    pub(crate) resends: Counter,
    pub(crate) up: Gauge,
    pub(crate) abandoned: Counter,
    pub(crate) bisects: Counter,
    pub(crate) e2e_seconds: Histogram,
    pub(crate) dead_lettered: Counter,
    pub(crate) panics: Counter,
    pub(crate) queue_refusals: Counter,
}

/// Seals by reason.
#[derive(Clone)]
pub(crate) struct SealMeters {
    pub(crate) rows: Counter,
    pub(crate) bytes: Counter,
    pub(crate) age: Counter,
    pub(crate) pressure: Counter,
    pub(crate) lull: Counter,
    pub(crate) idle: Counter,
    pub(crate) settle: Counter,
    pub(crate) quiesce: Counter,
    pub(crate) drain: Counter,
}

impl SinkMeters {
    pub(crate) fn new(pipeline: &str, sink: &str) -> Self {
        let pipeline = pipeline.to_owned();
        let sink = sink.to_owned();
        let seals = |reason: &'static str| {
            counter!("landfall_seals_total", "pipeline" => pipeline.clone(), "sink" => sink.clone(),
                "reason" => reason)
        };
        let retries = |class: &'static str| {
            counter!("landfall_retries_total", "pipeline" => pipeline.clone(), "sink" => sink.clone(),
                "class" => class)
        };
        let writes = |outcome: &'static str| {
            histogram!("landfall_write_seconds", "pipeline" => pipeline.clone(), "sink" => sink.clone(),
                "outcome" => outcome)
        };
        let count = |name: &'static str| counter!(name, "pipeline" => pipeline.clone(), "sink" => sink.clone());
        let measure = |name: &'static str| histogram!(name, "pipeline" => pipeline.clone(), "sink" => sink.clone());
        SinkMeters {
            rows: count("landfall_sink_rows_total"),
            bytes: count("landfall_sink_bytes_total"),
            batch_rows: measure("landfall_batch_rows"),
            batch_bytes: measure("landfall_batch_bytes"),
            seals: SealMeters {
                rows: seals("rows"),
                bytes: seals("bytes"),
                age: seals("age"),
                pressure: seals("pressure"),
                lull: seals("lull"),
                idle: seals("idle"),
                settle: seals("settle"),
                quiesce: seals("quiesce"),
                drain: seals("drain"),
            },
            write_seconds: writes("stored"),
            write_failed_seconds: writes("failed"),
            barrier_seconds: measure("landfall_barrier_seconds"),
            retries_later: retries("later"),
            retries_unknown: retries("unknown"),
            retries_destination: retries("destination"),
            resends: count("landfall_sink_resends_total"),
            up: gauge!("landfall_sink_up", "pipeline" => pipeline.clone(), "sink" => sink.clone()),
            abandoned: count("landfall_batches_abandoned_total"),
            bisects: count("landfall_bisects_total"),
            e2e_seconds: measure("landfall_e2e_seconds"),
            dead_lettered: counter!("landfall_rows_dead_lettered_total", "pipeline" => pipeline.clone(),
                "stage" => "sink"),
            panics: counter!("landfall_panics_total", "pipeline" => pipeline.clone(), "where" => "sink"),
            queue_refusals: count("landfall_queue_refusals_total"),
        }
    }
}

impl SinkMeters {
    /// The same for one table of the sink: whether it answers is each table's own.
    pub(crate) fn of_table(mut self, pipeline: &str, sink: &str, table: &str) -> Self {
        let (pipeline, sink, table) = (pipeline.to_owned(), sink.to_owned(), table.to_owned());
        self.up = gauge!("landfall_sink_up", "pipeline" => pipeline, "sink" => sink, "table" => table);
        self
    }
}

/// The controller's, for one sink.
#[derive(Clone)]
pub(crate) struct BalanceMeters {
    pub(crate) rows_in: Counter,
    pub(crate) delivered: Counter,
    pub(crate) replayed: Counter,
    pub(crate) filtered: Counter,
    pub(crate) skipped: Counter,
    pub(crate) returned: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) off: Gauge,
    pub(crate) oldest: Gauge,
    pub(crate) share: Gauge,
    pub(crate) share_limit: Gauge,
    pub(crate) queue_chunks: Gauge,
    pub(crate) queue_bytes: Gauge,
}

impl BalanceMeters {
    pub(crate) fn new(pipeline: &str, sink: &str) -> Self {
        let pipeline = pipeline.to_owned();
        let sink = sink.to_owned();
        let count = |name: &'static str| counter!(name, "pipeline" => pipeline.clone(), "sink" => sink.clone());
        let show = |name: &'static str| gauge!(name, "pipeline" => pipeline.clone(), "sink" => sink.clone());
        let filtered = |reason: &'static str| {
            counter!("landfall_rows_filtered_total", "pipeline" => pipeline.clone(), "sink" => sink.clone(),
                "reason" => reason)
        };
        BalanceMeters {
            rows_in: count("landfall_rows_in_total"),
            delivered: count("landfall_rows_delivered_total"),
            replayed: count("landfall_rows_replayed_total"),
            filtered: filtered("query"),
            skipped: filtered("skipped"),
            returned: count("landfall_rows_returned_total"),
            in_flight: show("landfall_rows_in_flight"),
            off: show("landfall_balance_off"),
            oldest: show("landfall_oldest_unacked_seconds"),
            share: show("landfall_share_bytes"),
            share_limit: show("landfall_share_limit_bytes"),
            queue_chunks: show("landfall_queue_chunks"),
            queue_bytes: show("landfall_queue_bytes"),
        }
    }
}

/// The controller's, for the pipeline.
#[derive(Clone)]
pub(crate) struct CheckpointMeters {
    pub(crate) pending_batches: Gauge,
    pub(crate) pending_bytes: Gauge,
    pub(crate) commits: Counter,
    pub(crate) commit_failures: Counter,
    pub(crate) commit_seconds: Histogram,
    pub(crate) stale: Counter,
    pub(crate) restarts: Counter,
    pub(crate) gap_records: Counter,
    pub(crate) lag_records: Gauge,
}

impl CheckpointMeters {
    pub(crate) fn new(pipeline: &str) -> Self {
        let pipeline = pipeline.to_owned();
        let commits = |outcome: &'static str| counter!("landfall_watermark_commits_total", "pipeline" => pipeline.clone(), "outcome" => outcome);
        CheckpointMeters {
            pending_batches: gauge!("landfall_pending_batches", "pipeline" => pipeline.clone()),
            pending_bytes: gauge!("landfall_pending_bytes", "pipeline" => pipeline.clone()),
            commits: commits("stored"),
            commit_failures: commits("failed"),
            commit_seconds: histogram!("landfall_watermark_commit_seconds", "pipeline" => pipeline.clone()),
            stale: counter!("landfall_acks_stale_total", "pipeline" => pipeline.clone()),
            restarts: counter!("landfall_partition_restarts_total", "pipeline" => pipeline.clone()),
            gap_records: counter!("landfall_source_gap_records_total", "pipeline" => pipeline.clone()),
            lag_records: gauge!("landfall_source_lag_records", "pipeline" => pipeline),
        }
    }
}

/// Rows dead-lettered by the chain, of one stage.
pub(crate) fn dead_lettered(pipeline: &str, stage: Stage) -> Counter {
    let stage = match stage {
        Stage::Decode => "decode",
        Stage::Sql => "sql",
        Stage::Sink => "sink",
    };
    counter!("landfall_rows_dead_lettered_total", "pipeline" => pipeline.to_owned(), "stage" => stage)
}
