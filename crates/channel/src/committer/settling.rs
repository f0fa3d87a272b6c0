//! Uncertain appends (C33–C40) and turns that panicked (C31).
//!
//! An uncertain append is settled by attempts that repeat by themselves: Keep writes the same units at the same offsets
//! into a fresh segment, Abandon fences them away. Until one has succeeded nothing is claimed and nothing of it is
//! visible; tickets wait, or leave at their deadline with Unresolved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_log::{
    AbsentReason, AppendTimes, Evidence, Intent, Located, RefusedError, Settled, UncertainCause, VisibleTail,
};
use landfall_types::{Coded, with_causes};
use rand::RngExt;

use super::exposure::Stamps;
use super::{After, Claimed, Committer, Released};
use crate::error::PublishError;
use crate::outcome::UnresolvedCause;
use crate::partition::Condition;
use crate::status::Health;
use crate::ticket::Settlement;

/// What is known of an append whose outcome is not (C25).
#[derive(Debug)]
pub(super) struct Unsettled {
    evidence: Evidence,
    cause: Arc<UncertainCause>,
    since: Instant,
    /// Settles that have failed.
    attempts: u32,
    keeps_failed: u32,
    next: Instant,
}

/// What became of the units that a turn had claimed when it panicked.
#[derive(Default)]
struct Found {
    stored: Vec<Claimed>,
    absent: Vec<Claimed>,
    /// Freed since, or not readable: neither is proof that they were not stored.
    unknown: Vec<Claimed>,
}

/// After so many failed Keeps, Abandon takes turns with it (C39).
const KEEPS_MAX: u32 = 3;
const DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

impl Committer {
    pub(super) fn become_uncertain(&mut self, evidence: Evidence, cause: UncertainCause) {
        let partition = &self.partition;
        let text = with_causes(&cause);
        let (first, units) = (evidence.first, evidence.units.len());
        tracing::warn!(channel = %partition.channel, partition = %partition.id, offset = %first, units, epoch = %evidence.epoch, code = "LF-CH0032", cause = %text, "append uncertain: settling it");
        let now = Instant::now();
        partition.intake.set_uncertain(Some(now));
        partition.set_condition(Condition { state: "uncertain", health: Health::Uncertain, cause: Some(text.into()) });
        let cause = Arc::new(cause);
        self.unsettled = Some(Unsettled { evidence, cause, since: now, attempts: 0, keeps_failed: 0, next: now });
    }

    /// A control unit, or a later sync, may have left something to settle.
    pub(super) fn note_control(&mut self, result: Result<(), UncertainCause>) {
        if let (Err(cause), Some(writer)) = (result, &self.writer) {
            let evidence = writer.evidence(Vec::new());
            self.become_uncertain(evidence, cause);
        }
    }

