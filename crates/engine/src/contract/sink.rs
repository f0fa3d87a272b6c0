//! Destinations: what a sink promises (I9), the sealed batches it gets, and where dead letters go.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::future::BoxFuture;
use landfall_types::{Code, Epoch, PartitionId, Place, Timestamp};
use serde::Serialize;

use super::{BarrierError, OwnedRecord, PlanError, SinkError, Stage, TableNote, TableSpec};

/// The identity of a pipeline, part of every position's key: `[a-z0-9._-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PipelineId(pub String);

impl fmt::Display for PipelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A sink's number inside its pipeline, from 1; 0 is the chain itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SinkId(pub u8);

/// A shard's number inside its sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Ends of what is held, per partition.
pub type Positions = BTreeMap<PartitionId, Place>;

/// The source rows that a batch stands for, filtered ones included. Half-open, rising, chained: `start` is the
/// previous `end` of this partition and epoch, or a gap lies between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The partition.
    pub partition: PartitionId,
    /// Its assignment epoch in this pipeline.
    pub epoch: Epoch,
    /// The places, half-open.
    pub range: Range<Place>,
    /// How many source rows lie in `range`.
    pub rows: u32,
}

/// The name of a sealed batch: a hash of pipeline, sink, shard, source identity and ranges (E87).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommitId(pub u128);

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitId({self})")
    }
}

/// What a path to this sink promises after a crash at any point (I9, E6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Exactly once: the destination stores ends of ranges together with the rows.
    Positions,
    /// Exactly once: publication is rolled forward from a persisted plan.
    Redo,
    /// Exactly once inside the window: the destination drops a repeat.
    Token {
        /// What a repeat is recognised by.
        per: TokenScope,
        /// How long it is recognised; `None` has no end.
        window: Option<Duration>,
    },
    /// At least once.
    AtLeastOnce {
        /// The sentence that `check` prints.
        why: String,
    },
}

impl Guarantee {
    /// "exactly once" or "at least once", as printed by `check` and in the status.
    pub fn as_str(&self) -> &'static str {
        match self {
            Guarantee::Positions | Guarantee::Redo | Guarantee::Token { .. } => "exactly once",
            Guarantee::AtLeastOnce { .. } => "at least once",
        }
    }

    /// Why, in one sentence, as printed by `check`.
    pub fn why(&self) -> String {
        match self {
            Guarantee::Positions => {
                "each row's position is stored with the row, and a row already stored is not stored again".to_owned()
            }
            Guarantee::Redo => {
                "what is published is planned durably first, and an interrupted plan is carried out to its end"
                    .to_owned()
            }
            Guarantee::Token { per, window } => {
                let what = match per {
                    TokenScope::Batch => "each batch has a name",
                    TokenScope::Row => "each row has a number that it keeps over restarts",
                };
                let long =
                    window.map_or("for ever".to_owned(), |window| format!("within a window of {}", spelled(window)));
                format!("{what}, and the destination drops a repeat {long}")
            }
            Guarantee::AtLeastOnce { why } => why.clone(),
        }
    }
}

/// Hours, minutes or seconds, whichever is whole.
fn spelled(window: Duration) -> String {
    match window.as_secs() {
        0 => format!("{window:?}"),
        seconds if seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        seconds if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// What a token names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenScope {
    /// A sealed batch, by its commit id.
    Batch,
    /// A row, by a number that it carries.
    Row,
}

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct PlanCx {
    /// The pipeline.
    pub pipeline: PipelineId,
    /// The source's identity, which survives restarts.
    pub source: String,
    /// Whether peers may be asked; false under `check --offline`.
    pub online: bool,
}

/// How rows will reach the destination.
pub struct SinkPlan {
    /// The schema that the chain casts to (E109): the sink's columns, then the hidden columns that the sink wants.
    pub schema: SchemaRef,
    /// Sentences for `check`: what will be created, what is missing.
    pub notes: Vec<String>,
    /// What `open` needs of the plan; the sink's own.
    pub detail: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for SinkPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkPlan").field("schema", &self.schema).field("notes", &self.notes).finish_non_exhaustive()
    }
}

/// Which destination it is (a table id, a directory): part of a stored position's key (E65).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SinkIdentity(pub String);

/// Rows sealed for one write. The same bytes and id go out in every retry.
#[derive(Debug)]
pub struct SealedBatch {
    /// Its name.
    pub id: CommitId,
    /// The rows in order, hidden columns included; each part may be empty, all have the planned schema.
    pub parts: Vec<RecordBatch>,
    /// The source rows it stands for: per partition ascending and chained.
    pub covers: Vec<Covered>,
    /// Memory that `parts` keep alive.
    pub bytes: usize,
    /// The oldest record's time.
    pub oldest: Timestamp,
    /// Of a table's rows: their shape, and whether a copy begins or ends with them. A mark may come without rows.
    pub note: Option<TableNote>,
}

impl SealedBatch {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(RecordBatch::num_rows).sum()
    }
}

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The rows are durable at the destination.
    Durable,
    /// They were durable before this call.
    AlreadyThere,
    /// The writer holds them; durable after the next successful `barrier`. The engine forgets the rows.
    Accepted,
}

