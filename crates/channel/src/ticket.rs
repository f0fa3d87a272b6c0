//! Tickets: a publish from admission to its outcome (C22).
//!
//! Waiting → Queued → Claimed → Settled, or Waiting/Queued → Settled by its holder's leaving. The cell's lock is the one
//! arbiter of each move; it guards memory only (I5). Only a committer claims. What a holder gets is chosen from the
//! phase (I3): who leaves a claimed ticket gets Unresolved and the ticket goes on alone.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_types::{Coded, Durability, Epoch, Offset, TicketNumber};
use parking_lot::Mutex;
use tokio::time::Sleep;

use crate::chain::Link;
use crate::envelope;
use crate::error::PublishError;
use crate::intake::QueuedUnit;
use crate::options::JOINED_MAX;
use crate::outcome::{Committed, NotStored, PublishOutcome, Reference, Timings, Unresolved, UnresolvedCause};
use crate::partition::Partition;
use crate::threads::wake_all;

/// How a ticket ended, for all its holders.
#[derive(Clone, Debug)]
pub(crate) enum Settlement {
    Committed {
        first: Offset,
        count: u32,
        /// Records at the front that were stored before, known by their sequence.
        skipped: u32,
        epoch: Epoch,
        class: Durability,
        duplicate: bool,
        /// `None`: nothing was written for it.
        passed: Option<Passed>,
    },
    NotStored(PublishError),
    Unresolved(UnresolvedCause),
}

/// When the turn of a ticket passed its steps. The publisher makes durations of it: the committer has no time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) claimed: Instant,
    /// From here on since it was claimed.
    pub(crate) written: Duration,
    pub(crate) synced: Duration,
    pub(crate) visible: Duration,
}

impl Passed {
    fn since(&self, admitted: Instant) -> Timings {
        let claimed = self.claimed.saturating_duration_since(admitted);
        Timings {
            claimed,
            written: claimed + self.written,
            synced: claimed + self.synced,
            visible: claimed + self.visible,
        }
    }
}

/// What a claim told a ticket about itself: enough to name it later (C52).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) epoch: Epoch,
    pub(crate) ticket: TicketNumber,
    pub(crate) first: Offset,
}

#[derive(Debug)]
enum Phase {
    /// Not in the queue yet.
    Waiting,
    Queued,
    Claimed(Claim),
    Settled(Settlement),
}

/// Shared by the committer and the ticket's holders.
#[derive(Debug)]
pub(crate) struct TicketCell {
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    phase: Phase,
    /// Holders that still want the outcome.
    holders: u32,
    waker: Option<Waker>,
    /// Of those that joined through the key.
    joined: Vec<Option<Waker>>,
    /// Its publisher has waited long: it looks after its deadline itself.
    is_told: bool,
}

/// What a look at a ticket gave.
enum Look {
    Settled(Settlement),
    Open { is_told: bool },
}

/// What is left when a holder leaves.
pub(crate) enum Left {
    /// It was settled already.
    Settled(Settlement),
    /// Nobody else wanted it and it is not taken up: it never will be.
    Cancelled,
    /// It goes on.
    GoesOn(Option<Claim>),
}

impl TicketCell {
    pub(crate) fn new() -> TicketCell {
        let inside = Inside { phase: Phase::Waiting, holders: 1, waker: None, joined: Vec::new(), is_told: false };
        TicketCell { inside: Mutex::new(inside) }
    }

    /// A second publish under the same key. `Err(true)`: over already, the key is free. `Err(false)`: too many. One
    /// that ended Unresolved may be in the log, so its key stays taken, and who repeats it gets the same end.
    pub(crate) fn join(&self) -> Result<usize, bool> {
        let mut inside = self.inside.lock();
        match inside.phase {
            // No seat is kept: the end is there at the first look.
            Phase::Settled(Settlement::Unresolved(_)) => Ok(1),
            Phase::Settled(_) => Err(true),
            _ if inside.joined.len() + 1 >= JOINED_MAX => Err(false),
            _ => {
                inside.holders += 1;
                inside.joined.push(None);
                Ok(inside.joined.len())
            }
        }
    }

    /// It is in the queue now. False if everybody has left meanwhile.
    pub(crate) fn queue(&self) -> bool {
        let mut inside = self.inside.lock();
        if matches!(inside.phase, Phase::Waiting) {
            inside.phase = Phase::Queued;
        }
        matches!(inside.phase, Phase::Queued)
    }

    /// What it was claimed as, while it is.
    pub(crate) fn claimed(&self) -> Option<Claim> {
        match self.inside.lock().phase {
            Phase::Claimed(claim) => Some(claim),
            _ => None,
        }
    }

    /// The committer takes it. False if it was cancelled.
    pub(crate) fn claim(&self, claim: Claim) -> bool {
        let mut inside = self.inside.lock();
        let is_queued = matches!(inside.phase, Phase::Queued);
        if is_queued {
            inside.phase = Phase::Claimed(claim);
        }
        is_queued
    }