    /// One attempt, if it is time for one.
    pub(super) fn settle_again(&mut self) -> After {
        let partition = Arc::clone(&self.partition);
        if !partition.threads.is_owner() {
            return self.stand_down();
        }
        let (Some(unsettled), Some(writer)) = (self.unsettled.as_mut(), self.writer.as_mut()) else {
            return After::Again;
        };
        let now = Instant::now();
        if unsettled.next > now {
            return After::At(unsettled.next);
        }
        let abandons = unsettled.keeps_failed >= KEEPS_MAX && unsettled.attempts % 2 == 1;
        let intent = if abandons { Intent::Abandon } else { Intent::Keep };
        match writer.settle(&unsettled.evidence, intent) {
            Settled::Committed { end, epoch } => {
                partition.metrics.settle_attempt("committed");
                partition.metrics.settled("committed");
                partition.metrics.epoch.set(f64::from(epoch.0));
                tracing::info!(channel = %partition.channel, partition = %partition.id, first = %unsettled.evidence.first, %end, %epoch, attempts = unsettled.attempts + 1, seconds = unsettled.since.elapsed().as_secs_f64(), "append settled: it is in the log");
                if let Some(settled) = self.end_uncertainty() {
                    let stamps = Stamps { claimed_at: settled.since, written_at: now, times: AppendTimes::default() };
                    self.expose(settled.evidence, end, stamps);
                }
                After::Again
            }
            Settled::Absent { why } => {
                partition.metrics.settle_attempt("absent");
                partition.metrics.settled("absent");
                let Some(settled) = self.end_uncertainty() else { return After::Again };
                partition.metrics.epoch.set(f64::from(self.epoch().0));
                let error = match why {
                    AbsentReason::NoSpace => {
                        let cause = RefusedError::NoSpace {
                            dir: format!("{}/{}", partition.channel, partition.id).into(),
                            needed: settled.evidence.units.iter().map(|unit| unit.body.encoded_len() as u64).sum(),
                            source: None,
                        };
                        self.set_full(&cause.to_string());
                        PublishError::Refused { partition: partition.id, cause: Arc::new(cause) }
                    }
                    AbsentReason::Abandoned => PublishError::Abandoned {
                        partition: partition.id,
                        attempts: settled.attempts,
                        cause: Some(settled.cause),
                    },
                };
                tracing::error!(channel = %partition.channel, partition = %partition.id, first = %settled.evidence.first, epoch = %self.epoch(), code = %error.code(), "append settled: it is not in the log, publishers are told");
                self.not_stored(error);
                After::Again
            }
            Settled::Uncertain(cause) => {
                partition.metrics.settle_attempt("uncertain");
                unsettled.attempts += 1;
                if intent == Intent::Keep {
                    unsettled.keeps_failed += 1;
                }
                let delay = delay_after(unsettled.attempts);
                unsettled.next = now + delay;
                tracing::warn!(channel = %partition.channel, partition = %partition.id, offset = %unsettled.evidence.first, attempt = unsettled.attempts, next_ms = delay.as_millis() as u64, code = "LF-CH0032", cause = %with_causes(&cause), "settling failed; it will be tried again");
                After::At(unsettled.next)
            }
        }
    }

    fn end_uncertainty(&mut self) -> Option<Unsettled> {
        self.partition.intake.set_uncertain(None);
        self.partition.set_condition(Condition::READY);
        self.unsettled.take()
    }

    /// Class `written`: the sync that runs beside the turns (C11).
    pub(super) fn sync_written(&mut self) {
        let result = self.writer.as_mut().map(|writer| writer.sync());
        self.partition.metrics.syncs.increment(1);
        self.note_control(result.unwrap_or(Ok(())));
    }

    /// A turn panicked: the partition is opened anew, and what was claimed is looked up by its number (C31). What had
    /// left the queue and was not claimed is answered NotStored. False: it could not be opened; it is stopped.
    pub(crate) fn recover(&mut self, panic: &str) -> bool {
        let partition = Arc::clone(&self.partition);
        tracing::error!(channel = %partition.channel, partition = %partition.id, cause = panic, "a turn panicked: opening the partition anew");
        // The old writer must be gone before the tail is taken again.
        self.writer = None;
        self.unsettled = None;
        self.units = Vec::new();
        self.refuse_batch();
        // Those that were being answered are in the log, which is about to say so.
        let left = self.answering.split_off(self.answered.min(self.answering.len()));
        self.answering.clear();
        partition.claimed.lock().extend(left);
        // The watch may rest, since it did not see those.
        partition.watch();
        if !partition.threads.is_owner() {
            // Opening writes.
            let _ = self.stand_down();
            return false;
        }
        let opened = partition.store.open();
        match opened {
            Ok(opened) => {
                let upto = VisibleTail(opened.tail);
                // Claims stay listed while the log is read: should that panic, they are found and answered.
                let claims: Vec<_> = {
                    let claimed = partition.claimed.lock();
                    claimed.iter().map(|own| (own.queued.cell.claimed(), own.first, own.ticket)).collect()
                };
                let located: Vec<_> = claims
                    .into_iter()
                    .map(|(claim, first, ticket)| Some(opened.reader.locate(first, claim?.epoch, ticket, upto)))
                    .collect();
                let claims = std::mem::take(&mut *partition.claimed.lock());
                let mut found = Found::default();
                for (claimed, located) in claims.into_iter().zip(located) {
                    match located {
                        Some(Ok(Located::There { .. })) => found.stored.push(claimed),
                        Some(Ok(Located::NotThere)) => found.absent.push(claimed),
                        Some(Ok(Located::Trimmed)) | None => found.unknown.push(claimed),
                        Some(Err(error)) => {
                            tracing::error!(channel = %partition.channel, partition = %partition.id, offset = %claimed.first, code = "LF-CH0041", cause = %with_causes(&error), "whether a claimed publish is in the log cannot be read");
                            found.unknown.push(claimed);
                        }
                    }
                }
                {
                    // What nobody can be told of may be in the log: its repeat must not be stored beside it (I4).
                    let mut keys = partition.keys.lock();
                    for recent in &opened.sequences {
                        let number = (recent.block.sequence, recent.block.index);
                        keys.advance(recent.block.producer, number, recent.append_time);
                    }
                }
                let fresh = partition.adopt(opened);
                // Who was answered before the panic is yet to be woken.
                let (next_ticket, wake) = (self.next_ticket, std::mem::take(&mut self.wake));
                *self = Committer { next_ticket, wake, ..fresh };
                partition.intake.set_uncertain(None);
                partition.set_condition(Condition::READY);
                self.answer_found(found);
                true
            }
            Err(error) => {
                let text: Arc<str> = with_causes(&error).into();
                tracing::error!(channel = %partition.channel, partition = %partition.id, code = "LF-CH0041", cause = %text, "the partition could not be opened anew");
                self.give_up(text);
                false
            }
        }
    }

