//! What has gone through the queue: counters that balance at every instant (P34, P41).
//!
//! Each has one writer, so a log record costs two plain stores and no locked instruction. `in flight` is not stored:
//! it is what was admitted and is neither processed nor dropped, and so cannot disagree. What the caps bound is *held*:
//! it rises before a record enters the buffer and falls when its whole bundle is settled (P21).

use super::sync::{AtomicU64, Ordering};
use crate::Lsn;

/// See the module. Each side has cache lines of its own: a counter that one side bumps must not slow the other.
#[derive(Debug)]
pub(super) struct Counters {
    pump: PumpSide,
    worker: WorkerSide,
    settled: Settled,
}

#[derive(Debug)]
#[repr(align(128))]
struct PumpSide {
    admitted: AtomicU64,
    charged_bytes: AtomicU64,
    admitted_end: AtomicU64,
    room_wait_nanos: AtomicU64,
}

#[derive(Debug)]
#[repr(align(128))]
struct WorkerSide {
    processed: AtomicU64,
    dispatched_end: AtomicU64,
    queued_nanos: AtomicU64,
}

/// Written once per bundle, by whoever ends it.
#[derive(Debug)]
#[repr(align(128))]
struct Settled {
    dropped: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
}

/// One moment's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Log records that entered.
    pub admitted: u64,
    /// Log records that the inner sink has taken.
    pub processed: u64,
    /// Log records given up: behind a failure, a panic, an abort.
    pub dropped: u64,
    /// `admitted - processed - dropped`.
    pub in_flight: u64,
    /// Log records that count against `max_records`: those in flight, and those of the bundle at work.
    pub held_records: u64,
    /// Memory that counts against `max_bytes`.
    pub held_bytes: u64,
    /// How long the pump has waited for room.
    pub room_wait_nanos: u64,
    /// How long bundles have waited for pick-up.
    pub queued_nanos: u64,
    /// The highest end of a log record that the inner sink has taken.
    pub dispatched_end: Lsn,
    /// The highest end of a log record that entered.
    pub admitted_end: Lsn,
}

/// A step of a counter that only the calling side writes.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).saturating_add(by), Ordering::Release);
}

fn raise(counter: &AtomicU64, to: u64) {
    if counter.load(Ordering::Relaxed) < to {
        counter.store(to, Ordering::Release);
    }
}

impl Counters {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Counters {
            pump: PumpSide { admitted: zero(), charged_bytes: zero(), admitted_end: zero(), room_wait_nanos: zero() },
            worker: WorkerSide { processed: zero(), dispatched_end: zero(), queued_nanos: zero() },
            settled: Settled { dropped: zero(), records: zero(), bytes: zero() },
        }
    }

    /// Pump: a record is about to enter.
    pub(super) fn admit(&self, end: Lsn) {
        bump(&self.pump.admitted, 1);
        raise(&self.pump.admitted_end, end.0);
    }

    /// Pump: memory is about to be taken.
    pub(super) fn charge(&self, bytes: u64) {
        bump(&self.pump.charged_bytes, bytes);
    }

    /// Pump: it has waited this long.
    pub(super) fn room_waited(&self, nanos: u64) {
        bump(&self.pump.room_wait_nanos, nanos);
    }

    /// Worker: the inner sink has taken one.
    pub(super) fn dispatched(&self, end: Lsn) {
        bump(&self.worker.processed, 1);
        raise(&self.worker.dispatched_end, end.0);
    }

    /// Worker: a bundle waited this long.
    pub(super) fn queued(&self, nanos: u64) {
        bump(&self.worker.queued_nanos, nanos);
    }

    /// A bundle is over: `dropped` of its records were not taken.
    pub(super) fn settle(&self, records: u64, dropped: u64, bytes: u64) {
        self.settled.dropped.fetch_add(dropped, Ordering::AcqRel);
        self.settled.records.fetch_add(records, Ordering::AcqRel);
        self.settled.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(super) fn dispatched_end(&self) -> Lsn {
        Lsn(self.worker.dispatched_end.load(Ordering::Acquire))
    }

    /// Pump: log records that count against the cap.
    pub(super) fn held_records(&self) -> u64 {
        let settled = self.settled.records.load(Ordering::Acquire);
        self.pump.admitted.load(Ordering::Acquire).saturating_sub(settled)
    }

    /// Pump: memory that counts against the cap.
    pub(super) fn held_bytes(&self) -> u64 {
        let settled = self.settled.bytes.load(Ordering::Acquire);
        self.pump.charged_bytes.load(Ordering::Acquire).saturating_sub(settled)
    }

    /// What went out is read before what came in: no moment shows more out than in.
    pub(super) fn read(&self) -> QueueCounts {
        let processed = self.worker.processed.load(Ordering::Acquire);
        let dropped = self.settled.dropped.load(Ordering::Acquire);
        let (held_records, held_bytes) = (self.held_records(), self.held_bytes());
        let dispatched_end = self.dispatched_end();
        let admitted = self.pump.admitted.load(Ordering::Acquire);
        QueueCounts {
            admitted,
            processed,
            dropped,
            in_flight: admitted.saturating_sub(processed).saturating_sub(dropped),
            held_records,
            held_bytes,
            room_wait_nanos: self.pump.room_wait_nanos.load(Ordering::Relaxed),
            queued_nanos: self.worker.queued_nanos.load(Ordering::Relaxed),
            dispatched_end,
            admitted_end: Lsn(self.pump.admitted_end.load(Ordering::Acquire)),
        }
    }
}
