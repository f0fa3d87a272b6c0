//! One lane with its partitions' slots: rings, positions, parked batches, back-off.

use std::time::{Duration, Instant};

use landfall_types::{PartitionId, Place};

use super::{NewLane, NewSlot};
use crate::chain::{BlockReason, ResumePoint};
use crate::contract::{LaneId, TableId};
use crate::core::{FailCause, Issuer};
use crate::options::Backoff;
use crate::poll::{PollSlot, SourceBatch};

/// A batch that could not go on.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) batch: SourceBatch,
    pub(super) at: ResumePoint,
    pub(super) reason: BlockReason,
    /// The order in which batches were parked on this driver.
    pub(super) number: u64,
}

/// One partition of a lane.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) chain_slot: usize,
    pub(super) table: Option<TableId>,
    pub(super) skip: Vec<Place>,
    pub(super) alone_until: Option<Place>,
    pub(super) parked: Option<Parked>,
    /// A batch of it has failed: nothing more is polled until the controller starts a new epoch.
    pub(super) has_failed: bool,
    pub(super) is_gated: bool,
}

impl Slot {
    fn new(new: NewSlot, chain_slot: usize) -> (Slot, PollSlot) {
        let slot = Slot {
            chain_slot,
            table: new.table,
            skip: new.skip,
            alone_until: new.alone_until,
            parked: None,
            has_failed: false,
            is_gated: false,
        };
        (slot, PollSlot { issuer: new.issuer, is_open: false })
    }

    /// Whether a batch may be polled: nothing parked, nothing failed, below its ceilings.
    pub(super) fn may_take(&mut self, issuer: &Issuer, bytes_max: u64) -> bool {
        if self.has_failed || self.parked.is_some() || issuer.is_closed() {
            return false;
        }
        self.is_gated = !issuer.has_room(bytes_max);
        !self.is_gated
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct LaneState<L> {
    pub(super) id: LaneId,
    pub(super) lane: L,
    /// Beside each other, a partition each: what the engine keeps, and what the lane is polled with.
    pub(super) slots: Vec<Slot>,
    pub(super) polls: Vec<PollSlot>,
    pub(super) is_leaving: bool,
    pub(super) is_finished: bool,
    failures: u32,
    back_off_until: Option<Instant>,
}

impl<L> LaneState<L> {
    pub(super) fn new(new: NewLane<L>, mut chain_slot: impl FnMut() -> usize) -> Self {
        let (slots, polls) = new.slots.into_iter().map(|slot| Slot::new(slot, chain_slot())).unzip();
        LaneState {
            id: new.id,
            lane: new.lane,
            slots,
            polls,
            is_leaving: false,
            is_finished: false,
            failures: 0,
            back_off_until: None,
        }
    }

    /// A partition joins.
    pub(super) fn join(&mut self, new: NewSlot, chain_slot: usize) {
        let (slot, poll) = Slot::new(new, chain_slot);
        self.slots.push(slot);
        self.polls.push(poll);
    }

    /// A partition leaves; what is parked of it fails.
    pub(super) fn leave(&mut self, partition: PartitionId, cause: &FailCause) -> Option<usize> {
        let at = self.polls.iter().position(|poll| poll.issuer.partition() == partition)?;
        self.polls.remove(at);
        let mut slot = self.slots.remove(at);
        if let Some(ack) = slot.parked.take().and_then(|parked| parked.batch.ack) {
            ack.fail(cause);
        }
        Some(slot.chain_slot)
    }

    /// Whether the lane may be asked at all now.
    pub(super) fn may_be_polled(&self, now: Instant) -> bool {
        !self.is_leaving && !self.is_finished && self.back_off_until.is_none_or(|until| now >= until)
    }

    pub(super) fn backing_off_until(&self) -> Option<Instant> {
        self.back_off_until.filter(|_| !self.is_leaving && !self.is_finished)
    }

    /// A passing error: this lane alone waits (E37).
    pub(super) fn back_off(&mut self, now: Instant) -> Duration {
        const BACKOFF: Backoff =
            Backoff { initial: Duration::from_millis(50), max: Duration::from_secs(5), multiplier: 2.0, jitter: 0.2 };
        self.failures = self.failures.saturating_add(1);
        let delay = BACKOFF.delay(self.failures, crate::random::fraction());
        self.back_off_until = Some(now + delay);
        delay
    }

    pub(super) fn is_well(&mut self) {
        self.failures = 0;
        self.back_off_until = None;
    }

    pub(super) fn partitions(&self) -> impl Iterator<Item = PartitionId> + '_ {
        self.polls.iter().map(|poll| poll.issuer.partition())
    }

    /// Whether records are polled alone. A lane of several tables is not: one bad row would make all of them crawl.
    pub(super) fn is_alone(&self) -> bool {
        if self.slots.iter().any(|slot| slot.table.is_some()) {
            return false;
        }
        let mut both = self.slots.iter().zip(&self.polls);
        both.any(|(slot, poll)| slot.alone_until.is_some_and(|until| poll.issuer.end() < until))
    }

    pub(super) fn has_parked(&self) -> bool {
        self.slots.iter().any(|slot| slot.parked.is_some())
    }

    /// Parked batches fail; their partitions are read again.
    pub(super) fn fail_parked(&mut self, cause: &FailCause) {
        for slot in &mut self.slots {
            if let Some(ack) = slot.parked.take().and_then(|parked| parked.batch.ack) {
                ack.fail(cause);
            }
            slot.has_failed = true;
        }
    }
}
