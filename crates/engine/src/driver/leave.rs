//! Lanes that leave: a flush until a deadline is a state of the pass, not a loop, so control and other lanes go on
//! (E16, E19, E49, E52). What did not finish by the deadline is named and fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use landfall_types::{PartitionId, Place};

use super::{Driver, DriverReport, NewSlot, Next};
use crate::chain::Flushed;
use crate::codes;
use crate::contract::{LaneId, SourceError, SourceLane};
use crate::core::FailCause;
use crate::worker::panic_text;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    Lanes(Vec<LaneId>),
    Everyone,
}

/// A barrier that is not reached yet.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    who: Who,
    deadline: Option<Instant>,
    barrier: Option<u64>,
    has_tried: bool,
}

impl Leaving {
    pub(super) fn lanes(lanes: Vec<LaneId>, deadline: Instant, barrier: u64) -> Self {
        Leaving { who: Who::Lanes(lanes), deadline: Some(deadline), barrier: Some(barrier), has_tried: false }
    }

    pub(super) fn everyone(deadline: Instant, barrier: u64) -> Self {
        Leaving { who: Who::Everyone, deadline: Some(deadline), barrier: Some(barrier), has_tried: false }
    }

    /// The thread ends in this pass, whatever is held.
    pub(super) fn at_once() -> Self {
        Leaving { who: Who::Everyone, deadline: None, barrier: None, has_tried: true }
    }

    pub(super) fn deadline(&self, now: Instant) -> Instant {
        self.deadline.unwrap_or(now)
    }
}

impl<L: SourceLane> Driver<L> {
    /// Works on what leaves; the thread ends once everyone has left.
    pub(super) fn leave(&mut self, now: Instant) -> Option<Next> {
        if self.leaving.is_empty() {
            return None;
        }
        let flushed = self.flush();
        let mut ends = false;
        for mut leaving in std::mem::take(&mut self.leaving) {
            let is_over = leaving.has_tried && now >= leaving.deadline(now);
            leaving.has_tried = true;
            let is_parked = self.lanes.iter().any(|lane| leaving.is(lane.id) && lane.has_parked());
            if !is_over && (is_parked || flushed == Flushed::Blocked) {
                self.leaving.push(leaving);
                continue;
            }
            if is_parked || flushed == Flushed::Blocked {
                self.abandon(&leaving);
            }
            let gone: Vec<LaneId> = self.lanes.iter().map(|lane| lane.id).filter(|id| leaving.is(*id)).collect();
            self.remove_lanes(&gone);
            if leaving.who == Who::Everyone {
                // Closed before the arrival: nothing is handed over past the barrier (E19).
                self.chains = None;
                ends = true;
            }
            if let Some(barrier) = leaving.barrier {
                (self.cx.report)(DriverReport::Arrived { driver: self.cx.index, barrier });
            }
        }
        ends.then_some(Next::End)
    }

    fn abandon(&mut self, leaving: &Leaving) {
        let cause = FailCause::new(codes::DRAIN_DEADLINE, "the rows were not handed over before the deadline");
        for lane in self.lanes.iter_mut().filter(|lane| leaving.is(lane.id)) {
            for slot in &lane.slots {
                if let Some(parked) = &slot.parked {
                    let covered = parked.batch.covered();
                    tracing::error!(
                        code = %cause.code, partition = covered.partition.0, from = %covered.range.start,
                        to = %covered.range.end, "a batch was given up at a deadline; it stays uncommitted"
                    );
                }
            }
            lane.fail_parked(&cause);
            if let Some(chains) = &mut self.chains {
                lane.slots.iter().for_each(|slot| chains.abandon(slot.chain_slot));
                lane.partitions().for_each(|partition| chains.forget(partition));
            }
        }
    }

    /// The lanes leave without a flush (E18).
    pub(super) fn remove_lanes(&mut self, gone: &[LaneId]) {
        let cause = FailCause::new(codes::EPOCH_ENDED, "the lane was dropped");
        let mut kept = Vec::with_capacity(self.lanes.len());
        for mut lane in self.lanes.drain(..) {
            if !gone.contains(&lane.id) {
                kept.push(lane);
                continue;
            }
            lane.fail_parked(&cause);
            for slot in &lane.slots {
                if let Some(chains) = &mut self.chains {
                    chains.abandon(slot.chain_slot);
                }
                self.free_slots.push(slot.chain_slot);
            }
        }
        self.lanes = kept;
        self.lane_set_changed();
    }

    /// A partition joins an open lane.
    pub(super) fn join(&mut self, id: LaneId, new: NewSlot, place: Place) {
        let (partition, epoch) = (new.issuer.partition(), new.issuer.epoch());
        // A lane that is gone, or a chain that has ended: the controller hears of that by itself.
        let Some(at) = self.lanes.iter().position(|lane| lane.id == id && !lane.is_leaving) else { return };
        let lane = &mut self.lanes[at];
        let joined = catch_unwind(AssertUnwindSafe(|| lane.lane.join(partition, place, epoch)));
        match joined {
            Ok(Ok(())) => {
                let slot = self.free_slots.pop().unwrap_or_else(|| {
                    self.slots += 1;
                    self.slots - 1
                });
                self.lanes[at].join(new, slot);
                self.lane_set_changed();
            }
            Ok(Err(SourceError::Fatal { code, text })) => {
                (self.cx.report)(DriverReport::SourceFailed(FailCause::new(code, text)));
            }
            Ok(Err(SourceError::Lane { code, text } | SourceError::Later { code, text })) => {
                self.lane_failed(at, FailCause::new(code, text));
            }
            Err(panic) => {
                self.cx.meters.panics.increment(1);
                let cause = FailCause::new(codes::PANIC, format!("the lane panicked: {}", panic_text(panic)));
                self.lane_failed(at, cause);
            }
        }
    }

    /// A partition leaves its lane at once.
    pub(super) fn leave_lane(&mut self, id: LaneId, partition: PartitionId) {
        let cause = FailCause::new(codes::EPOCH_ENDED, "the partition has left its lane");
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == id) else { return };
        let Some(slot) = lane.leave(partition, &cause) else { return };
        let left = catch_unwind(AssertUnwindSafe(|| lane.lane.leave(partition)));
        if let Some(chains) = &mut self.chains {
            chains.abandon(slot);
        }
        self.free_slots.push(slot);
        if let Err(panic) = left {
            self.cx.meters.panics.increment(1);
            let cause = FailCause::new(codes::PANIC, format!("the lane panicked: {}", panic_text(panic)));
            if let Some(at) = self.lanes.iter().position(|lane| lane.id == id) {
                self.lane_failed(at, cause);
            }
        }
        self.lane_set_changed();
    }

    /// Counts from the old rotation would park too early (E31).
    pub(super) fn lane_set_changed(&mut self) {
        self.empty_round = 0;
        self.next_lane = 0;
        self.cx.meters.lanes.set(self.lanes.len() as f64);
    }
}

impl Leaving {
    fn is(&self, lane: LaneId) -> bool {
        match &self.who {
            Who::Everyone => true,
            Who::Lanes(lanes) => lanes.contains(&lane),
        }
    }
}
