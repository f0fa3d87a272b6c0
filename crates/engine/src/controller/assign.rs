//! What the source says: assignments, gaps, commits; and the opening of lanes (E64, E65, E67).

use std::time::Instant;

use landfall_types::{Epoch, PartitionId, Place};

use super::partition::{Part, Phase};
use super::{Controller, lane_id, source_cause};
use crate::codes;
use crate::contract::{GapReason, LaneId, Source, SourceError, SourceEvent};
use crate::core::{FailCause, ring};
use crate::driver::{Command, NewLane, NewSlot};
use crate::options::OnTrimmed;
use crate::positions::{StartAt, skip_unknown, start_at};

impl<S: Source> Controller<'_, S> {
    pub(super) fn take_events(&mut self, now: Instant) {
        const EVENTS_PER_PASS: usize = 64;
        for _ in 0..EVENTS_PER_PASS {
            match self.source.poll_event() {
                Ok(None) => return,
                Ok(Some(event)) => self.source_said(event, now),
                Err(SourceError::Later { code, text }) => {
                    tracing::warn!(%code, pipeline = %self.cx.pipeline, "the source failed and is asked again: {text}");
                    return;
                }
                Err(error) => {
                    self.fail(source_cause(&error), false);
                    return;
                }
            }
        }
        // More may wait: another pass comes at once.
        self.waker.wake(crate::core::Wake::DATA);
    }

    fn source_said(&mut self, event: SourceEvent, now: Instant) {
        match event {
            SourceEvent::Assigned(partitions) => {
                let gone: Vec<PartitionId> =
                    self.parts.keys().copied().filter(|known| !partitions.contains(known)).collect();
                gone.into_iter().for_each(|partition| self.give_up(partition));
                for partition in partitions {
                    self.begin(partition, false, now);
                }
            }
            SourceEvent::Tables(specs) => self.announce(specs, now),
            SourceEvent::Added(partitions) => {
                partitions.into_iter().for_each(|partition| self.begin(partition, true, now));
            }
            SourceEvent::Revoked(partitions, guard) => self.revoke(partitions, guard, now),
            SourceEvent::Retired(partitions) => {
                partitions.into_iter().for_each(|partition| self.give_up(partition));
            }
            SourceEvent::Gap(partition, range, reason) => self.gap(partition, range, &reason),
            SourceEvent::Committed(_) => {}
            SourceEvent::CommitFailed(error) => {
                self.cx.meters.commit_failures.increment(1);
                tracing::warn!(
                    code = %source_cause(&error).code, pipeline = %self.cx.pipeline,
                    "the source's commit failed and is repeated: {error}"
                );
                self.commit.repeat_source_commit();
            }
            SourceEvent::CommitWanted(_) => self.hurry(now),
            SourceEvent::Drained => self.is_drained = true,
        }
    }

    fn gap(&mut self, partition: PartitionId, range: std::ops::Range<Place>, reason: &GapReason) {
        let rows = range.end.at.saturating_sub(range.start.at);
        self.cx.meters.gap_records.increment(rows);
        let what = match reason {
            GapReason::Trimmed => "trimmed",
            GapReason::Damaged => "damaged",
        };
        let text = format!("partition {partition} no longer has {}..{}: {what}", range.start, range.end);
        tracing::warn!(code = %codes::GAP, pipeline = %self.cx.pipeline, "{text}");
        if *reason == GapReason::Trimmed && self.cx.options.on_trimmed == OnTrimmed::Stop {
            let cause = FailCause::new(codes::GAP, format!("{text}; `on_trimmed: continue` goes on behind them"));
            self.restart(partition, cause);
        }
    }

    /// Starts a partition that was assigned, or assigned again.
    pub(super) fn begin(&mut self, partition: PartitionId, is_added: bool, now: Instant) {
        if self.parts.contains_key(&partition) {
            return;
        }
        let table = self.source.table_of(partition);
        if let Some(id) = table
            && self.waits_for_table(partition, id, is_added)
        {
            return;
        }
        let known = match self.left_marks.remove(&partition) {
            // It was here before in this run: what was stored when the run began is older than what is known.
            Some(skip) => {
                let resume = skip.iter().copied().min().unwrap_or(Place::START);
                Ok(Some(StartAt { resume, skip }))
            }
            None => start_at(&self.cx.stored, partition, &self.sink_marks(table)),
        };
        let (resume, skip, persisted) = match known {
            Err(cause) => {
                // Positions contradict each other: nobody guesses, the pipeline stops until someone decides.
                self.fail(cause, false);
                return;
            }
            Ok(Some(start)) => {
                let stored = self.cx.stored.marks.get(&partition);
                let name_of = |sink: usize| match sink.checked_sub(1) {
                    Some(sink) => self.cx.heads[sink].name.as_ref(),
                    None => "",
                };
                let persisted = (0..start.skip.len())
                    .map(|sink| stored.and_then(|marks| marks.get(name_of(sink))).map(|mark| mark.end))
                    .collect();
                (start.resume, start.skip, persisted)
            }
            Ok(None) => {
                let skip = skip_unknown(partition, &self.sink_marks(table));
                let first = if is_added && !self.cx.stored.marks.is_empty() {
                    Ok(Place::START)
                } else {
                    self.source.start_of(partition)
                };
                match first {
                    Ok(first) => {
                        let persisted = vec![None; skip.len()];
                        (first, skip, persisted)
                    }
                    Err(error) => {
                        self.fail(source_cause(&error), false);
                        return;
                    }
                }
            }
        };
        let watermarks = skip.iter().map(|skip| (*skip).max(resume)).collect();
        let part = Part {
            partition,
            table,
            epoch: Epoch::ZERO,
            phase: Phase::Gone,
            driver: 0,
            lane: LaneId(0),
            harvester: None,
            watermarks,
            persisted,
            skip,
            attempts: 0,
            cause: None,
            is_blocked: false,
            panicked: None,
            left: None,
        };
        self.parts.insert(partition, part);
        self.open(partition, resume, now);
    }

    /// Opens a lane at `resume` in a new epoch, and gives it to the driver with the fewest lanes. A table's partition
    /// joins the one lane of its source where that is open (E12).
    pub(super) fn open(&mut self, partition: PartitionId, resume: Place, now: Instant) {
        let epoch = self.cx.epochs.entry(partition).or_insert(0);
        *epoch = epoch.saturating_add(1);
        let epoch = Epoch(*epoch);
        let table = self.parts.get(&partition).and_then(|part| part.table);
        let joins = self.lane.filter(|_| table.is_some());
        let (id, lane) = match joins {
            Some(id) => (id, None),
            None => {
                let id = lane_id(&mut self.next_lane);
                match self.source.open_lane(id, &[(partition, resume, epoch)]) {
                    Ok(lane) => (id, Some(lane)),
                    Err(SourceError::Fatal { code, text }) => {
                        self.fail(FailCause::new(code, text), false);
                        return;
                    }
                    Err(error) => {
                        let cause = source_cause(&error);
                        self.wait_to_restart(partition, cause, true, now);
                        return;
                    }
                }
            }
        };
        if table.is_some() {
            self.lane = Some(id);
        }
        let Some((driver, seat)) = self
            .cx
            .drivers
            .iter_mut()
            .enumerate()
            .filter(|(_, seat)| !seat.has_ended)
            .min_by_key(|(_, seat)| seat.lanes)
        else {
            return;
        };
        let Some(part) = self.parts.get_mut(&partition) else { return };
        let (issuer, harvester) = ring(
            partition,
            epoch,
            resume,
            self.cx.options.max_pending_batches,
            self.cx.heads.len(),
            self.waker.clone(),
            now,
        );
        part.epoch = epoch;
        part.phase = Phase::Running;
        part.driver = driver;
        part.lane = id;
        part.harvester = Some(harvester);
        let alone_until = part.panicked.as_ref().filter(|(_, times)| *times >= 2).map(|(range, _)| range.end);
        let slot = NewSlot { issuer, table, skip: part.skip.clone(), alone_until };
        match lane {
            Some(lane) => {
                seat.lanes += 1;
                seat.commands.post(Command::Add(Box::new(NewLane { id, lane, slots: vec![slot] })));
            }
            None => seat.commands.post(Command::Join { lane: id, slot: Box::new(slot), at: resume }),
        }
        self.dirty = true;
        self.is_news = true;
    }

    /// A partition leaves the pipeline: its ring closes, and whatever is in flight of it moves nothing.
    pub(super) fn give_up(&mut self, partition: PartitionId) {
        self.waits_no_more(partition);
        let Some(part) = self.parts.remove(&partition) else { return };
        if let Some(harvester) = &part.harvester {
            harvester.close();
        }
        self.return_rows(&part);
        self.left_marks.insert(partition, part.watermarks.clone());
        if part.is_running() {
            let barrier = self.number();
            self.leave(&part, barrier);
        }
    }

    /// A partition's lane leaves its driver, or the partition the lane that it shares.
    pub(super) fn leave(&mut self, part: &Part, barrier: u64) {
        let (driver, lane, partition) = (part.driver, part.lane, part.partition);
        match part.table {
            None => self.drop_lane(driver, lane, barrier),
            Some(_) => {
                if let Some(seat) = self.cx.drivers.get_mut(driver) {
                    seat.commands.post(Command::Leave { lane, partition, barrier });
                }
            }
        }
    }

    pub(super) fn drop_lane(&mut self, driver: usize, lane: LaneId, barrier: u64) {
        if let Some(seat) = self.cx.drivers.get_mut(driver) {
            seat.lanes = seat.lanes.saturating_sub(1);
            seat.commands.post(Command::Drop { lanes: vec![lane], barrier });
        }
    }
}
