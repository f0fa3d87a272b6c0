//! A driver thread: polls its lanes in turn, pushes their batches down its chain or that of
//! their table, and keeps what is refused (E9–E61).
//!
//! It owns a disjoint set of lanes, their parked batches, one chain and the issue side of those lanes' rings (I5). It
//! never waits for room: a batch that cannot go on is parked in its slot while control, other lanes and flushes go on
//! (I6, I13). It sleeps only on its waker. A panic in user code fails its batch; after a fatal error the chain is
//! dropped at once, and the thread stays to answer every barrier.

mod chains;
mod lane;
mod leave;
mod pass;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use landfall_types::{Clock, PartitionId, Place};

use arrow_schema::SchemaRef;

use crate::chain::{Chain, Flushed};
use crate::contract::{EngineError, LaneId, LaneWaker, PollLimit, SourceLane, TableId};
use crate::core::{FailCause, Issuer, Mailbox, Wake, Waker};
use crate::meters::DriverMeters;

pub(crate) use chains::Chains;
use lane::LaneState;
use leave::Leaving;

/// What a lane comes with.
#[derive(Debug)]
pub(crate) struct NewLane<L> {
    pub(crate) id: LaneId,
    pub(crate) lane: L,
    pub(crate) slots: Vec<NewSlot>,
}

/// One partition of a new lane.
#[derive(Debug)]
pub(crate) struct NewSlot {
    pub(crate) issuer: Issuer,
    /// The table it is of.
    pub(crate) table: Option<TableId>,
    /// Per sink (0: the chain), the place below which it has everything.
    pub(crate) skip: Vec<Place>,
    /// Records are polled alone up to here: one of them panics the chain (E61).
    pub(crate) alone_until: Option<Place>,
}

/// What the controller tells a driver. Handled in sending order before the next poll (E14).
#[derive(Debug)]
pub(crate) enum Command<L> {
    /// A lane with its rings.
    Add(Box<NewLane<L>>),
    /// The lanes are not polled any more; their parked batches and what is coalesced have until the deadline; then
    /// one arrival.
    Stop { lanes: Vec<LaneId>, deadline: Instant, barrier: u64 },
    /// A partition joins an open lane, from this place on (E12).
    Join { lane: LaneId, slot: Box<NewSlot>, at: Place },
    /// A partition leaves its lane at once, without a flush; then one arrival.
    Leave { lane: LaneId, partition: PartitionId, barrier: u64 },
    /// A table's chain for one of its shapes.
    Table { table: TableId, shape: u32, chain: Box<Chain> },
    /// The lanes leave at once, without a flush; then one arrival.
    Drop { lanes: Vec<LaneId>, barrier: u64 },
    /// Everything is flushed until the deadline; then the chain is dropped, one arrival, and the thread ends.
    Drain { deadline: Instant, barrier: u64 },
}

/// What a driver tells the controller.
#[derive(Debug)]
pub(crate) enum DriverReport {
    /// A barrier is reached.
    Arrived { driver: usize, barrier: u64 },
    /// A lane cannot go on as it is.
    LaneFailed { lane: LaneId, cause: FailCause },
    /// A batch waits for the chain of this shape.
    ShapeWanted { table: TableId, shape: u32, schema: SchemaRef, key: Arc<[Arc<str>]> },
    /// The source as a whole cannot go on.
    SourceFailed(FailCause),
    /// The chain is gone; nothing more is pushed here.
    Fatal { driver: usize, error: EngineError },
    /// A partition stands at its ceiling: what was accepted should be settled soon (E84).
    Gated(PartitionId),
    /// The thread has ended.
    Ended { driver: usize },
}

/// The heartbeat of a thread (E78).
#[derive(Debug)]
pub(crate) struct Beat {
    pub(crate) name: String,
    started: Instant,
    micros: AtomicU64,
    busy_permille: AtomicU64,
}

impl Beat {
    pub(crate) fn new(name: String, now: Instant) -> Arc<Self> {
        Arc::new(Beat { name, started: now, micros: AtomicU64::new(0), busy_permille: AtomicU64::new(0) })
    }

    pub(crate) fn beat(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.started).as_micros();
        self.micros.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn set_busy(&self, share: f64) {
        self.busy_permille.store((share.clamp(0.0, 1.0) * 1000.0) as u64, Ordering::Relaxed);
    }

    pub(crate) fn age(&self, now: Instant) -> Duration {
        let beat = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        now.saturating_duration_since(self.started).saturating_sub(beat)
    }

    pub(crate) fn busy(&self) -> f64 {
        self.busy_permille.load(Ordering::Relaxed) as f64 / 1000.0
    }
}

/// What a driver is made with.
pub(crate) struct DriverCx<L> {
    pub(crate) index: usize,
    pub(crate) commands: Arc<Mailbox<Command<L>>>,
    pub(crate) report: Arc<dyn Fn(DriverReport) + Send + Sync>,
    pub(crate) limit: PollLimit,
    pub(crate) max_pending_bytes: u64,
    pub(crate) idle_flush: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) meters: DriverMeters,
    pub(crate) beat: Arc<Beat>,
}

