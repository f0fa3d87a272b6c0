//! Metric handles, made when a partition opens, so that none is looked up per publish (C95).

use std::sync::Arc;

use landfall_types::{Code, Coded, PartitionId};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::intake::Counts;
use crate::outcome::UnresolvedCause;

pub(crate) struct PartitionMetrics {
    channel: Arc<str>,
    partition: String,
    pub(crate) committed: Counter,
    pub(crate) duplicate: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) turn_records: Histogram,
    pub(crate) turn_bytes: Histogram,
    pub(crate) sync_seconds: Histogram,
    pub(crate) queue_wait_seconds: Histogram,
    pub(crate) ack_seconds: Histogram,
    pub(crate) syncs: Counter,
    pub(crate) items_out: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) tail_offset: Gauge,
    pub(crate) log_start_offset: Gauge,
    pub(crate) log_bytes: Gauge,
    pub(crate) segments: Gauge,
    pub(crate) rolls: Counter,
    pub(crate) extend_inline: Counter,
    pub(crate) epoch: Gauge,
    pub(crate) key_entries: Gauge,
    pub(crate) key_reused: Counter,
    pub(crate) read_ring: Counter,
    pub(crate) read_segment: Counter,
}

impl std::fmt::Debug for PartitionMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartitionMetrics")
    }
}

impl PartitionMetrics {
    pub(crate) fn new(channel: &Arc<str>, partition: PartitionId) -> Self {
        let name = channel.to_string();
        let number = partition.to_string();
        macro_rules! both {
            ($kind:ident, $metric:literal $(, $key:literal => $value:literal)*) => {
                $kind!($metric, "channel" => name.clone(), "partition" => number.clone() $(, $key => $value)*)
            };
        }
        PartitionMetrics {
            committed: both!(counter, "landfall_publish_committed_total"),
            duplicate: both!(counter, "landfall_publish_duplicate_total"),
            cancelled: both!(counter, "landfall_publish_cancelled_total"),
            in_flight: both!(gauge, "landfall_publish_in_flight"),
            turn_records: both!(histogram, "landfall_turn_records"),
            turn_bytes: both!(histogram, "landfall_turn_bytes"),
            sync_seconds: both!(histogram, "landfall_sync_seconds"),
            queue_wait_seconds: both!(histogram, "landfall_queue_wait_seconds"),
            ack_seconds: both!(histogram, "landfall_ack_seconds"),
            syncs: both!(counter, "landfall_syncs_total"),
            items_out: both!(counter, "landfall_queue_items_out_total"),
            bytes_out: both!(counter, "landfall_queue_bytes_out_total"),
            tail_offset: both!(gauge, "landfall_tail_offset"),
            log_start_offset: both!(gauge, "landfall_log_start_offset"),
            log_bytes: both!(gauge, "landfall_log_bytes"),
            segments: both!(gauge, "landfall_segments"),
            rolls: both!(counter, "landfall_rolls_total"),
            extend_inline: both!(counter, "landfall_extend_inline_total"),
            epoch: both!(gauge, "landfall_epoch"),
            key_entries: both!(gauge, "landfall_key_entries"),
            key_reused: both!(counter, "landfall_key_reused_total"),
            read_ring: both!(counter, "landfall_read_records_total", "from" => "ring"),
            read_segment: both!(counter, "landfall_read_records_total", "from" => "segment"),
            channel: Arc::clone(channel),
            partition: number,
        }
    }

    /// What the queue counts itself.
    pub(crate) fn arrivals(&self) -> Counts {
        let labels = [("channel", self.channel.to_string()), ("partition", self.partition.clone())];
        Counts {
            accepted: counter!("landfall_publish_accepted_total", &labels),
            in_flight: self.in_flight.clone(),
            items: counter!("landfall_queue_items_in_total", &labels),
            bytes: counter!("landfall_queue_bytes_in_total", &labels),
        }
    }

    fn labelled(&self, metric: &'static str, key: &'static str, value: String) -> Counter {
        counter!(metric, "channel" => self.channel.to_string(), "partition" => self.partition.clone(), key => value)
    }

    /// Publishes that ended NotStored. Rare, so the handle is looked up.
    pub(crate) fn not_stored(&self, code: Code, count: u64) {
        self.labelled("landfall_publish_not_stored_total", "code", code.to_string()).increment(count);
    }

    /// An answer that was Unresolved.
    pub(crate) fn unresolved(&self, cause: &UnresolvedCause) {
        self.labelled("landfall_publish_unresolved_total", "code", cause.code().to_string()).increment(1);
    }

    /// How an uncertain append ended.
    pub(crate) fn settled(&self, outcome: &'static str) {
        self.labelled("landfall_unresolved_settled_total", "outcome", outcome.to_owned()).increment(1);
    }

    /// A settle was tried.
    pub(crate) fn settle_attempt(&self, result: &'static str) {
        self.labelled("landfall_settle_attempts_total", "result", result.to_owned()).increment(1);
    }

    /// An event of opening, with its size.
    pub(crate) fn opened(&self, metric: &'static str, by: u64) {
        counter!(metric, "channel" => self.channel.to_string(), "partition" => self.partition.clone()).increment(by);
    }
}
