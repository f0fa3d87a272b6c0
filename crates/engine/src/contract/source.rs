//! Where records come from: the source (controller's side) and its lanes (driver's side).

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use landfall_types::{Epoch, PartitionId, Place};

use super::{PlanError, SourceError, TableId, TableSpec};
use crate::{FailCause, OnTrimmed, PollCx, SourceBatch};

/// A lane's number inside its pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// What a source is.
#[derive(Clone, Debug)]
pub struct SourceProfile {
    /// `channel`, `kafka`, `postgres`.
    pub kind: &'static str,
    /// Survives restarts and is part of every stored position's key: a recreated channel has another one (E65).
    pub identity: String,
    /// Whether it ends.
    pub bounded: bool,
}

/// What a source says before it is opened; made without side effects.
#[derive(Clone, Debug, Default)]
pub struct SourcePlan {
    /// Its partitions as known now.
    pub partitions: Vec<PartitionId>,
    /// Of a change source, its tables as known now.
    pub tables: Vec<TableSpec>,
    /// Sentences for `check`.
    pub notes: Vec<String>,
}

/// What a source is opened with.
#[derive(Clone)]
pub struct SourceCx {
    /// The source's own record, as last persisted with the watermarks.
    pub record: Option<Bytes>,
    /// Wakes the controller: `poll_event` has something.
    pub waker: LaneWaker,
    /// What a lane does at rows that retention has freed. Where it stops, it tells the gap and gives nothing behind it,
    /// until it is opened anew: rows behind it that were settled first would carry the watermark over it (E67, I7).
    pub on_trimmed: OnTrimmed,
}

/// Wakes whoever polls. Cheap to clone and to call; calling it twice is as good as once.
#[derive(Clone)]
pub struct LaneWaker {
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl LaneWaker {
    /// A waker over a function that must not block.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        LaneWaker { wake: Arc::new(wake) }
    }

    /// Wakes the poller.
    pub fn wake(&self) {
        (self.wake)();
    }
}

impl std::fmt::Debug for LaneWaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LaneWaker")
    }
}

/// Held by the controller while partitions are being given up; dropping it lets the source go on (H10).
pub struct RevokeGuard {
    on_drop: Option<Box<dyn FnOnce() + Send>>,
}

impl RevokeGuard {
    /// A guard that calls `on_drop` once.
    pub fn new(on_drop: impl FnOnce() + Send + 'static) -> Self {
        RevokeGuard { on_drop: Some(Box::new(on_drop)) }
    }
}

impl Drop for RevokeGuard {
    fn drop(&mut self) {
        if let Some(on_drop) = self.on_drop.take() {
            on_drop();
        }
    }
}

impl std::fmt::Debug for RevokeGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RevokeGuard")
    }
}

/// Why rows are missing (I12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GapReason {
    /// Retention has passed them.
    Trimmed,
    /// They are damaged and quarantined.
    Damaged,
}

/// What a source tells the controller.
#[derive(Debug)]
pub enum SourceEvent {
    /// The whole set: every partition starts a new epoch.
    Assigned(Vec<PartitionId>),
    /// Tables that are new, or have another shape; before the first partition of each is told.
    Tables(Vec<TableSpec>),
    /// Joins the running set.
    Added(Vec<PartitionId>),
    /// To be given up; dropping the guard lets the source go on.
    Revoked(Vec<PartitionId>, RevokeGuard),
    /// Read to its end, settled, committed.
    Retired(Vec<PartitionId>),
    /// Rows the source no longer has.
    Gap(PartitionId, Range<Place>, GapReason),
    /// A commit is done.
    Committed(Vec<(PartitionId, Place)>),
    /// A commit failed; it is repeated by the commit clock.
    CommitFailed(SourceError),
    /// Read to its end: please settle and commit soon.
    CommitWanted(Vec<PartitionId>),
    /// A bounded source has nothing left.
    Drained,
}

/// Where records come from. Called by the controller thread alone. No call blocks, but for `plan` (before threads
/// exist) and `flush_commits`.
pub trait Source: Send {
    /// Its data plane.
    type Lane: SourceLane + 'static;

