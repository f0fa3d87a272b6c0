//! Revocation (E68, H10): the lanes stop and hand over → the shards settle what they hold of them → harvest → persist →
//! commit → the source's commits are flushed → the guard is dropped, and the source lets go. At the deadline what is
//! left fails and is named; the new owner reads from the last commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_types::PartitionId;

use super::Controller;
use super::partition::Phase;
use crate::codes;
use crate::contract::{LaneId, RevokeGuard, Source};
use crate::driver::Command;
use crate::shard::{ShardQueue, Urgency};

/// How long a revocation may take before it is cut short.
const REVOKE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Step {
    Lanes(BTreeSet<u64>),
    Shards(Vec<(u64, PartitionId, Arc<ShardQueue>)>),
    Commit,
}

/// A revocation in progress.
#[derive(Debug)]
pub(super) struct Revocation {
    partitions: Vec<PartitionId>,
    /// Dropped last: the source goes on then.
    guard: RevokeGuard,
    step: Step,
    deadline: Instant,
}

impl Revocation {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl<S: Source> Controller<'_, S> {
    pub(super) fn revoke(&mut self, partitions: Vec<PartitionId>, guard: RevokeGuard, now: Instant) {
        let deadline = now + REVOKE_MAX;
        let mut barriers = BTreeSet::new();
        let mut held = Vec::new();
        for partition in partitions {
            let Some(part) = self.parts.get_mut(&partition) else { continue };
            if !part.is_running() || part.table.is_some() {
                // A table's partition leaves its lane at once; what is not settled of it is read again.
                self.give_up(partition);
                continue;
            }
            part.phase = Phase::Revoking;
            let (driver, lane) = (part.driver, part.lane);
            let barrier = self.number();
            barriers.insert(barrier);
            self.stop_lane(driver, lane, deadline, barrier);
            held.push(partition);
        }
        if held.is_empty() {
            return;
        }
        self.revocations.push(Revocation { partitions: held, guard, step: Step::Lanes(barriers), deadline });
    }

    fn stop_lane(&mut self, driver: usize, lane: LaneId, deadline: Instant, barrier: u64) {
        if let Some(seat) = self.cx.drivers.get_mut(driver) {
            seat.lanes = seat.lanes.saturating_sub(1);
            seat.commands.post(Command::Stop { lanes: vec![lane], deadline, barrier });
        }
    }

    pub(super) fn revoke_arrived(&mut self, barrier: u64) {
        // Tables' partitions are given up without this.
        let queues: Vec<_> = self.cx.sinks.iter().flat_map(|sink| sink.queues.iter().cloned()).collect();
        let mut next = self.next_number;
        for revocation in &mut self.revocations {
            let Step::Lanes(waiting) = &mut revocation.step else { continue };
            if !waiting.remove(&barrier) || !waiting.is_empty() {
                continue;
            }
            let mut shards = Vec::new();
            for partition in &revocation.partitions {
                for queue in &queues {
                    next += 1;
                    queue.urge(Urgency::Quiesce(*partition, next));
                    shards.push((next, *partition, queue.clone()));
                }
            }
            revocation.step = Step::Shards(shards);
        }
        self.next_number = next;
    }

    pub(super) fn revoke_quiesced(&mut self, number: u64) {
        for revocation in &mut self.revocations {
            if let Step::Shards(waiting) = &mut revocation.step {
                waiting.retain(|(asked, ..)| *asked != number);
                if waiting.is_empty() {
                    revocation.step = Step::Commit;
                    self.commit.soon();
                }
            }
        }
    }

    pub(super) fn step_revocations(&mut self, now: Instant) {
        let mut going = std::mem::take(&mut self.revocations);
        for mut revocation in going.drain(..) {
            let is_late = now >= revocation.deadline;
            if let (true, Step::Shards(waiting)) = (is_late, &revocation.step) {
                for (number, partition, queue) in waiting {
                    queue.urge(Urgency::Abort(*partition, *number));
                }
            }
            let is_committed = matches!(revocation.step, Step::Commit)
                && revocation.partitions.iter().all(|partition| {
                    self.parts.get(partition).is_none_or(|part| {
                        part.watermarks.iter().zip(&part.persisted).all(|(mark, known)| Some(*mark) == *known)
                    })
                });
            if !is_committed && !is_late {
                self.revocations.push(revocation);
                continue;
            }
            const FLUSH_MAX: Duration = Duration::from_secs(2);
            if let Err(error) = self.source.flush_commits(now + FLUSH_MAX) {
                tracing::warn!(
                    code = %super::source_cause(&error).code, pipeline = %self.cx.pipeline,
                    "the commits of a revocation did not end: {error}"
                );
            }
            for partition in revocation.partitions.drain(..) {
                self.name_what_is_left(partition);
                self.give_up(partition);
            }
            drop(revocation.guard);
            self.is_news = true;
        }
    }

    fn name_what_is_left(&self, partition: PartitionId) {
        let Some(part) = self.parts.get(&partition) else { return };
        for sink in 0..part.watermarks.len() {
            let Some(range) = part.harvester.as_ref().and_then(|harvester| harvester.unsettled(sink)) else {
                continue;
            };
            tracing::error!(
                code = %codes::DRAIN_DEADLINE, pipeline = %self.cx.pipeline, partition = partition.0,
                from = %range.start, to = %range.end, "given up unsettled at a revocation; the new owner reads it"
            );
        }
    }
}
