//! One pass of a driver: control → what leaves → parked batches → one poll and its push → flushes (E9).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::lane::{LaneState, Parked};
use super::leave::Leaving;
use super::{Command, Driver, DriverReport, Next};
use crate::chain::{BlockReason, Flushed, PushOutcome, ResumePoint};
use crate::codes;
use crate::contract::{EngineError, PollLimit, Polled, SourceError, SourceLane};
use crate::core::FailCause;
use crate::poll::{PollCx, SourceBatch};
use crate::worker::panic_text;

impl<L: SourceLane> Driver<L> {
    pub(super) fn pass(&mut self, now: Instant) -> Next {
        self.take_commands();
        let mut has_worked = self.retry_parked();
        if let Some(end) = self.leave(now) {
            return end;
        }
        has_worked |= self.poll_one(now);
        self.flush_if_due(now, has_worked);
        if has_worked { Next::Go } else { Next::Sleep }
    }

    fn take_commands(&mut self) {
        while let Some(command) = self.cx.commands.take() {
            match command {
                Command::Add(new) => {
                    if self.chains.is_none() {
                        // After a fatal the lane is taken and dropped; its ring ends with the pipeline (E51).
                        continue;
                    }
                    let (free, slots) = (&mut self.free_slots, &mut self.slots);
                    let lane = LaneState::new(*new, || {
                        free.pop().unwrap_or_else(|| {
                            *slots += 1;
                            *slots - 1
                        })
                    });
                    self.lanes.push(lane);
                    self.lane_set_changed();
                }
                Command::Stop { lanes, deadline, barrier } => {
                    self.lanes.iter_mut().filter(|lane| lanes.contains(&lane.id)).for_each(|lane| {
                        lane.is_leaving = true;
                    });
                    self.leaving.push(Leaving::lanes(lanes, deadline, barrier));
                }
                Command::Join { lane, slot, at } => {
                    if self.chains.is_some() {
                        self.join(lane, *slot, at);
                    }
                }
                Command::Leave { lane, partition, barrier } => {
                    self.leave_lane(lane, partition);
                    (self.cx.report)(DriverReport::Arrived { driver: self.cx.index, barrier });
                }
                Command::Table { table, shape, chain } => {
                    if let Some(chains) = &mut self.chains {
                        chains.add(table, shape, *chain);
                    }
                    self.is_flush_refused = false;
                }
                Command::Drop { lanes, barrier } => {
                    self.remove_lanes(&lanes);
                    (self.cx.report)(DriverReport::Arrived { driver: self.cx.index, barrier });
                }
                Command::Drain { deadline, barrier } => {
                    self.lanes.iter_mut().for_each(|lane| lane.is_leaving = true);
                    self.leaving.push(Leaving::everyone(deadline, barrier));
                }
            }
        }
    }

    /// Batches go on in the order in which they were parked (E10, I10).
    fn retry_parked(&mut self) -> bool {
        let Some(chains) = &mut self.chains else { return false };
        chains.retry_parked();
        let mut order: Vec<(u64, usize, usize)> = Vec::new();
        let mut was_announced = false;
        for (at, lane) in self.lanes.iter().enumerate() {
            for (slot, state) in lane.slots.iter().enumerate() {
                if let Some(parked) = &state.parked
                    && chains.may_go_on(&parked.reason, state.table, parked.batch.note.map(|note| note.shape))
                {
                    was_announced |= matches!(parked.reason, BlockReason::NotReady(_) | BlockReason::Shape(..));
                    order.push((parked.number, at, slot));
                }
            }
        }
        order.sort_unstable();
        let mut has_moved = false;
        for (number, at, slot) in order {
            let Some(parked) = self.lanes[at].slots[slot].parked.take() else { continue };
            let from = parked.at;
            self.push(at, slot, parked.batch, from, Some(number));
            // A batch that is refused again at the same point is no work: the thread may sleep.
            has_moved |= self
                .lanes
                .get(at)
                .is_none_or(|lane| lane.slots[slot].parked.as_ref().is_none_or(|parked| parked.at > from));
        }
        if has_moved && self.woke_by_timer && !was_announced {
            self.cx.meters.missed_wakes.increment(1);
        }
        self.woke_by_timer = false;
        has_moved
    }