    /// Ends it for all holders. The first settlement counts. Gives whom to wake.
    pub(crate) fn settle(&self, settlement: Settlement, wake: &mut Vec<Waker>) {
        let mut inside = self.inside.lock();
        if matches!(inside.phase, Phase::Settled(_)) {
            return;
        }
        inside.phase = Phase::Settled(settlement);
        wake.extend(inside.waker.take());
        wake.extend(inside.joined.iter_mut().filter_map(Option::take));
    }

    /// The publisher has waited for long: it is woken, to set its own timer.
    pub(crate) fn tell(&self, wake: &mut Vec<Waker>) {
        let mut inside = self.inside.lock();
        if !inside.is_told && !matches!(inside.phase, Phase::Settled(_)) {
            inside.is_told = true;
            wake.extend(inside.waker.take());
        }
    }

    fn poll(&self, seat: usize, waker: &Waker) -> Look {
        let mut inside = self.inside.lock();
        if let Phase::Settled(settlement) = &inside.phase {
            return Look::Settled(settlement.clone());
        }
        let place = match seat {
            0 => Some(&mut inside.waker),
            joined => inside.joined.get_mut(joined - 1),
        };
        match place {
            Some(Some(old)) if old.will_wake(waker) => {}
            Some(place) => *place = Some(waker.clone()),
            None => {}
        }
        Look::Open { is_told: inside.is_told }
    }

    /// A holder leaves: by its deadline, or because its future was dropped.
    pub(crate) fn leave(&self, seat: usize, error: PublishError) -> Left {
        let mut wake = Vec::new();
        let left = self.leave_and(seat, error, &mut wake);
        wake_all(&mut wake);
        left
    }

    fn leave_and(&self, seat: usize, error: PublishError, wake: &mut Vec<Waker>) -> Left {
        let mut inside = self.inside.lock();
        if let Phase::Settled(settlement) = &inside.phase {
            return Left::Settled(settlement.clone());
        }
        inside.holders = inside.holders.saturating_sub(1);
        match seat {
            0 => inside.waker = None,
            joined => {
                if let Some(place) = inside.joined.get_mut(joined - 1) {
                    *place = None;
                }
            }
        }
        match inside.phase {
            // Its own publisher waits for the reservation, so without it the ticket never gets into the queue, and who
            // joined is told so. In the queue it stays for those who joined.
            Phase::Waiting if seat == 0 => {
                inside.phase = Phase::Settled(Settlement::NotStored(error));
                wake.extend(inside.joined.iter_mut().filter_map(Option::take));
                Left::Cancelled
            }
            Phase::Queued if inside.holders == 0 => {
                inside.phase = Phase::Settled(Settlement::NotStored(error));
                Left::Cancelled
            }
            Phase::Claimed(claim) => Left::GoesOn(Some(claim)),
            _ => Left::GoesOn(None),
        }
    }
}

/// A publish waiting for its outcome. It answers at the latest at its deadline. Dropping it withdraws what is not taken
/// up yet; what is taken up goes on, unanswered.
#[derive(Debug)]
#[must_use = "a ticket that is dropped withdraws its publish"]
pub struct Ticket {
    state: State,
    skipped: u32,
}

#[derive(Debug)]
enum State {
    /// Boxed, since an outcome is several times a pending ticket.
    Ready(Option<Box<PublishOutcome>>),
    Pending(Pending),
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) unit: QueuedUnit,
    /// 0: whose publish it is; else joined.
    pub(crate) seat: usize,
    pub(crate) partition: Arc<Partition>,
    pub(crate) chain: Option<Link>,
    pub(crate) joined: Option<Box<Joined>>,
    /// It is told when it has waited for long; until then it needs no timer.
    pub(crate) is_watched: bool,
    pub(crate) sleep: Option<Pin<Box<Sleep>>>,
}

/// What who joined another's publish has of their own.
#[derive(Debug)]
pub(crate) struct Joined {
    /// NotStored gives them back.
    pub(crate) rows: Bytes,
    pub(crate) expires: Instant,
    pub(crate) deadline: Duration,
}

impl Ticket {
    pub(crate) fn ready(outcome: PublishOutcome) -> Ticket {
        Ticket { state: State::Ready(Some(Box::new(outcome))), skipped: 0 }
    }

    pub(crate) fn pending(pending: Pending) -> Ticket {
        Ticket { state: State::Pending(pending), skipped: 0 }
    }

    /// Whether it relies on being told when it has waited for long.
    pub(crate) fn is_watched(&self) -> bool {
        matches!(&self.state, State::Pending(pending) if pending.is_watched)
    }

    /// It has waited for room: whether it may still rely on being told depends on what is left to it. True: it does.
    pub(crate) fn look_again(&mut self) -> bool {
        if let State::Pending(pending) = &mut self.state {
            let left = pending.expires().saturating_duration_since(Instant::now());
            pending.is_watched &= pending.partition.threads.deadlines.covers(left);
        }
        self.is_watched()
    }

    /// Records at the front that were stored before; known once the outcome is.
    pub(crate) fn skipped(&self) -> u32 {
        self.skipped
    }
}

