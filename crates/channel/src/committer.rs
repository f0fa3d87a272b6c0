//! The committer: the single owner of a partition's tail (C19, I5).
//!
//! A plain value that is moved, never shared: the queue, the run queue or a pool thread holds it. One turn claims what
//! waits, writes it with one sync, and only then shows it to readers and answers (I1, C23, C24). Evidence of what is in
//! flight is made before the first byte goes out and is dropped only when its outcome is known (C25, I3). While an
//! append is uncertain nothing else is claimed, so no later record is exposed before it.

mod claiming;
mod exposure;
mod gathering;
mod retention;
mod settling;

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use landfall_log::{Append, RefusedError, StoredUnit, Unit, UnitBody};
use landfall_types::{Coded, Durability, Offset, TicketNumber, Timestamp, with_causes};

use crate::error::PublishError;
use crate::intake::{Errands, Queued, QueuedUnit};
use crate::keys::Sequences;
use crate::partition::{Condition, Partition};
use crate::status::Health;
use crate::store::{HEAD_BYTES, PartitionWriter};

use claiming::Taken;
use gathering::Gathering;
pub(crate) use retention::at_capacity;
use settling::Unsettled;

/// A claimed unit, until it is settled.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) queued: QueuedUnit,
    pub(crate) first: Offset,
    pub(crate) ticket: TicketNumber,
    /// What is written of the unit, where its front was stored before.
    rest: Option<Box<Rest>>,
}

/// A unit without its first records, which are in the log already.
#[derive(Debug)]
struct Rest {
    body: UnitBody,
    sequences: Sequences,
    skipped: u32,
}

impl Claimed {
    /// What is written.
    fn body(&self) -> &UnitBody {
        self.rest.as_ref().map_or(&self.queued.body, |rest| &rest.body)
    }

    fn sequences(&self) -> Option<&Sequences> {
        self.rest.as_ref().map(|rest| &rest.sequences).or(self.queued.sequences.as_ref())
    }

    /// Records at the front that were stored before and are not part of what is written.
    fn skipped(&self) -> u32 {
        self.rest.as_ref().map_or(0, |rest| rest.skipped)
    }
}

/// What the pool does with the committer next.
#[derive(Debug)]
pub(crate) enum After {
    /// Nothing waits.
    Park,
    /// More waits: to the back of the run queue.
    Again,
    /// Nothing before then.
    At(Instant),
}

#[derive(Debug)]
pub(crate) struct Committer {
    partition: Arc<Partition>,
    /// None only inside a recovery.
    writer: Option<Box<dyn PartitionWriter>>,
    /// The offset of the next record.
    next: Offset,
    last_time: Timestamp,
    next_ticket: u64,
    unsettled: Option<Unsettled>,
    /// Buffers that turns reuse. `batch`: taken from the queue, with its number there, and neither answered nor claimed yet.
    batch: Vec<(u64, QueuedUnit)>,
    /// A turn that is in the log and being answered; of the first so many the room is given back.
    answering: Vec<Claimed>,
    answered: usize,
    units: Vec<Unit>,
    wake: Vec<Waker>,
    evicted: Vec<StoredUnit>,
    /// What to wait for before a turn, and how long (C26).
    gathering: Gathering,
}

impl std::fmt::Debug for dyn PartitionWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartitionWriter")
    }
}

/// Why a partition is stopped whose data directory another process owns.
const SUPERSEDED: &str = "superseded by another process";

/// Room given back at the end of a turn.
#[derive(Default)]
struct Released {
    items: usize,
    bytes: usize,
    permits: usize,
}

impl Released {
    fn add(&mut self, queued: &Queued, total: usize) {
        self.items += 1;
        self.bytes += queued.cost();
        self.permits += queued.permits(total);
    }
}

impl Committer {
    pub(crate) fn new(
        partition: Arc<Partition>,
        writer: Box<dyn PartitionWriter>,
        tail: Offset,
        last_time: Timestamp,
    ) -> Self {
        partition.metrics.epoch.set(f64::from(writer.epoch().0));
        Committer {
            partition,
            writer: Some(writer),
            next: tail,
            last_time,
            next_ticket: 0,
            unsettled: None,
            batch: Vec::new(),
            answering: Vec::new(),
            answered: 0,
            units: Vec::new(),
            wake: Vec::new(),
            evicted: Vec::new(),
            gathering: Gathering::default(),
        }
    }

