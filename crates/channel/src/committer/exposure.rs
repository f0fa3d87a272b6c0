//! What follows a successful sync, all of it in memory and infallible (C24).
//!
//! The order matters: ring, next offset, visible tail, keys, tail waiters, tickets. A publisher that has its answer reads
//! its own record at once (C2), and a whole turn becomes visible by one store.

use std::sync::Arc;
use std::time::Instant;

use landfall_log::{AppendTimes, Evidence, StoredUnit, Unit};
use landfall_types::{Coded, Epoch, Offset};

use super::{Committer, Released};
use crate::error::PublishError;
use crate::partition::Condition;
use crate::status::Health;
use crate::ticket::{Passed, Settlement};

/// When the turn passed its steps.
#[derive(Clone, Copy)]
pub(super) struct Stamps {
    pub(super) claimed_at: Instant,
    pub(super) written_at: Instant,
    pub(super) times: AppendTimes,
}

/// Tickets that are answered before their publishers are woken; of a turn's first ones fewer, since to wake a thread takes
/// longer than to answer the rest.
const ANSWERED_TOGETHER: usize = 32;
const ANSWERED_FIRST: usize = 4;

impl Committer {
    /// Shows the evidence's units to readers and answers their tickets; gives the buffer of units back.
    pub(super) fn expose(&mut self, mut evidence: Evidence, end: Offset, stamps: Stamps) -> Vec<Unit> {
        let partition = Arc::clone(&self.partition);
        let epoch = self.writer.as_ref().map_or(evidence.epoch, |writer| writer.epoch());
        let mut first = evidence.first;
        let mut bytes = 0usize;
        let origin_epoch = evidence.epoch;
        let append_time = evidence.units.first().map(|unit| unit.append_time).unwrap_or_default();
        let stored = evidence.units.drain(..).map(|unit| {
            bytes += unit.body.encoded_len();
            let stored = StoredUnit {
                first,
                records: unit.body.records(),
                append_time: unit.append_time,
                origin_epoch,
                ticket: unit.ticket,
                tag: *unit.body.tag(),
                rows: unit.body.into_rows(),
            };
            first = stored.end();
            stored
        });
        partition.ring.push(stored, &mut self.evicted);
        self.next = end;
        partition.tail.advance(end);
        // Where a recovery finds them, should anything below panic.
        std::mem::swap(&mut self.answering, &mut *partition.claimed.lock());
        self.answered = 0;
        let claims = &self.answering;
        if claims.iter().any(|claimed| claimed.queued.key.is_some() || claimed.queued.sequences.is_some()) {
            let mut keys = partition.keys.lock();
            for claimed in claims {
                let queued = &claimed.queued;
                if let Some((name, body)) = queued.key {
                    keys.commit(name, body, claimed.first, claimed.body().records(), append_time);
                }
                if let Some((sequences, number)) =
                    claimed.sequences().and_then(|own| own.numbers.last().map(|number| (own, *number)))
                {
                    keys.advance(sequences.producer, number, append_time);
                }
            }
            partition.metrics.key_entries.set(keys.len() as f64);
        }
        // Before the first answer: who is answered finds the partition as it is.
        if partition.condition().health == Health::Full {
            partition.set_condition(Condition::READY);
            tracing::info!(channel = %partition.channel, partition = %partition.id, offset = %end, "room again: publishes are taken");
        }
        partition.tail.wake();
        let class = self.class();
        let visible_at = Instant::now();
        // Who is answered now may publish again at once; who waits already is to be in the same turn.
        let (answered, waiting) = (claims.len(), partition.intake.queued());
        // The oldest ticket of the turn stands for it in the histograms: one reading a turn, none per record.
        if let Some(oldest) = claims.first().map(|claimed| claimed.queued.admitted) {
            let metrics = &partition.metrics;
            metrics.queue_wait_seconds.record(stamps.claimed_at.saturating_duration_since(oldest));
            metrics.ack_seconds.record(visible_at.saturating_duration_since(oldest));
            metrics.turn_records.record(end.since(evidence.first) as f64);
            metrics.turn_bytes.record(bytes as f64);
            metrics.committed.increment(answered as u64);
            metrics.in_flight.decrement(answered as f64);
            metrics.items_out.increment(answered as u64);
            metrics.bytes_out.increment(bytes as u64);
            metrics.tail_offset.set(end.0 as f64);
        }
        let total = partition.intake.process_total();
        let since_claimed = |at: Instant| at.saturating_duration_since(stamps.claimed_at);
        let written = since_claimed(stamps.written_at) + stamps.times.write;
        let synced = written + stamps.times.sync;
        let passed = Passed { claimed: stamps.claimed_at, written, synced, visible: since_claimed(visible_at) };
        let mut together = ANSWERED_FIRST;
        while self.answered < self.answering.len() {
            let mut released = Released::default();
            let end = self.answering.len().min(self.answered + together);
            for claimed in self.answering.get(self.answered..end).unwrap_or_default() {
                let settlement = Settlement::Committed {
                    first: claimed.first,
                    count: claimed.queued.body.records(),
                    skipped: claimed.skipped(),
                    epoch,
                    class,
                    duplicate: false,
                    passed: Some(passed),
                };
                claimed.queued.cell.settle(settlement, &mut self.wake);
                released.add(&claimed.queued, total);
            }
            self.answered = end;
            partition.intake.release(released.items, released.bytes, released.permits);
            self.wake_all();
            together = ANSWERED_TOGETHER;
        }
        self.answering.clear();
        self.gathering.expect(answered + waiting);
        // Nobody waits for what is freed here.
        self.evicted.clear();
        evidence.units
    }

    /// The claimed units are not in the log, for good: answers them and frees their keys.
    pub(super) fn not_stored(&mut self, error: PublishError) {
        let partition = Arc::clone(&self.partition);
        let claims = std::mem::take(&mut *partition.claimed.lock());
        let mut released = Released::default();
        let total = partition.intake.process_total();
        for claimed in &claims {
            self.answer(&claimed.queued, Settlement::NotStored(error.clone()));
            released.add(&claimed.queued, total);
        }
        self.gathering.expect(0);
        partition.intake.release(released.items, released.bytes, released.permits);
        tracing::debug!(channel = %partition.channel, partition = %partition.id, code = %error.code(), tickets = claims.len(), "not stored");
        self.wake_all();
    }

    /// The epoch that is written now.
    pub(super) fn epoch(&self) -> Epoch {
        self.writer.as_ref().map(|writer| writer.epoch()).unwrap_or_default()
    }
}
