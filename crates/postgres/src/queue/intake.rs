//! The pump's side of the queue, without a runtime: room, the open bundle, shipping (P11–P17).
//!
//! Only one pump exists, so what it has seen to be free stays free until it takes it: the caps are never passed, and a
//! record costs no locked instruction.

use std::task::{Context, Poll};
use std::time::Instant;

use super::arena::{Arena, Need};
use super::channel::{Parcel, Shared};
use super::error::QueueError;
use super::settings::QueueSettings;
use super::sync::Arc;
use crate::log_record::LogRecord;

/// Room for one log record of a size: proof that it may enter. Given back by dropping it; void after a flush.
#[must_use = "room is asked for to let a log record in"]
#[derive(Debug)]
pub struct Room {
    need: Need,
}

#[derive(Debug)]
pub(super) struct Intake {
    pub(super) shared: Arc<Shared>,
    settings: QueueSettings,
    open: Arena,
    opened_at: Option<Instant>,
    waits_since: Option<Instant>,
}

impl Intake {
    pub(super) fn new(shared: Arc<Shared>, settings: QueueSettings) -> Self {
        Intake { shared, settings, open: Arena::default(), opened_at: None, waits_since: None }
    }

    /// Room for one record, or pending with the waker registered. What is open is shipped before it waits: a commit
    /// must not be stranded, and the worker may need it to make room.
    pub(super) fn poll_room(&mut self, cx: &Context<'_>, need: Need) -> Poll<Result<Room, QueueError>> {
        let mut is_watching = false;
        loop {
            self.refuse_after_failure()?;
            if self.take_room(need) {
                if let Some(since) = self.waits_since.take() {
                    let waited = self.shared.clock.instant().saturating_duration_since(since);
                    self.shared.counters.room_waited(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
                }
                return Poll::Ready(Ok(Room { need }));
            }
            self.ship();
            if is_watching {
                self.waits_since.get_or_insert_with(|| self.shared.clock.instant());
                return Poll::Pending;
            }
            // Once more after the waker is in place: what was settled in between woke nobody.
            self.shared.watch_room(cx);
            is_watching = true;
        }
    }

    /// The first failure, or pending with the waker registered: who waits for the peer must hear that nobody works any more.
    pub(super) fn poll_failure(&mut self, cx: &Context<'_>) -> Poll<QueueError> {
        self.shared.watch_room(cx);
        match self.refuse_after_failure() {
            Err(error) => Poll::Ready(error),
            Ok(()) => Poll::Pending,
        }
    }

    /// Starts a new wait: an abandoned one does not count on.
    pub(super) fn forget_wait(&mut self) {
        self.waits_since = None;
    }

    /// Whether a record of this size may enter now; then its memory is charged and there.
    pub(super) fn take_room(&mut self, need: Need) -> bool {
        let counters = &self.shared.counters;
        if counters.held_records() >= self.settings.max_records {
            return false;
        }
        if !self.open.is_empty() && self.open.used().saturating_add(need.bytes) > self.settings.batch_bytes {
            self.ship();
        }
        if self.open.cost() == 0 {
            self.take_spare();
        }
        let (now, then) = (self.open.cost(), self.open.shape_for(need));
        if then.cost() == now || self.affords(then.cost().saturating_sub(now)) {
            self.grow(now, then);
            return true;
        }
        if !self.open.is_empty() {
            return false;
        }
        self.release_open();
        let exactly = Arena::shape_for_exactly(need);
        // Larger than the whole cap: alone, when nothing else is in flight (P11).
        if self.affords(exactly.cost()) || self.shared.counters.held_records() == 0 {
            self.grow(0, exactly);
            return true;
        }
        false
    }

    fn affords(&self, more: u64) -> bool {
        self.shared.counters.held_bytes().saturating_add(more) <= self.settings.max_bytes
    }

    fn grow(&mut self, now: u64, shape: super::arena::Shape) {
        if shape.cost() == now {
            return;
        }
        self.shared.counters.charge(shape.cost().saturating_sub(now));
        self.open.grow_to(shape);
        debug_assert_eq!(self.open.cost(), shape.cost(), "an arena grows by what was charged");
    }

    fn take_spare(&mut self) {
        let Some(spare) = self.shared.take_spare() else { return };
        if self.affords(spare.cost()) {
            self.shared.counters.charge(spare.cost());
            self.open = spare;
        } else {
            self.shared.keep_spare(spare);
        }
    }

    /// Gives back the memory of an open bundle that has nothing in it.
    fn release_open(&mut self) {
        let open = std::mem::take(&mut self.open);
        self.shared.counters.settle(0, 0, open.cost());
        self.shared.keep_spare(open);
    }

    /// Lets a record in (P13): one copy; a full bundle ships.
    pub(super) fn admit(&mut self, room: Room, record: &LogRecord<'_>) -> Result<(), QueueError> {
        self.refuse_after_failure()?;
        let need = Need::of(record);
        let refused = || QueueError::Room { bytes: need.bytes, room: room.need.bytes };
        if !room.need.covers(need) {
            return Err(refused());
        }
        if self.open.cost() != self.open.shape_for(need).cost() && !self.take_room(need) {
            return Err(refused());
        }
        if self.open.is_empty() && self.shared.trace.is_on() {
            self.opened_at = Some(self.shared.clock.instant());
        }
        self.shared.counters.admit(record.end_lsn);
        self.open.push(record);
        if self.open.len() >= self.settings.batch_records || self.open.used() >= self.settings.batch_bytes {
            self.ship();
        }
        Ok(())
    }

    /// Ships what is open (P16).
    pub(super) fn flush(&mut self) -> Result<(), QueueError> {
        self.refuse_after_failure()?;
        self.ship();
        Ok(())
    }

    /// The first failure; what is open behind it is given up.
    fn refuse_after_failure(&mut self) -> Result<(), QueueError> {
        if self.shared.is_worker_alive() {
            return Ok(());
        }
        self.give_up_open();
        Err(self.shared.failure().cloned().unwrap_or(QueueError::Ended))
    }

    fn ship(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let mut arena = std::mem::take(&mut self.open);
        if arena.is_sparse() {
            let fitted = arena.fitted();
            self.shared.counters.settle(0, 0, arena.cost().saturating_sub(fitted.cost()));
            self.shared.keep_spare(std::mem::replace(&mut arena, fitted));
        }
        if self.shared.trace.is_on() {
            self.shared.trace.note_shipped(arena.xids());
        }
        let shipped_at = self.shared.clock.instant();
        self.shared.ship(Parcel { arena, opened_at: self.opened_at.take(), shipped_at });
    }

    fn give_up_open(&mut self) {
        let open = std::mem::take(&mut self.open);
        self.shared.counters.settle(open.len() as u64, open.len() as u64, open.cost());
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.give_up_open();
    }
}