    /// What it is.
    fn profile(&self) -> SourceProfile;

    /// Every check of `open`, no side effect.
    fn plan(&self) -> Result<SourcePlan, PlanError>;

    /// The table that a partition is of; `None` for a record source. Fixed for the partition's life.
    fn table_of(&self, partition: PartitionId) -> Option<TableId> {
        let _ = partition;
        None
    }

    /// A table cannot take rows for a reason that only its destination or its owner can mend (a shape that does not fit,
    /// a destination that refuses it), or it can again (`None`). Its partitions are not polled meanwhile; whether the
    /// table is to be parked is the source's decision (P86).
    fn table_refused(&mut self, table: TableId, cause: Option<&FailCause>) {
        let _ = (table, cause);
    }

    /// Starts it.
    fn open(&mut self, cx: SourceCx) -> Result<(), SourceError>;

    /// The next event. `None` promises a wake once there is one.
    fn poll_event(&mut self) -> Result<Option<SourceEvent>, SourceError>;

    /// Where a partition starts when nothing is known of it (`from.start`); a place at or after its first record.
    fn start_of(&mut self, partition: PartitionId) -> Result<Place, SourceError>;

    /// A lane over these partitions; the first row of each is the first at or after its place. A source with tables has
    /// one lane at a time: partitions join and leave it ([`SourceLane::join`]), and it is opened anew after it failed.
    fn open_lane(&mut self, id: LaneId, at: &[(PartitionId, Place, Epoch)]) -> Result<Self::Lane, SourceError>;

    /// Goes into the same transaction as these watermarks. `None`: unchanged.
    fn record(&mut self, below: &[(PartitionId, Place)]) -> Option<Bytes>;

    /// Everything below is settled and persisted. Starts the work; the result is an event.
    fn commit(&mut self, below: &[(PartitionId, Place)]);

    /// The one bounded wait: until commits that were started have ended.
    fn flush_commits(&mut self, deadline: Instant) -> Result<(), SourceError>;

    /// No new rows; commits still work.
    fn stop_reading(&mut self);

    /// The end of what it holds now, per partition: what `lag_records` is counted against.
    fn tails(&self) -> Vec<(PartitionId, Place)>;

    /// Its part of `/v1/status`; small and bounded.
    fn report(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// How much one poll may return. One larger record is returned alone.
#[derive(Clone, Copy, Debug)]
pub struct PollLimit {
    /// Records.
    pub rows: usize,
    /// Payload bytes.
    pub bytes: usize,
}

/// What a poll returned.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a batch is moved once; a box would be an allocation for each")]
pub enum Polled {
    /// At most one source batch.
    Batch(SourceBatch),
    /// Nothing now; promises a wake.
    Empty,
    /// Nothing ever again.
    Finished,
}

/// The data plane of one partition, or of several (E12). Called by its driver alone.
pub trait SourceLane: Send {
    /// Its number.
    fn id(&self) -> LaneId;

    /// Its partitions.
    fn partitions(&self) -> &[PartitionId];

    /// At most one source batch within `limit`, of a partition that `cx.takes(p)`. Never blocks, never reads a file on
    /// this thread. `cx.batch(..)` is the only way to make a batch: it publishes the ack slot first (H1). `cx.waker()`
    /// is what to wake after Empty.
    fn poll(&mut self, cx: &mut PollCx<'_>, limit: PollLimit) -> Result<Polled, SourceError>;

    /// A partition joins the open lane (E12), from this place on. [`SourceError::Lane`]: it cannot serve that place any
    /// more, and the whole lane is opened anew; the others skip what they have by position.
    fn join(&mut self, partition: PartitionId, at: Place, epoch: Epoch) -> Result<(), SourceError> {
        let _ = (at, epoch);
        let text = format!("the lane takes no partition beside its own, and {partition} came");
        Err(SourceError::Lane { code: crate::codes::LANE_CONTRACT, text })
    }

    /// A partition has left the open lane: it was retired, or starts anew later.
    fn leave(&mut self, partition: PartitionId) {
        let _ = partition;
    }
}