/// What a barrier has done: all batches that were Accepted before it are durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The destination's version of the last commit, where it has one.
    pub version: Option<u64>,
    /// How many batches were settled.
    pub batches: u64,
    /// How many rows were settled.
    pub rows: u64,
    /// Ends of what the destination now holds, for [`Guarantee::Positions`].
    pub positions: Positions,
}

/// A destination. Called by the builder and the controller; its futures run on the `io` threads.
pub trait Sink: Send + Sync {
    /// Everything that `open` would refuse, without side effects. `rows`: the query's columns, hidden ones included.
    fn plan<'a>(&'a self, rows: &'a SchemaRef, cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkPlan, PlanError>>;

    /// What this path promises.
    fn guarantee(&self) -> Guarantee;

    /// Creates what is missing and connects. Idempotent.
    fn open<'a>(&'a self, plan: &'a SinkPlan, cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>>;

    /// The same for a destination that positions are stored of: one that is gone is not made anew (E125).
    fn open_again<'a>(
        &'a self,
        plan: &'a SinkPlan,
        cx: &'a PlanCx,
        _before: &'a SinkIdentity,
    ) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        self.open(plan, cx)
    }

    /// Per partition, the end of what the destination holds durably for this pipeline and source identity;
    /// empty for any guarantee but [`Guarantee::Positions`].
    fn committed_positions<'a>(&'a self, cx: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>>;

    /// The same for another shape of a table, whose key may be another too.
    fn plan_shape<'a>(
        &'a self,
        spec: &'a TableSpec,
        rows: &'a SchemaRef,
        cx: &'a PlanCx,
    ) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        let _ = spec;
        self.plan(rows, cx)
    }

    /// Another shape of the table (E132), by the plan of [`Sink::plan_shape`]: batches whose note has this number come in `plan`'s schema from now on, beside
    /// those of earlier shapes that are still on their way. The destination may change together with the first of them.
    fn reshape<'a>(&'a self, shape: u32, plan: &'a SinkPlan, cx: &'a PlanCx) -> BoxFuture<'a, Result<(), SinkError>> {
        let _ = (plan, cx);
        Box::pin(async move {
            let text = format!("this sink cannot change its columns, as shape {shape} of the table would");
            Err(SinkError::Destination { code: crate::codes::PLAN, text })
        })
    }

    /// The writer of a shard, after `open`.
    fn writer(&self, shard: ShardId) -> Arc<dyn ShardWriter>;

    /// How long the writer may hold Accepted batches before the worker calls `barrier` (Delta's `commit_every`).
    fn barrier_every(&self) -> Option<Duration> {
        None
    }

    /// Whether batches must be written one after the other (E122).
    fn ordered(&self) -> bool {
        false
    }

    /// Whether a write may end as [`SinkError::Row`]. Where it cannot, the engine need not keep the original records
    /// of a batch at hand for dead letters; a row error is then the destination's fault.
    fn refuses_rows(&self) -> bool {
        true
    }

    /// Memory that one shard's writer may hold besides the batch it is given (X of E95); `check` adds it up.
    fn writer_bytes(&self) -> u64 {
        0
    }

    /// Its part of `/v1/status`; small and bounded.
    fn report(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// Writes the sealed batches of one shard. Calls come from one worker; `write` calls of an ordered sink, and all
/// `barrier` calls, never overlap with another call.
pub trait ShardWriter: Send + Sync {
    /// Writes a batch whole. Cancelling it leaves the batch unknown; the same batch may come again under the same id.
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>>;

    /// Makes all that was Accepted durable.
    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>>;

    /// Whether a batch is stored; `None`: cannot tell.
    fn was_committed<'a>(&'a self, id: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>>;

    /// Whether the destination answers.
    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>>;

    /// Whether the open group is as large as the writer wants it: the worker then calls `barrier` at once.
    fn wants_barrier(&self) -> bool {
        false
    }

    /// Whether the open group ends inside a transaction or a copy: the worker then waits for its end, at most one more
    /// `barrier_every` (E129).
    fn is_inside_transaction(&self) -> bool {
        false
    }

    /// Forgets all that was Accepted and not settled: the partitions restart from the committed positions.
    fn reset<'a>(&'a self) -> BoxFuture<'a, ()>;
}

/// A record set aside.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The record as it was.
    pub record: OwnedRecord,
    /// The pipeline that refused it.
    pub pipeline: PipelineId,
    /// The sink, where a sink refused it.
    pub sink: Option<String>,
    /// Where in the chain.
    pub stage: Stage,
    /// Why, for programs.
    pub code: Code,
    /// Why, for people; at most 1 KiB.
    pub text: String,
    /// The source's identity.
    pub source: String,
}

/// Where dead letters go.
pub trait DeadLetter: Send + Sync {
    /// Ok: all of them are durable. A repeat of a letter already stored is no second one, inside its key window.
    fn store<'a>(&'a self, letters: &'a [Letter]) -> BoxFuture<'a, Result<(), SinkError>>;
}