    /// Whether publishers that were just answered may be back in a moment: then the next turn waits for them.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering.is_expecting()
    }

    pub(crate) fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    /// One pass: settle what is uncertain, or do the errands, or claim, write, sync, expose. Blocks on I/O.
    pub(crate) fn turn(&mut self) -> After {
        if self.unsettled.is_some() {
            return self.settle_again();
        }
        let partition = Arc::clone(&self.partition);
        if !partition.threads.is_owner() {
            return self.stand_down();
        }
        // They may leave something to settle, before which nothing is claimed.
        let errands = partition.intake.take_errands();
        if errands.any() {
            return self.run_errands(errands);
        }
        self.ensure_spare();
        let Some(taken) = self.take() else {
            self.gathering.expect(0);
            return After::Park;
        };
        if taken.units.is_empty() {
            self.units = taken.units;
            return After::Again;
        }
        self.write(taken)
    }

    /// Another process owns the data directory (C93): nothing is written any more, neither by a turn nor by a settle. What
    /// became of an append that is not settled is the new owner's to say.
    fn stand_down(&mut self) -> After {
        let partition = Arc::clone(&self.partition);
        // They write, too; and while there are any, the committer is not left to rest.
        partition.intake.drop_errands();
        self.gathering.expect(0);
        self.unsettled = None;
        if partition.condition().cause.as_deref() != Some(SUPERSEDED) {
            tracing::error!(channel = %partition.channel, partition = %partition.id, offset = %self.next, code = "LF-CH0035", "another process owns the data directory: nothing is written any more");
        }
        let claims = std::mem::take(&mut *partition.claimed.lock());
        partition.stop_with(SUPERSEDED.into(), PublishError::Superseded);
        self.lose(claims);
        After::Park
    }

    /// What an answer is worth: the writer's word, so that it is never overstated (I1).
    fn class(&self) -> Durability {
        self.writer.as_ref().map_or_else(|| self.partition.class(), |writer| writer.class())
    }

    /// A fence must never need new space (C42). Where housekeeping is behind, this partition does its own, before anything is
    /// taken out of the queue.
    fn ensure_spare(&self) {
        let partition = &self.partition;
        if self.writer.as_ref().is_some_and(|writer| !writer.has_spare())
            && let Some(Err(error)) = partition.upkeep().map(|upkeep| upkeep.run())
        {
            tracing::warn!(channel = %partition.channel, partition = %partition.id, code = "LF-CH0030", cause = %error, "no spare file could be made");
        }
    }

    /// Steps 4 to 7 of C23.
    fn write(&mut self, taken: Taken) -> After {
        let Taken { units, claimed_at, time } = taken;
        let partition = Arc::clone(&self.partition);
        let Some(writer) = self.writer.as_mut() else { return After::Park };
        let mut evidence = writer.evidence(units);
        let written_at = Instant::now();
        match writer.append(self.next, &evidence.units) {
            Append::Durable { end, times } => {
                let bytes = evidence.units.iter().map(|unit| unit.body.encoded_len() + HEAD_BYTES).sum();
                if partition.ring.may_share(bytes) {
                    writer.share(&mut evidence.units);
                }
                self.last_time = time;
                self.gathering.note_sync(times.sync);
                partition.metrics.syncs.increment(1);
                partition.metrics.sync_seconds.record(times.sync);
                if times.extended_inline {
                    partition.metrics.extend_inline.increment(1);
                }
                if times.rolled {
                    partition.metrics.rolls.increment(1);
                }
                let stamps = exposure::Stamps { claimed_at, written_at, times };
                self.units = self.expose(evidence, end, stamps);
                self.look_after_space();
                After::Again
            }
            Append::Refused(cause) => {
                // Both are the device's, and end by themselves.
                let is_full = matches!(cause, RefusedError::NoSpace { .. } | RefusedError::Unprepared { .. });
                let cause = Arc::new(cause);
                let text = with_causes(&*cause);
                if is_full {
                    self.set_full(&text);
                } else {
                    // The committer and its writer do not agree on the tail or on a limit: a defect, and a turn that
                    // is refused again and again. Nothing of it was written.
                    tracing::error!(channel = %partition.channel, partition = %partition.id, code = %cause.code(), cause = %text, "append refused");
                }
                if matches!(*cause, RefusedError::NumbersExhausted { .. } | RefusedError::WrongExpected { .. }) {
                    partition.stop(text.into());
                }
                let error = PublishError::Refused { partition: partition.id, cause };
                self.not_stored(error);
                After::Again
            }
            Append::Uncertain(cause) => {
                self.last_time = time;
                self.become_uncertain(evidence, cause);
                self.settle_again()
            }
        }
    }

    fn wake_all(&mut self) {
        self.partition.threads.relay.wake(&mut self.wake);
    }

    fn set_full(&self, cause: &str) {
        let partition = &self.partition;
        if partition.condition().health != Health::Full {
            tracing::error!(channel = %partition.channel, partition = %partition.id, offset = %self.next, code = "LF-CH0030", cause, "no room could be prepared: publishes are refused until there is some");
            let cause = Some(Arc::from(cause));
            partition.set_condition(Condition { state: "fenced", health: Health::Full, cause });
        }
    }

    /// Asks housekeeping for prepared space, where it is due.
    fn look_after_space(&self) {
        if self.partition.upkeep().is_some_and(|upkeep| upkeep.is_due()) {
            self.partition.threads.housekeeping.call();
        }
    }

    fn run_errands(&mut self, errands: Errands) -> After {
        if errands.sync {
            self.sync_written();
        }
        if errands.mark && self.unsettled.is_none() {
            match self.writer.as_mut().map(|writer| writer.mark()) {
                Some(Ok(())) => self.partition.known_tails.keep(self.partition.id, self.next),
                Some(uncertain) => self.note_control(uncertain),
                None => {}
            }
        }
        if errands.retain && self.unsettled.is_none() {
            self.retain();
        }
        match self.unsettled {
            Some(_) => self.settle_again(),
            None => After::Again,
        }
    }

    /// Ends the committer: a closing mark, if nothing is uncertain. Gives the tail that is durable with it.
    pub(crate) fn close(mut self) -> Option<Offset> {
        if self.unsettled.is_some() || !self.partition.threads.is_owner() {
            return None;
        }
        match self.writer.take()?.close() {
            Ok(()) => Some(self.next),
            Err(error) => {
                let partition = &self.partition;
                tracing::warn!(channel = %partition.channel, partition = %partition.id, cause = %with_causes(&error), "no closing mark; the next start scans instead");
                None
            }
        }
    }
}