/// How a driver goes on after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Another pass at once.
    Go,
    /// Nothing to do until a wake or a timer.
    Sleep,
    /// The thread ends.
    End,
}

/// See the module.
pub(crate) struct Driver<L> {
    cx: DriverCx<L>,
    waker: Arc<Waker>,
    lane_waker: LaneWaker,
    /// None after a fatal error.
    chains: Option<Chains>,
    lanes: Vec<LaneState<L>>,
    free_slots: Vec<usize>,
    slots: usize,
    next_lane: usize,
    /// Lanes that were asked since the last data and had none, or no room.
    empty_round: usize,
    leaving: Vec<Leaving>,
    /// When the first of the data came that no lull has flushed yet.
    unflushed_since: Option<Instant>,
    wants_flush: bool,
    parked_count: u64,
    /// A flush was refused; it goes on when a shard has room, which wakes the thread.
    is_flush_refused: bool,
    /// The last sleep ended by a timer: work that is found now was not announced.
    woke_by_timer: bool,
    busy_since: Instant,
    slept: Duration,
}

impl<L: SourceLane> Driver<L> {
    pub(crate) fn new(cx: DriverCx<L>, chains: Chains) -> Self {
        let waker = cx.commands.waker().clone();
        let to_wake = waker.clone();
        let now = cx.clock.instant();
        Driver {
            waker,
            lane_waker: LaneWaker::new(move || to_wake.wake(Wake::DATA)),
            chains: Some(chains),
            lanes: Vec::new(),
            free_slots: Vec::new(),
            slots: 0,
            next_lane: 0,
            empty_round: 0,
            leaving: Vec::new(),
            unflushed_since: None,
            wants_flush: false,
            parked_count: 0,
            is_flush_refused: false,
            woke_by_timer: false,
            busy_since: now,
            slept: Duration::ZERO,
            cx,
        }
    }

    /// Runs until a drain or a stop has ended it.
    pub(crate) fn run(mut self) {
        self.waker.own();
        loop {
            let now = self.cx.clock.instant();
            self.cx.beat.beat(now);
            let next = self.pass(now);
            self.measure(now);
            match next {
                Next::Go => {}
                Next::Sleep => {
                    let timeout = self.until_timer(now);
                    let asleep = Instant::now();
                    let why = self.waker.park(Some(timeout));
                    self.slept += asleep.elapsed();
                    self.woken(why);
                }
                Next::End => break,
            }
        }
        // Whatever is still held fails here: the chain and the lanes are dropped before the arrival is told.
        self.chains = None;
        self.lanes.clear();
        (self.cx.report)(DriverReport::Ended { driver: self.cx.index });
    }

    fn woken(&mut self, why: Wake) {
        if why.has(Wake::FLUSH) {
            self.wants_flush = true;
        }
        self.empty_round = 0;
        self.is_flush_refused = false;
        self.woke_by_timer = why == Wake::NONE;
        if why.has(Wake::STOP) {
            self.leaving.push(Leaving::at_once());
        }
    }

    fn measure(&mut self, now: Instant) {
        const WINDOW: Duration = Duration::from_secs(1);
        let window = now.saturating_duration_since(self.busy_since);
        if window >= WINDOW {
            let busy = 1.0 - self.slept.as_secs_f64() / window.as_secs_f64();
            self.cx.beat.set_busy(busy);
            self.cx.meters.busy.set(busy.clamp(0.0, 1.0));
            self.busy_since = now;
            self.slept = Duration::ZERO;
        }
    }

    /// The chain is dropped at once: its senders close, what it holds fails, and nothing later can be committed past
    /// it (E50). Only the first fatal is told.
    fn fatal(&mut self, error: EngineError) {
        if self.chains.take().is_some() {
            for lane in &mut self.lanes {
                lane.fail_parked(&FailCause::new(error.code, error.text.as_str()));
            }
            (self.cx.report)(DriverReport::Fatal { driver: self.cx.index, error });
        }
    }

    fn flush(&mut self) -> Flushed {
        match &mut self.chains {
            Some(chains) => chains.flush(),
            None => Flushed::Done,
        }
    }

    /// The next moment at which something is due without a wake.
    fn until_timer(&self, now: Instant) -> Duration {
        const HEARTBEAT: Duration = Duration::from_secs(5);
        const SAFETY: Duration = Duration::from_millis(250);
        let mut until = HEARTBEAT;
        let mut due = |at: Instant| until = until.min(at.saturating_duration_since(now));
        if let (Some(since), false) = (self.unflushed_since, self.is_flush_refused) {
            due(since + self.cx.idle_flush);
        }
        for lane in &self.lanes {
            lane.backing_off_until().into_iter().for_each(&mut due);
        }
        for leaving in &self.leaving {
            due(leaving.deadline(now));
        }
        if self.is_flush_refused || self.lanes.iter().any(LaneState::has_parked) {
            // A ready handle has no wake of its own; and a lost wake shows when this look finds work.
            due(now + SAFETY);
        }
        until.max(Duration::from_micros(50))
    }
}
