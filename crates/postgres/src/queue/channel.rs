//! The shared part of the queue: bundles on their way, spare arenas, the first failure, and who waits for what.
//!
//! One pump sends, one queue worker receives. A send never waits: what is sent was admitted before (P11), so the caps
//! bound the channel. The failure is written once, before the channel closes, and read without a lock (P27, P34).
//! Whoever registers to be woken looks again under the same lock under which the other side takes the waker: no wake
//! is lost (loom-tested).

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use landfall_types::Clock;

use super::arena::Arena;
use super::counters::Counters;
use super::error::QueueError;
use super::sync::{Arc, AtomicBool, Mutex, Ordering};
use super::trace::{BundleTrace, TransactionTrace};
use crate::log_record::LogRecord;

/// How many arenas are kept for the next bundles (P12).
const SPARE_ARENAS: usize = 4;

/// One bundle as it lies in the channel.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) arena: Arena,
    /// When its first record entered; only with tracing on.
    pub(super) opened_at: Option<Instant>,
    /// When it was sent (P19).
    pub(super) shipped_at: Instant,
}

#[derive(Debug)]
struct Lane {
    parcels: VecDeque<Parcel>,
    spare: Vec<Arena>,
    pump: Option<Waker>,
    worker: Option<Waker>,
    is_pump_gone: bool,
    is_worker_gone: bool,
}

/// What both sides share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) counters: Counters,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) trace: Arc<TransactionTrace>,
    failure: OnceLock<QueueError>,
    is_worker_alive: AtomicBool,
    /// Arenas above this are not kept: one large message must not stay in memory.
    spare_cost_max: u64,
    lane: Mutex<Lane>,
}

impl Shared {
    pub(super) fn new(clock: Arc<dyn Clock>, trace: Arc<TransactionTrace>, spare_cost_max: u64) -> Arc<Self> {
        Arc::new(Shared {
            counters: Counters::new(),
            clock,
            trace,
            failure: OnceLock::new(),
            is_worker_alive: AtomicBool::new(true),
            spare_cost_max,
            lane: Mutex::new(Lane {
                parcels: VecDeque::new(),
                spare: Vec::new(),
                pump: None,
                worker: None,
                is_pump_gone: false,
                is_worker_gone: false,
            }),
        })
    }

    /// The first failure, for everyone who asks (P38).
    pub(super) fn failure(&self) -> Option<&QueueError> {
        self.failure.get()
    }

    /// Stores the failure unless there is one; says whether it did.
    pub(super) fn fail(&self, error: QueueError) -> bool {
        self.failure.set(error).is_ok()
    }

    pub(super) fn is_worker_alive(&self) -> bool {
        self.is_worker_alive.load(Ordering::Acquire)
    }

    pub(super) fn worker_ends(&self) {
        self.is_worker_alive.store(false, Ordering::Release);
    }

    /// An arena that has been round before, if one is kept.
    pub(super) fn take_spare(&self) -> Option<Arena> {
        self.lane.lock().spare.pop()
    }

    /// Keeps an emptied arena for later, if it is worth it.
    pub(super) fn keep_spare(&self, mut arena: Arena) {
        if arena.cost() == 0 || arena.cost() > self.spare_cost_max {
            return;
        }
        arena.clear();
        let mut lane = self.lane.lock();
        if lane.spare.len() < SPARE_ARENAS {
            lane.spare.push(arena);
        }
    }

