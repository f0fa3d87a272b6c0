//! The committer: the single owner of a partition's tail (C19, I5).
//!
//! A plain value that is moved, never shared: the queue, the run queue or a pool thread holds it. One turn claims what
//! waits, writes it with one sync, and only then shows it to readers and answers (I1, C23, C24). Evidence of what is in
//! flight is made before the first byte goes out and is dropped only when its outcome is known (C25, I3). While an
//! append is uncertain nothing else is claimed, so no later record is exposed before it.

mod exposure;
mod gathering;
mod retention;
mod settling;

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use landfall_log::{Append, RefusedError, StoredUnit, Tag, Unit, UnitBody};
use landfall_types::{Coded, Durability, Offset, TicketNumber, Timestamp, with_causes};

use crate::envelope::Rows;
use crate::error::PublishError;
use crate::intake::{Errands, Queued, QueuedUnit};
use crate::keys::Sequences;
use crate::partition::{Condition, Partition};
use crate::status::Health;
use crate::store::PartitionWriter;
use crate::ticket::{Claim, Settlement};

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
    /// Buffers that turns reuse. `batch`: taken from the queue and neither answered nor claimed yet.
    batch: Vec<QueuedUnit>,
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
        self.gathering.wait(|| self.partition.intake.queued());
        let partition = Arc::clone(&self.partition);
        if !partition.threads.is_owner() {
            return self.stand_down();
        }
        self.ensure_spare();
        let (records_max, bytes_max) = self.turn_limits();
        if let Some(errands) = partition.intake.claim(records_max, bytes_max, &mut self.batch) {
            return self.run_errands(errands);
        }
        if self.batch.is_empty() {
            self.gathering.expect(0);
            return After::Park;
        }
        self.append()
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

    fn turn_limits(&self) -> (u32, usize) {
        let turn = &self.partition.options.turn;
        let append_max = self.writer.as_ref().map_or(usize::MAX, |writer| writer.limits().append_bytes_max);
        (turn.records, turn.bytes.as_usize().min(append_max))
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

    /// Steps 3 to 7 of C23. A unit is in `batch` until it is judged and from its claim on in the partition's list, so
    /// that a panic anywhere leaves each where the recovery finds and answers it.
    fn append(&mut self) -> After {
        let partition = Arc::clone(&self.partition);
        let Some(writer) = self.writer.as_ref() else { return After::Park };
        let epoch = writer.epoch();
        let claimed_at = Instant::now();
        let time = Timestamp(partition.clock.now().0.max(self.last_time.0));
        let total = partition.intake.process_total();
        let give_back = |queued: &Queued| partition.intake.release(1, queued.cost(), queued.permits(total));
        let mut units = std::mem::take(&mut self.units);
        partition.claimed.lock().reserve(self.batch.len());
        let mut next = self.next;
        // Taken from its end, so the first comes last.
        self.batch.reverse();
        while let Some(waiting) = self.batch.last() {
            let verdict = self.judge(waiting, next, claimed_at, &units);
            let Some(queued) = self.batch.pop() else { break };
            let rest = match verdict {
                Verdict::Append => None,
                Verdict::AppendRest(rest) => Some(rest),
                Verdict::Answer(settlement) => {
                    self.answer(&queued, settlement);
                    give_back(&queued);
                    continue;
                }
            };
            let body = rest.as_ref().map_or(&queued.body, |rest| &rest.body).clone();
            let records = body.records();
            let Some(end) = next.checked_add(u64::from(records)) else {
                let cause = RefusedError::NumbersExhausted { number: "offset", limit: u64::MAX };
                let error = PublishError::Refused { partition: partition.id, cause: Arc::new(cause) };
                self.answer(&queued, Settlement::NotStored(error));
                give_back(&queued);
                continue;
            };
            let ticket = TicketNumber(self.next_ticket);
            if !queued.cell.claim(Claim { epoch, ticket, first: next }) {
                // Cancelled between the queue and here; who cancelled it looked for it in the queue, in vain.
                partition.count_cancelled(crate::error::ch(22));
                give_back(&queued);
                continue;
            }
            self.next_ticket += 1;
            units.push(Unit { body, ticket, append_time: time });
            partition.claimed.lock().push(Claimed { queued, first: next, ticket, rest });
            next = end;
        }
        partition.intake.judged();
        let after = if units.is_empty() {
            self.units = units;
            After::Again
        } else {
            self.write(units, claimed_at, time)
        };
        self.wake_all();
        after
    }

    fn write(&mut self, units: Vec<Unit>, claimed_at: Instant, time: Timestamp) -> After {
        let partition = Arc::clone(&self.partition);
        let Some(writer) = self.writer.as_mut() else { return After::Park };
        let evidence = writer.evidence(units);
        let written_at = Instant::now();
        match writer.append(self.next, &evidence.units) {
            Append::Durable { end, times } => {
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

    /// What happens to a queued unit whose records would begin at `next`.
    fn judge(&self, queued: &Queued, next: Offset, now: Instant, units: &[Unit]) -> Verdict {
        let refuse = |error| Verdict::Answer(Settlement::NotStored(error));
        if let Some(first) = queued.chain.as_ref().and_then(|chain| chain.broken_by()) {
            return refuse(PublishError::ChainBroken { first });
        }
        if queued.expires <= now {
            return refuse(PublishError::DeadlineBeforeClaim { deadline: queued.deadline });
        }
        let mut verdict = Verdict::Append;
        if let Some(sequences) = &queued.sequences {
            let known = sequences.known(self.last_sequence(&sequences.producer, units));
            let count = queued.body.records();
            if known >= count as usize {
                return Verdict::Answer(self.duplicate(count));
            }
            if known > 0 {
                match without_front(&queued.body, sequences, known) {
                    Some((body, left)) => {
                        let rest = Rest { body, sequences: left, skipped: known as u32 };
                        verdict = Verdict::AppendRest(Box::new(rest));
                    }
                    None => {
                        let reason = "do not match the records".into();
                        return refuse(PublishError::BadField { index: 0, field: "sequences", reason });
                    }
                }
            }
        }
        if let Some(expected) = queued.expect.filter(|expected| *expected != next) {
            return refuse(PublishError::OffsetConflict { expected, actual: next });
        }
        verdict
    }

    /// The last number of a producer, in the log or in this turn.
    fn last_sequence(&self, producer: &[u8; 16], units: &[Unit]) -> Option<(u64, u64)> {
        let in_turn = units.iter().rev().find_map(|unit| match unit.body.tag() {
            Tag::Sequence(block) if block.producer == *producer => Some((block.sequence, block.index)),
            _ => None,
        });
        in_turn.or_else(|| self.partition.keys.lock().last(producer))
    }

    fn duplicate(&self, count: u32) -> Settlement {
        self.partition.metrics.duplicate.increment(u64::from(count));
        Settlement::Committed {
            first: Offset::MAX,
            count,
            skipped: count,
            epoch: self.writer.as_ref().map(|writer| writer.epoch()).unwrap_or_default(),
            class: self.class(),
            duplicate: true,
            passed: None,
        }
    }

    /// Ends a unit that is not written in this turn.
    fn answer(&mut self, queued: &QueuedUnit, settlement: Settlement) {
        let metrics = &self.partition.metrics;
        metrics.in_flight.decrement(1.0);
        match &settlement {
            Settlement::NotStored(error) => {
                metrics.not_stored(error.code(), 1);
                if let Some(chain) = &queued.chain {
                    chain.break_by(error.code());
                }
                if let Some((name, _)) = &queued.key {
                    self.partition.keys.lock().release(name, queued);
                }
            }
            _ => metrics.committed.increment(1),
        }
        queued.cell.settle(settlement, &mut self.wake);
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

enum Verdict {
    Append,
    AppendRest(Box<Rest>),
    Answer(Settlement),
}

/// The unit without its first `known` records, which are in the log already.
fn without_front(body: &UnitBody, sequences: &Sequences, known: usize) -> Option<(UnitBody, Sequences)> {
    let count = body.records() as usize;
    if sequences.numbers.len() != count || known >= count {
        return None;
    }
    let mut rows = Rows::new(body.rows());
    rows.skip_rows(known as u32).ok()?;
    let left = sequences.part(known, count - known);
    let rest = body.rows().slice_ref(rows.rest());
    let body = UnitBody::new(Tag::Sequence(left.block()), body.codec(), rest, (count - known) as u32);
    Some((body, left))
}