    /// Polls the next lane that may be asked; false once a whole round found nothing.
    fn poll_one(&mut self, now: Instant) -> bool {
        if self.chains.is_none() {
            return false;
        }
        let count = self.lanes.len();
        while self.empty_round < count {
            let at = self.next_lane % count;
            self.next_lane = (at + 1) % count;
            if !self.lanes[at].may_be_polled(now) {
                self.empty_round += 1;
                continue;
            }
            if !self.open_slots(at) {
                self.empty_round += 1;
                continue;
            }
            if self.poll_lane(at, now) {
                self.empty_round = 0;
            } else {
                self.empty_round += 1;
            }
            return true;
        }
        false
    }

    /// Looks which partitions of a lane take a batch; false if none does.
    fn open_slots(&mut self, at: usize) -> bool {
        let bytes_max = self.cx.max_pending_bytes;
        let LaneState { slots, polls, .. } = &mut self.lanes[at];
        let mut is_any_open = false;
        for (slot, poll) in slots.iter_mut().zip(polls) {
            let was_gated = slot.is_gated;
            poll.is_open = slot.may_take(&poll.issuer, bytes_max);
            is_any_open |= poll.is_open;
            if slot.is_gated && !was_gated {
                (self.cx.report)(DriverReport::Gated(poll.issuer.partition()));
            }
        }
        is_any_open
    }

    /// True if there was a batch.
    fn poll_lane(&mut self, at: usize, now: Instant) -> bool {
        let lane = &mut self.lanes[at];
        let mut limit = self.cx.limit;
        if lane.is_alone() {
            limit = PollLimit { rows: 1, ..limit };
        }
        let started = Instant::now();
        let (polled, broken) = {
            let LaneState { lane: source_lane, polls, .. } = &mut *lane;
            let mut cx = PollCx::new(polls, &self.lane_waker, now);
            let polled = catch_unwind(AssertUnwindSafe(|| source_lane.poll(&mut cx, limit)));
            (polled, cx.broken())
        };
        self.cx.meters.poll_seconds.record(started.elapsed().as_secs_f64());
        if let Some(error) = broken {
            self.fatal(error);
            return false;
        }
        match polled {
            Ok(Ok(Polled::Batch(batch))) => {
                lane.is_well();
                self.cx.meters.rows.increment(u64::from(batch.covered.rows));
                self.cx.meters.bytes.increment(batch.bytes as u64);
                self.unflushed_since.get_or_insert(now);
                // A shard that refused before says nothing of those that these rows go to.
                self.is_flush_refused = false;
                let slot = lane.polls.iter().position(|poll| poll.issuer.partition() == batch.covered.partition);
                let Some(slot) = slot else {
                    let text = format!("a batch of partition {}, which is not the lane's", batch.covered.partition);
                    self.fatal(EngineError { code: codes::LANE_CONTRACT, text });
                    return false;
                };
                self.push(at, slot, batch, ResumePoint::default(), None);
                true
            }
            Ok(Ok(Polled::Empty)) => {
                lane.is_well();
                false
            }
            Ok(Ok(Polled::Finished)) => {
                lane.is_finished = true;
                false
            }
            Ok(Err(error)) => {
                self.cx.meters.errors.increment(1);
                self.lane_error(at, &error, now);
                false
            }
            Err(panic) => {
                self.cx.meters.panics.increment(1);
                let cause = FailCause::new(codes::PANIC, format!("the lane panicked: {}", panic_text(panic)));
                self.lane_failed(at, cause);
                false
            }
        }
    }

    fn lane_error(&mut self, at: usize, error: &SourceError, now: Instant) {
        let lane = &mut self.lanes[at];
        match error {
            SourceError::Later { code, text } => {
                let delay = lane.back_off(now);
                let next_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(%code, lane = lane.id.0, next_ms, "a lane failed and is asked again: {text}");
            }
            SourceError::Lane { code, text } => self.lane_failed(at, FailCause::new(*code, text.as_str())),
            SourceError::Fatal { code, text } => {
                lane.is_finished = true;
                (self.cx.report)(DriverReport::SourceFailed(FailCause::new(*code, text.as_str())));
            }
        }
    }

    pub(super) fn lane_failed(&mut self, at: usize, cause: FailCause) {
        let lane = &mut self.lanes[at];
        lane.is_finished = true;
        (self.cx.report)(DriverReport::LaneFailed { lane: lane.id, cause });
    }