    /// Pump: sends a bundle. Behind a worker that is gone it is settled as dropped.
    pub(super) fn ship(&self, parcel: Parcel) {
        let (refused, worker) = {
            let mut lane = self.lane.lock();
            if lane.is_worker_gone {
                (Some(parcel), None)
            } else {
                lane.parcels.push_back(parcel);
                (None, lane.worker.take())
            }
        };
        if let Some(parcel) = refused {
            self.settle(parcel.arena, 0);
        }
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Pump: nothing more comes.
    pub(super) fn pump_ends(&self) {
        let worker = {
            let mut lane = self.lane.lock();
            lane.is_pump_gone = true;
            lane.worker.take()
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Pump: to be woken when a bundle is settled or the worker is gone. The caller looks again afterwards.
    pub(super) fn watch_room(&self, cx: &Context<'_>) {
        let mut lane = self.lane.lock();
        match &lane.pump {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => lane.pump = Some(cx.waker().clone()),
        }
    }

    /// Worker: the next bundle; `None` when the pump is gone and all are taken.
    pub(super) fn poll_pop(self: &Arc<Self>, cx: &Context<'_>) -> Poll<Option<Bundle>> {
        let parcel = {
            let mut lane = self.lane.lock();
            match lane.parcels.pop_front() {
                Some(parcel) => parcel,
                None if lane.is_pump_gone => return Poll::Ready(None),
                None => {
                    lane.worker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        };
        Poll::Ready(Some(Bundle::picked_up(parcel, self)))
    }

    /// Worker: it will take no more. What is queued is settled as dropped; the pump is woken and finds the failure.
    pub(super) fn worker_closes(&self) {
        let (parcels, pump) = {
            let mut lane = self.lane.lock();
            lane.is_worker_gone = true;
            (std::mem::take(&mut lane.parcels), lane.pump.take())
        };
        for parcel in parcels {
            self.settle(parcel.arena, 0);
        }
        if let Some(pump) = pump {
            pump.wake();
        }
    }

    /// Ends a bundle of which `taken` records were dispatched: counts fall, the arena is kept, the pump is woken.
    fn settle(&self, mut arena: Arena, taken: usize) {
        let (records, bytes) = (arena.len() as u64, arena.cost());
        self.counters.settle(records, records.saturating_sub(taken as u64), bytes);
        arena.clear();
        let is_worth_keeping = bytes > 0 && bytes <= self.spare_cost_max;
        let pump = {
            let mut lane = self.lane.lock();
            if is_worth_keeping && lane.spare.len() < SPARE_ARENAS {
                lane.spare.push(std::mem::take(&mut arena));
            }
            lane.pump.take()
        };
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}

/// A bundle at work. Dropping it settles it: what was not dispatched counts as dropped, whatever the way out (P26).
#[derive(Debug)]
pub(super) struct Bundle {
    arena: Arena,
    at: usize,
    trace: Option<BundleTrace>,
    shared: Arc<Shared>,
}

impl Bundle {
    fn picked_up(parcel: Parcel, shared: &Arc<Shared>) -> Self {
        let now = shared.clock.instant();
        let queued = now.saturating_duration_since(parcel.shipped_at);
        shared.counters.queued(u64::try_from(queued.as_nanos()).unwrap_or(u64::MAX));
        let trace = if shared.trace.is_on() { shared.trace.picked_up(&parcel, queued) } else { None };
        Bundle { arena: parcel.arena, at: 0, trace, shared: Arc::clone(shared) }
    }

    pub(super) fn view(&mut self) -> BundleView<'_> {
        BundleView { bundle: self }
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        self.shared.settle(std::mem::take(&mut self.arena), self.at);
    }
}

/// A bundle on its way through a sink: the current record, and the step to the next one.
///
/// A record counts as dispatched when [`advance`](BundleView::advance) is called, so that the balance of the queue
/// holds at every instant, in the middle of a bundle too (P41).
#[derive(Debug)]
pub struct BundleView<'a> {
    bundle: &'a mut Bundle,
}

impl BundleView<'_> {
    /// The current record; `None` when the bundle is done.
    pub fn current(&self) -> Option<LogRecord<'_>> {
        self.bundle.arena.get(self.bundle.at)
    }

    /// How many records are left, with the current one.
    pub fn remaining(&self) -> usize {
        self.bundle.arena.len().saturating_sub(self.bundle.at)
    }

    /// The current record has been handled.
    pub fn advance(&mut self) {
        if let Some(record) = self.bundle.arena.get(self.bundle.at) {
            self.bundle.shared.counters.dispatched(record.end_lsn);
            self.bundle.at += 1;
        }
    }

    /// Whether a record of the bundle belongs to a sampled transaction (P33). Asked once per call of a sink.
    pub fn is_traced(&self) -> bool {
        self.bundle.trace.is_some()
    }

    /// The span of the current record; disabled unless its transaction is sampled.
    pub fn span(&self) -> tracing::Span {
        match (&self.bundle.trace, self.current()) {
            (Some(trace), Some(record)) => trace.record(&record),
            _ => tracing::Span::none(),
        }
    }
}
