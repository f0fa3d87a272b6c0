//! What the controller writes down in each pass for whoever looks, and the gauges that it owns.

use std::time::Instant;

use super::Controller;
use super::partition::Phase;
use crate::contract::Source;
use crate::sight::{Live, RestartStatus};

impl<S: Source> Controller<'_, S> {
    pub(super) fn show(&mut self, now: Instant) {
        let tails = self.source.tails();
        let report = self.source.report();
        let (mut batches, mut bytes) = (0, 0);
        let mut restarts = Vec::new();
        let tables = self.table_sights(now);
        let count = self.cx.heads.len() + 1;
        let mut sight = self.cx.shared.sight.lock();
        sight.books.clone_from(&self.books);
        for (id, table) in &self.tables {
            sight.tables.insert(*id, table.books.clone());
        }
        sight.table_sights = tables;
        sight.live.clear();
        sight.sink_marks.resize_with(count, Default::default);
        for part in self.parts.values() {
            if let Some(harvester) = &part.harvester {
                let (part_batches, part_bytes) = harvester.pending();
                batches += part_batches;
                bytes += part_bytes;
                let harvested = (0..count).map(|sink| harvester.rows_harvested(sink)).collect();
                let live = Live { table: part.table, counted: harvester.counted(), harvested };
                sight.live.insert(part.partition, live);
            }
            sight.watermarks.insert(part.partition, part.watermark());
            for (sink, mark) in part.watermarks.iter().enumerate() {
                sight.sink_marks[sink].insert(part.partition, *mark);
            }
            if let (false, Some(cause)) = (part.is_running() && part.attempts == 0, &part.cause) {
                let next = match part.phase {
                    Phase::Waiting { until, .. } => Some(until.saturating_duration_since(now)),
                    _ => None,
                };
                restarts.push(RestartStatus {
                    partition: part.partition.0,
                    table: part.table,
                    cause: cause.text.to_string(),
                    code: cause.code,
                    attempt: part.attempts,
                    next_ms: next.map(|next| u64::try_from(next.as_millis()).unwrap_or(u64::MAX)),
                    blocked: part.is_blocked,
                });
            }
        }
        sight.restarts = restarts;
        sight.committed.extend(self.persisted());
        sight.pending_batches = batches;
        sight.pending_bytes = bytes;
        let lag: u64 = tails
            .iter()
            .map(|(partition, tail)| {
                tail.at.saturating_sub(sight.watermarks.get(partition).map_or(0, |place| place.at))
            })
            .sum();
        sight.tails = tails;
        sight.source_report = report;
        let oldest = sight.oldest;
        drop(sight);
        self.cx.meters.lag_records.set(lag as f64);
        self.cx.meters.pending_batches.set(batches as f64);
        self.cx.meters.pending_bytes.set(bytes as f64);
        for (at, sink) in self.cx.heads.iter().enumerate() {
            let balance = self.cx.shared.balance_of(at);
            sink.meters.in_flight.set(balance.in_flight as f64);
            sink.meters.off.set(if balance.ok { 0.0 } else { 1.0 });
            sink.meters.oldest.set(oldest.map_or(0.0, |age| age.as_secs_f64()));
            let (mut chunks, mut queued, mut share, mut limit) = (0, 0, 0, 0);
            let runs = self.every_sink().filter(|(_, number, _)| *number == at);
            for queue in runs.flat_map(|(_, _, run)| &run.queues) {
                let now = queue.queued();
                chunks += now.chunks;
                queued += now.bytes;
                share += now.share;
                limit += queue.limits().high;
            }
            sink.meters.queue_chunks.set(chunks as f64);
            sink.meters.queue_bytes.set(queued as f64);
            sink.meters.share.set(share as f64);
            sink.meters.share_limit.set(limit as f64);
        }
        if std::mem::take(&mut self.is_news) {
            self.cx.shared.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}