    /// Stops the partition; what was taken up is answered with what can be known of it, and its room is free again.
    pub(crate) fn give_up(&mut self, cause: Arc<str>) {
        let partition = Arc::clone(&self.partition);
        partition.intake.set_uncertain(None);
        self.refuse_batch();
        let claims = std::mem::take(&mut *partition.claimed.lock());
        // First, so that who is answered finds the partition as it is.
        partition.stop(cause);
        self.lose(claims);
    }

    /// What had left the queue and was not claimed is not stored.
    fn refuse_batch(&mut self) {
        let partition = Arc::clone(&self.partition);
        for (_, queued) in std::mem::take(&mut self.batch) {
            partition.refuse(queued, PublishError::Abandoned { partition: partition.id, attempts: 0, cause: None });
        }
        partition.intake.judged();
    }

    fn answer_found(&mut self, found: Found) {
        let partition = Arc::clone(&self.partition);
        let now = Instant::now();
        let end = self.next;
        *partition.claimed.lock() = found.stored;
        let evidence =
            Evidence { epoch: self.epoch(), segment: Default::default(), start_byte: 0, first: end, units: Vec::new() };
        self.expose(evidence, end, Stamps { claimed_at: now, written_at: now, times: AppendTimes::default() });
        *partition.claimed.lock() = found.absent;
        self.not_stored(PublishError::Abandoned { partition: partition.id, attempts: 0, cause: None });
        self.lose(found.unknown);
    }

    /// Nobody can say what became of them, so their keys stay taken (I3, I4).
    pub(super) fn lose(&mut self, claims: Vec<Claimed>) {
        let partition = Arc::clone(&self.partition);
        let total = partition.intake.process_total();
        let mut released = Released::default();
        for claimed in &claims {
            partition.metrics.in_flight.decrement(1.0);
            claimed.queued.cell.settle(Settlement::Unresolved(UnresolvedCause::CommitterLost), &mut self.wake);
            released.add(&claimed.queued, total);
        }
        partition.intake.release(released.items, released.bytes, released.permits);
        self.wake_all();
    }
}

/// 100 ms, doubling to 30 s, each shortened at random by up to a quarter so that partitions do not retry in step.
fn delay_after(attempts: u32) -> Duration {
    let full = DELAY.0.saturating_mul(1u32 << attempts.saturating_sub(1).min(20)).min(DELAY.1);
    full.mul_f64(rand::rng().random_range(0.75..=1.0))
}
