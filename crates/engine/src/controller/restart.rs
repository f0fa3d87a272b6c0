//! Supervision in process (E71): a failed slot, lane or panic ends its partition's epoch only. Close the ring → the
//! lane leaves → the shards are cleared of its rows (settled, or given up at a bound) → the sinks say what they hold →
//! back-off → a new epoch from the resume place. Other partitions run on.

use std::time::{Duration, Instant};

use landfall_types::{PartitionId, Place};

use super::partition::{Part, Phase};
use super::{Controller, Note};
use crate::codes;
use crate::contract::{LaneId, Positions, Source, TableId};
use crate::core::FailCause;
use crate::shard::Urgency;

/// How long shards may take to settle what they hold of a partition before it is given up.
const QUIESCE_MAX: Duration = Duration::from_secs(5);
/// How long the sinks may take to say what they hold.
const POSITIONS_MAX: Duration = Duration::from_secs(30);

impl<S: Source> Controller<'_, S> {
    pub(super) fn lane_failed(&mut self, lane: LaneId, cause: &FailCause) {
        let hit: Vec<PartitionId> = self
            .parts
            .values()
            .filter(|part| part.lane == lane && part.is_running())
            .map(|part| part.partition)
            .collect();
        hit.into_iter().for_each(|partition| self.restart(partition, cause.clone()));
        if self.lane == Some(lane) {
            // The lane of all tables is opened anew by the first partition that is due; the others join it (E12).
            self.lane = None;
            let barrier = self.number();
            self.drop_lane(0, lane, barrier);
        }
    }

    /// Ends a partition's epoch and begins to clear it.
    pub(super) fn restart(&mut self, partition: PartitionId, cause: FailCause) {
        if self.drain.is_some() {
            // What failed during a drain is left uncommitted and named; there is no time to read it again.
            return;
        }
        let barrier = self.number();
        let Some(part) = self.parts.get_mut(&partition).filter(|part| part.is_running()) else { return };
        let Some(harvester) = part.harvester.take() else { return };
        harvester.close();
        part.left = (0..part.watermarks.len())
            .filter_map(|sink| harvester.unsettled(sink))
            .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end));
        if cause.code == codes::PANIC
            && let Some(left) = part.left.clone()
        {
            part.panicked = match part.panicked.take() {
                Some((range, times)) if left.start < range.end => Some((range, times + 1)),
                _ => Some((left, 1)),
            };
        }
        tracing::warn!(
            code = %cause.code, pipeline = %self.cx.pipeline, partition = partition.0, epoch = part.epoch.0,
            from = %part.watermark(), attempt = part.attempts + 1, "a partition is read again: {}", cause.text
        );
        self.cx.meters.restarts.increment(1);
        part.cause = Some(cause);
        part.phase = Phase::Leaving { barrier };
        let table = part.table;
        self.account(table, &harvester);
        if let Some(part) = self.parts.remove(&partition) {
            self.leave(&part, barrier);
            self.parts.insert(partition, part);
        }
        self.dirty = true;
    }

    pub(super) fn arrived(&mut self, driver: usize, barrier: u64, now: Instant) {
        self.drain_arrived(driver, barrier);
        self.revoke_arrived(barrier);
        let hit = self.parts.values().find_map(|part| match part.phase {
            Phase::Leaving { barrier: asked } if asked == barrier => Some(part.partition),
            _ => None,
        });
        let Some(partition) = hit else { return };
        let table = self.parts.get(&partition).and_then(|part| part.table);
        let queues: Vec<_> = self.sinks_of(table).iter().flat_map(|sink| sink.queues.iter().cloned()).collect();
        let waiting: Vec<_> = queues.into_iter().map(|queue| (self.number(), queue)).collect();
        for (number, queue) in &waiting {
            queue.urge(Urgency::Quiesce(partition, *number));
        }
        if let Some(part) = self.parts.get_mut(&partition) {
            part.phase = Phase::Quiescing { waiting, deadline: now + QUIESCE_MAX, is_aborted: false };
        }
    }

    pub(super) fn quiesced(&mut self, partition: PartitionId, number: u64) {
        self.revoke_quiesced(number);
        let Some(part) = self.parts.get_mut(&partition) else { return };
        let Phase::Quiescing { waiting, .. } = &mut part.phase else { return };
        waiting.retain(|(asked, _)| *asked != number);
        if waiting.is_empty() {
            self.read_positions(partition);
        }
    }

    fn read_positions(&mut self, partition: PartitionId) {
        let number = self.number();
        let Some(part) = self.parts.get_mut(&partition) else { return };
        part.phase = Phase::Reading { number };
        let table = part.table;
        let sinks: Vec<_> =
            self.sinks_of(table).iter().map(|sink| (sink.sink.clone(), sink.committed.is_some())).collect();
        let (notes, plan_cx) = (self.cx.notes.clone(), self.cx.plan_cx.clone());
        self.cx.runtime.spawn(async move {
            let mut held = Vec::with_capacity(sinks.len());
            let mut result = Ok(());
            for (sink, holds_positions) in sinks {
                if !holds_positions {
                    held.push(None);
                    continue;
                }
                match tokio::time::timeout(POSITIONS_MAX, sink.committed_positions(&plan_cx)).await {
                    Ok(Ok(positions)) => held.push(Some(positions)),
                    Ok(Err(error)) => {
                        result = Err(FailCause::new(error.code(), error.to_string()));
                        break;
                    }
                    Err(_) => {
                        let text = format!("the sink did not say what it holds within {POSITIONS_MAX:?}");
                        result = Err(FailCause::new(codes::ATTEMPT_TIMEOUT, text));
                        break;
                    }
                }
            }
            notes.post(Note::Positions { partition, number, result: result.map(|()| held) });
        });
    }

    pub(super) fn positions_read(
        &mut self,
        partition: PartitionId,
        number: u64,
        result: Result<Vec<Option<Positions>>, FailCause>,
        now: Instant,
    ) {
        let Some(part) = self.parts.get_mut(&partition) else { return };
        if !matches!(part.phase, Phase::Reading { number: asked } if asked == number) {
            return;
        }
        match result {
            Ok(held) => {
                for (sink, held) in held.iter().enumerate() {
                    let committed = held.as_ref().and_then(|positions| positions.get(&partition)).copied();
                    let settled = part.watermarks[sink + 1];
                    part.skip[sink + 1] = committed.map_or(settled, |committed| committed.max(settled));
                    part.watermarks[sink + 1] = part.skip[sink + 1];
                }
                part.skip[0] = part.watermarks[0];
                let cause = part.cause.clone();
                self.wait_to_restart(partition, cause.unwrap_or_else(ended), true, now);
            }
            Err(cause) => self.wait_to_restart(partition, cause, false, now),
        }
    }

    /// Waits by the back-off; a row error under `on_error: fail`, and a gap that someone has to decide about, wait the
    /// longest. `is_known`: what the sinks hold is known; else they are asked again first.
    pub(super) fn wait_to_restart(&mut self, partition: PartitionId, cause: FailCause, is_known: bool, now: Instant) {
        let backoff = self.cx.options.restart;
        let Some(part) = self.parts.get_mut(&partition) else { return };
        part.attempts = part.attempts.saturating_add(1);
        part.is_blocked = cause.code == codes::ROW_FAILS_PIPELINE || cause.code == codes::GAP;
        let delay = if part.is_blocked { backoff.max } else { backoff.delay(part.attempts, crate::random::fraction()) };
        part.cause = Some(cause);
        part.phase = Phase::Waiting { until: now + delay, is_known };
    }

    pub(super) fn supervise(&mut self, now: Instant) {
        if self.drain.is_some() {
            return;
        }
        let due: Vec<PartitionId> = self
            .parts
            .values()
            .filter(|part| part.timer().is_some_and(|at| now >= at))
            .map(|part| part.partition)
            .collect();
        for partition in due {
            let Some(part) = self.parts.get_mut(&partition) else { continue };
            match &mut part.phase {
                Phase::Quiescing { waiting, is_aborted, .. } => {
                    *is_aborted = true;
                    for (number, queue) in waiting {
                        queue.urge(Urgency::Abort(partition, *number));
                    }
                }
                Phase::Waiting { is_known: false, .. } => self.read_positions(partition),
                Phase::Waiting { .. } => {
                    let resume = part.skip.iter().copied().min().unwrap_or(Place::START);
                    self.open(partition, resume, now);
                }
                _ => {}
            }
        }
    }

    /// Rows that were issued and not settled leave the balance: they are read again (E82, E113).
    pub(super) fn return_rows(&mut self, part: &Part) {
        if let Some(harvester) = &part.harvester {
            self.account(part.table, harvester);
        }
    }

    fn account(&mut self, table: Option<TableId>, harvester: &crate::core::Harvester) {
        let issued = harvester.rows_issued();
        let harvested: Vec<u64> = (0..=self.cx.heads.len()).map(|sink| harvester.rows_harvested(sink)).collect();
        self.books.close(issued, &harvested);
        if let Some(table) = table.and_then(|table| self.tables.get_mut(&table)) {
            table.books.fit(self.cx.heads.len());
            table.books.close(issued, &harvested);
        }
        for (head, harvested) in self.cx.heads.iter().zip(harvested.iter().skip(1)) {
            head.meters.returned.increment(issued - harvested);
        }
        self.cx.meters.stale.increment(harvester.stale());
    }
}

fn ended() -> FailCause {
    FailCause::new(codes::EPOCH_ENDED, "the epoch has ended")
}