impl Future for Ticket {
    type Output = PublishOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PublishOutcome> {
        let this = &mut *self;
        match &mut this.state {
            State::Ready(outcome) => match outcome.take() {
                Some(outcome) => Poll::Ready(*outcome),
                // Polled again after it was ready: a ticket has one outcome and has given it.
                None => Poll::Pending,
            },
            State::Pending(pending) => {
                let outcome = match pending.unit.cell.poll(pending.seat, cx.waker()) {
                    Look::Settled(settlement) => {
                        if let Settlement::Committed { skipped, .. } = settlement {
                            this.skipped = skipped;
                        }
                        pending.outcome(settlement)
                    }
                    Look::Open { is_told: false } if pending.is_watched => return Poll::Pending,
                    Look::Open { .. } => {
                        let expires = pending.expires();
                        let sleep =
                            pending.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(expires.into())));
                        match sleep.as_mut().poll(cx) {
                            Poll::Pending => return Poll::Pending,
                            Poll::Ready(()) => pending.give_up(),
                        }
                    }
                };
                this.state = State::Ready(None);
                Poll::Ready(outcome)
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let State::Pending(pending) = &self.state {
            pending.leave(PublishError::Withdrawn);
        }
    }
}

impl Pending {
    fn expires(&self) -> Instant {
        self.joined.as_ref().map_or(self.unit.expires, |own| own.expires)
    }

    fn break_chain(&self, by: &impl Coded) {
        if let Some(chain) = &self.chain {
            chain.break_by(by.code());
        }
    }

    fn outcome(&self, settlement: Settlement) -> PublishOutcome {
        match settlement {
            Settlement::Committed { first, count, epoch, class, duplicate, passed, skipped: _ } => {
                let partition = self.partition.id;
                PublishOutcome::Committed(Committed {
                    partition,
                    first,
                    count,
                    epoch,
                    class,
                    duplicate: duplicate || self.seat > 0,
                    timings: passed.map(|passed| passed.since(self.unit.admitted)).unwrap_or_default(),
                })
            }
            Settlement::NotStored(error) => {
                self.break_chain(&error);
                // These rows were encoded by this process a moment ago, so they decode.
                let records = envelope::decode(self.joined.as_ref().map_or(self.unit.body.rows(), |own| &own.rows))
                    .unwrap_or_default();
                PublishOutcome::NotStored(NotStored { error, records })
            }
            Settlement::Unresolved(cause) => self.unresolved(cause, None),
        }
    }

    fn unresolved(&self, cause: UnresolvedCause, claim: Option<Claim>) -> PublishOutcome {
        self.break_chain(&cause);
        self.partition.metrics.unresolved(&cause);
        // A ticket that others keep in the queue has no number yet; the tail of this moment says from where to look.
        let claim =
            claim.unwrap_or(Claim { epoch: Epoch::ZERO, ticket: TicketNumber::MAX, first: self.partition.tail.get() });
        let reference = Reference {
            channel: self.partition.channel_id,
            partition: self.partition.id,
            epoch: claim.epoch,
            ticket: claim.ticket,
            first: claim.first,
            count: self.unit.body.records(),
        };
        PublishOutcome::Unresolved(Unresolved { reference, cause })
    }

    fn give_up(&mut self) -> PublishOutcome {
        let deadline = self.joined.as_ref().map_or(self.unit.deadline, |own| own.deadline);
        match self.leave(PublishError::DeadlineBeforeClaim { deadline }) {
            Left::Settled(settlement) => self.outcome(settlement),
            Left::Cancelled => self.outcome(Settlement::NotStored(PublishError::DeadlineBeforeClaim { deadline })),
            Left::GoesOn(claim) => self.unresolved(UnresolvedCause::AnswerLate { deadline }, claim),
        }
    }

    fn leave(&self, error: PublishError) -> Left {
        let code = error.code();
        let left = self.unit.cell.leave(self.seat, error);
        if let (Left::Cancelled | Left::GoesOn(_), Some(chain)) = (&left, &self.chain) {
            chain.break_by(code);
        }
        if let Left::Cancelled = left {
            self.partition.forget_cancelled(&self.unit, code);
        }
        left
    }
}

/// One outcome per record of a publish whose records each want their own (C5), in order. `skipped`: records at the
/// front that were stored before.
pub(crate) fn split(outcome: PublishOutcome, count: u32, skipped: u32, into: &mut Vec<PublishOutcome>) {
    match outcome {
        PublishOutcome::Committed(all) => into.extend((0..count).map(|index| {
            let (first, duplicate) = match index.checked_sub(skipped) {
                Some(index) => (Offset(all.first.0.saturating_add(u64::from(index))), all.duplicate),
                None => (Offset::MAX, true),
            };
            PublishOutcome::Committed(Committed { first, count: 1, duplicate, ..all })
        })),
        PublishOutcome::NotStored(not) => {
            let mut records = not.records.into_iter();
            into.extend((0..count).map(|_| {
                let records = records.next().into_iter().collect();
                PublishOutcome::NotStored(NotStored { error: not.error.clone(), records })
            }));
        }
        PublishOutcome::Unresolved(all) => {
            into.extend((0..count).map(|_| PublishOutcome::Unresolved(all.clone())));
        }
    }
}