    /// Pushes a batch from `from` on, and keeps it if it cannot go on.
    fn push(&mut self, at: usize, slot: usize, batch: SourceBatch, from: ResumePoint, parked: Option<u64>) {
        let Some(chains) = &mut self.chains else { return };
        let state = &mut self.lanes[at].slots[slot];
        let chain_slot = state.chain_slot;
        let (table, shape) = (state.table, batch.note.map(|note| note.shape));
        if let (Some(table), Some(shape), None) = (table, shape, parked)
            && !chains.knows(table, shape)
        {
            let (schema, key) = (batch.rows.schema(), batch.key.clone());
            (self.cx.report)(DriverReport::ShapeWanted { table, shape, schema, key });
        }
        let chain = match chains.of(table, shape) {
            Ok(chain) => chain,
            Err(reason) => {
                self.parked_count += u64::from(parked.is_none());
                let number = parked.unwrap_or(self.parked_count);
                state.parked = Some(Parked { batch, at: from, reason, number });
                return;
            }
        };
        match chain.push(chain_slot, &batch, from, &state.skip) {
            PushOutcome::Done => {
                if let Some(ack) = batch.ack {
                    ack.deliver();
                }
            }
            PushOutcome::Blocked { resume_at, reason } => {
                if resume_at < from {
                    let text = format!("a resume point went back from {from:?} to {resume_at:?}");
                    self.fatal(EngineError { code: codes::INVARIANT, text });
                    return;
                }
                if parked.is_none() {
                    match &reason {
                        BlockReason::Capacity(..) => self.cx.meters.blocks_capacity.increment(1),
                        BlockReason::DeadLetters => self.cx.meters.blocks_dead_letters.increment(1),
                        BlockReason::NotReady(_) | BlockReason::Shape(..) => {}
                    }
                    self.parked_count += 1;
                }
                let number = parked.unwrap_or(self.parked_count);
                state.parked = Some(Parked { batch, at: resume_at, reason, number });
            }
            PushOutcome::RowFails(cause) => {
                chain.abandon(chain_slot);
                state.has_failed = true;
                if let Some(ack) = batch.ack {
                    ack.fail(&cause);
                }
            }
            PushOutcome::Panicked(cause) => {
                tracing::error!(code = %cause.code, "{}", cause.text);
                chain.abandon(chain_slot);
                let is_alone = state.alone_until.is_some_and(|until| batch.covered.range.start < until);
                if is_alone && batch.covered.rows == 1 {
                    if let Some(batch) = chain.set_aside(batch, &cause) {
                        state.has_failed = true;
                        if let Some(ack) = batch.ack {
                            ack.fail(&cause);
                        }
                    }
                    return;
                }
                state.has_failed = true;
                if let Some(ack) = batch.ack {
                    ack.fail(&cause);
                }
            }
            // A table's chain is its own: what is wrong with it stops no other (I13). A broken invariant stops all.
            PushOutcome::Fatal(error) if table.is_some() && error.code != codes::INVARIANT => {
                tracing::error!(code = %error.code, "the chain of a table has failed: {}", error.text);
                chain.abandon(chain_slot);
                state.has_failed = true;
                if let Some(ack) = batch.ack {
                    ack.fail(&FailCause::new(error.code, error.text));
                }
            }
            PushOutcome::Fatal(error) => {
                if let Some(ack) = batch.ack {
                    ack.fail(&FailCause::new(error.code, error.text.as_str()));
                }
                self.fatal(error);
            }
        }
    }

    /// A lull flushes once (E53); a commit tick flushes when it comes (E17). A lull is a pass that found nothing to do, some
    /// time after the first data that is not flushed: counted from the last, changes that come steadily would put it off.
    fn flush_if_due(&mut self, now: Instant, has_worked: bool) {
        let waited = |since: Instant| now.saturating_duration_since(since);
        let is_lull = !has_worked
            && self
                .unflushed_since
                .is_some_and(|since| waited(since) >= self.cx.idle_flush.max(Duration::from_millis(1)));
        if self.is_flush_refused || (!is_lull && !self.wants_flush) {
            return;
        }
        if self.flush() == Flushed::Done {
            self.wants_flush = false;
            if is_lull {
                self.unflushed_since = None;
                if let Some(chains) = &mut self.chains {
                    chains.lull();
                }
            }
        } else {
            self.is_flush_refused = true;
        }
    }
}
