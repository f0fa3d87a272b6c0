//! From the queue into a turn (C23, step 3): each unit is judged, gets its offset and is claimed.
//!
//! While publishers that were just answered are on their way back, what is there already is claimed: the wait costs nothing
//! that is not to be done anyway. A unit is in `batch` until it is judged and from its claim on in the partition's list,
//! so that a panic anywhere leaves each where the recovery finds and answers it.

use std::sync::Arc;
use std::time::Instant;

use landfall_log::{RefusedError, Tag, Unit, UnitBody};
use landfall_types::{Coded, Offset, TicketNumber, Timestamp};

use super::{Claimed, Committer, Rest};
use crate::envelope::Rows;
use crate::error::PublishError;
use crate::intake::{Queued, QueuedUnit, TurnRoom};
use crate::keys::Sequences;
use crate::ticket::{Claim, Settlement};

/// What a turn writes.
pub(super) struct Taken {
    pub(super) units: Vec<Unit>,
    pub(super) claimed_at: Instant,
    pub(super) time: Timestamp,
}

/// While more is expected, fewer are not worth the queue's lock.
const CLAIMED_TOGETHER: usize = 16;

impl Committer {
    /// Claims what waits and what comes within the moment that is given to those who come back, up to a turn's limits. `None`:
    /// there was nothing.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let partition = Arc::clone(&self.partition);
        let mut room = self.turn_room();
        let mut wait = self.gathering.begin(Instant::now());
        let (mut units, mut next, mut count) = (std::mem::take(&mut self.units), self.next, 0);
        let mut time = None;
        loop {
            let queued = partition.intake.queued();
            let goes_on =
                wait.as_mut().is_some_and(|wait| self.gathering.goes_on(wait, count + queued, Instant::now()));
            if goes_on && queued < CLAIMED_TOGETHER {
                std::thread::yield_now();
                continue;
            }
            let mut is_full = partition.intake.claim(&mut room, &mut self.batch);
            count += self.batch.len();
            let claimed_at = Instant::now();
            // One for the whole turn.
            let time = *time.get_or_insert_with(|| Timestamp(partition.clock.now().0.max(self.last_time.0)));
            next = self.claim(next, (claimed_at, time), &mut units);
            if !self.batch.is_empty() {
                // From the last one on, as they stand there.
                partition.intake.put_back(self.batch.drain(..));
                is_full = true;
            }
            partition.intake.judged();
            if is_full || !goes_on {
                // Who is not written need not wait for the sync.
                self.wake_all();
                if count == 0 {
                    self.units = units;
                    return None;
                }
                return Some(Taken { units, claimed_at, time });
            }
        }
    }

    fn turn_room(&self) -> TurnRoom {
        let turn = &self.partition.options.turn;
        let append_max = self.writer.as_ref().map_or(usize::MAX, |writer| writer.limits().append_bytes_max);
        TurnRoom { records: turn.records, bytes: turn.bytes.as_usize().min(append_max), is_untouched: true }
    }

    /// Judges the batch, whose first record would get the offset `next`; gives the offset after its last one. What waits for the
    /// next turn stays in the batch.
    fn claim(&mut self, mut next: Offset, (now, time): (Instant, Timestamp), units: &mut Vec<Unit>) -> Offset {
        let partition = Arc::clone(&self.partition);
        let epoch = self.epoch();
        let total = partition.intake.process_total();
        let give_back = |queued: &Queued| partition.intake.release(1, queued.cost(), queued.permits(total));
        partition.claimed.lock().reserve(self.batch.len());
        // Taken from its end, so the first comes last.
        self.batch.reverse();
        while let Some((_, waiting)) = self.batch.last() {
            let verdict = self.judge(waiting, next, now, units);
            if let Verdict::NextTurn = verdict {
                break;
            }
            let Some((_, queued)) = self.batch.pop() else { break };
            let rest = match verdict {
                Verdict::Append | Verdict::NextTurn => None,
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
        next
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
            let stored = self.partition.keys.lock().last(&sequences.producer);
            let known = sequences.known(last_in_turn(&sequences.producer, units).or(stored));
            let count = queued.body.records();
            if known >= count as usize {
                // It is answered when its first copy is in the log, and only then.
                let is_stored = sequences.known(stored) >= known;
                return if is_stored { Verdict::Answer(self.duplicate(count)) } else { Verdict::NextTurn };
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
    pub(super) fn answer(&mut self, queued: &QueuedUnit, settlement: Settlement) {
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
}

enum Verdict {
    Append,
    /// What it repeats is being written.
    NextTurn,
    AppendRest(Box<Rest>),
    Answer(Settlement),
}

/// The last number of a producer in this turn.
fn last_in_turn(producer: &[u8; 16], units: &[Unit]) -> Option<(u64, u64)> {
    units.iter().rev().find_map(|unit| match unit.body.tag() {
        Tag::Sequence(block) if block.producer == *producer => Some((block.sequence, block.index)),
        _ => None,
    })
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
