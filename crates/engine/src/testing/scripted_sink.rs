//! A destination in memory that does per call what a script says, and outlives the pipelines that write to it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::future::BoxFuture;
use landfall_types::{Code, PartitionId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::contract::{
    BarrierError, CommitId, DeadLetter, Guarantee, Letter, PlanCx, PlanError, Positions, SealedBatch, Settled, ShardId,
    ShardWriter, Sink, SinkError, SinkIdentity, SinkPlan, Stage, Written, columns,
};

/// What one call of `write` (or of `barrier`, for [`ScriptedSink::script_barrier`]) does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Stores the rows.
    Store,
    /// Fails in a passing way; nothing is stored.
    Later,
    /// The destination is at fault; nothing is stored.
    Refuse,
    /// The rows of these indices are refused by name.
    Rows(Vec<u32>),
    /// The answer is lost; nothing was stored.
    LostBefore,
    /// The answer is lost after everything was stored.
    LostAfter,
    /// Never answers.
    Hang,
    /// Panics before anything is stored.
    Panic,
    /// Another writer owns the positions.
    Superseded,
    /// A barrier that says well, and has settled nothing of what was accepted.
    Forget,
    /// A barrier that fails in a passing way and names all that was accepted as lost.
    LoseAll,
}

const SCRIPTED: Code = Code::new("DT", 1);

/// A row that landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredRow {
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// Its value.
    pub value: i64,
}

#[derive(Default)]
struct Inside {
    rows: Vec<StoredRow>,
    batches: Vec<(CommitId, usize)>,
    ids: HashSet<CommitId>,
    positions: Positions,
    accepted: Vec<(CommitId, Vec<StoredRow>, Positions)>,
    writes: VecDeque<Act>,
    barriers: VecDeque<Act>,
    always: Option<Act>,
    refused: HashSet<i64>,
    hanging: HashSet<i64>,
    is_missing: bool,
    is_unreachable: bool,
    calls: usize,
    covers_chain: bool,
}

/// See the module. Clones are the same destination.
#[derive(Clone)]
pub struct ScriptedSink {
    inside: Arc<Mutex<Inside>>,
    called: Arc<Notify>,
    schema: SchemaRef,
    guarantee: Guarantee,
    accepts: Option<Duration>,
    identity: Arc<Mutex<String>>,
}

impl ScriptedSink {
    /// A destination that stores at once, at least once.
    pub fn durable() -> Self {
        ScriptedSink {
            inside: Arc::new(Mutex::new(Inside { covers_chain: true, ..Inside::default() })),
            called: Arc::new(Notify::new()),
            schema: Arc::new(Schema::new(vec![
                Field::new("value", DataType::Int64, false),
                Field::new(columns::PARTITION, DataType::UInt32, false),
                Field::new(columns::OFFSET, DataType::UInt64, false),
            ])),
            guarantee: Guarantee::AtLeastOnce { why: "the script keeps no positions".to_owned() },
            accepts: None,
            identity: Arc::new(Mutex::new("scripted".to_owned())),
        }
    }

    /// A destination that accepts, and commits rows with positions at a barrier, like a table.
    pub fn table(commit_every: Duration) -> Self {
        ScriptedSink { guarantee: Guarantee::Positions, accepts: Some(commit_every), ..Self::durable() }
    }

    /// What the next writes do, in order; afterwards they store.
    pub fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.inside.lock().writes = acts.into_iter().collect();
    }

    /// What the next barriers do.
    pub fn script_barrier(&self, acts: impl IntoIterator<Item = Act>) {
        self.inside.lock().barriers = acts.into_iter().collect();
    }

    /// What every write does that the script does not speak of.
    pub fn always(&self, act: Option<Act>) {
        self.inside.lock().always = act;
    }

    /// Values that make a whole batch fail without being named.
    pub fn refuse_values(&self, values: impl IntoIterator<Item = i64>) {
        self.inside.lock().refused = values.into_iter().collect();
    }

    /// Values whose batch is never answered.
    pub fn hang_values(&self, values: impl IntoIterator<Item = i64>) {
        self.inside.lock().hanging = values.into_iter().collect();
    }

    /// Whether the destination does not exist.
    pub fn set_missing(&self, is_missing: bool) {
        self.inside.lock().is_missing = is_missing;
    }

    /// Whether the destination answers when it is opened.
    pub fn set_unreachable(&self, is_unreachable: bool) {
        self.inside.lock().is_unreachable = is_unreachable;
    }

    /// Another table under the same name.
    pub fn set_identity(&self, identity: &str) {
        *self.identity.lock() = identity.to_owned();
    }

    /// Everything that landed, in order of arrival.
    pub fn rows(&self) -> Vec<StoredRow> {
        self.inside.lock().rows.clone()
    }

    /// The values that landed, sorted.
    pub fn values(&self) -> Vec<i64> {
        let mut values: Vec<i64> = self.inside.lock().rows.iter().map(|row| row.value).collect();
        values.sort_unstable();
        values
    }

    /// Rows per stored batch, in order, with the batch's id.
    pub fn batches(&self) -> Vec<(CommitId, usize)> {
        self.inside.lock().batches.clone()
    }

    /// The positions that it holds.
    pub fn positions(&self) -> Positions {
        self.inside.lock().positions.clone()
    }

    /// Sets the positions, as a restore from an older copy would.
    pub fn set_positions(&self, positions: Positions) {
        self.inside.lock().positions = positions;
    }

    /// How often `write` was called.
    pub fn calls(&self) -> usize {
        self.inside.lock().calls
    }

    /// Whether the covers of everything stored followed each other without a hole, per partition.
    pub fn covers_chain(&self) -> bool {
        self.inside.lock().covers_chain
    }

    /// Waits until `write` was called so often in all.
    pub async fn wait_calls(&self, calls: usize) {
        loop {
            let notified = self.called.notified();
            if self.calls() >= calls {
                return;
            }
            notified.await;
        }
    }

    fn rows_of(batch: &SealedBatch) -> Vec<StoredRow> {
        let mut rows = Vec::with_capacity(batch.rows());
        for part in &batch.parts {
            let values = part.column(0).as_primitive::<Int64Type>();
            let partitions = part.column(1).as_primitive::<UInt32Type>();
            let offsets = part.column(2).as_primitive::<UInt64Type>();
            rows.extend((0..part.num_rows()).map(|row| StoredRow {
                partition: partitions.value(row),
                offset: offsets.value(row),
                value: values.value(row),
            }));
        }
        rows
    }

    fn error(act: &Act) -> SinkError {
        let text = format!("scripted: {act:?}");
        match act {
            Act::Refuse => SinkError::Destination { code: SCRIPTED, text },
            Act::Rows(rows) => SinkError::Row { code: SCRIPTED, rows: Some(rows.clone()), text },
            Act::LostBefore | Act::LostAfter => SinkError::Unknown { code: SCRIPTED, text },
            Act::Superseded => SinkError::Superseded { code: SCRIPTED, text, partitions: Vec::new() },
            _ => SinkError::Later { code: SCRIPTED, after: None, text },
        }
    }
}

impl Inside {
    fn store(&mut self, id: CommitId, rows: Vec<StoredRow>, ends: Positions) {
        self.batches.push((id, rows.len()));
        self.rows.extend(rows);
        self.ids.insert(id);
        self.positions.extend(ends);
    }
}

impl Sink for ScriptedSink {
    fn plan<'a>(&'a self, _: &'a SchemaRef, _: &'a PlanCx) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        Box::pin(async { Ok(SinkPlan { schema: self.schema.clone(), notes: Vec::new(), detail: Box::new(()) }) })
    }

    fn guarantee(&self) -> Guarantee {
        self.guarantee.clone()
    }

    fn open<'a>(&'a self, _: &'a SinkPlan, _: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async {
            if self.inside.lock().is_missing {
                let text = "the table does not exist".to_owned();
                return Err(SinkError::Destination { code: SCRIPTED, text });
            }
            if self.inside.lock().is_unreachable {
                let text = "the table does not answer".to_owned();
                return Err(SinkError::Later { code: SCRIPTED, after: None, text });
            }
            Ok(SinkIdentity(self.identity.lock().clone()))
        })
    }

    fn committed_positions<'a>(&'a self, _: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>> {
        Box::pin(async {
            Ok(match self.guarantee {
                Guarantee::Positions => self.positions(),
                _ => Positions::new(),
            })
        })
    }

    fn writer(&self, _: ShardId) -> Arc<dyn ShardWriter> {
        Arc::new(self.clone())
    }

    fn barrier_every(&self) -> Option<Duration> {
        self.accepts
    }
}

impl ShardWriter for ScriptedSink {
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>> {
        Box::pin(async {
            let act = {
                let mut inside = self.inside.lock();
                inside.calls += 1;
                inside.writes.pop_front().or_else(|| inside.always.clone()).unwrap_or(Act::Store)
            };
            self.called.notify_waiters();
            match act {
                Act::Hang => std::future::pending::<()>().await,
                Act::Panic => panic!("scripted: a write panics"),
                Act::Store | Act::LostAfter => {}
                act => return Err(Self::error(&act)),
            }
            let rows = Self::rows_of(batch);
            if rows.iter().any(|row| self.inside.lock().hanging.contains(&row.value)) {
                std::future::pending::<()>().await;
            }
            let ends: Positions = batch.covers.iter().map(|cover| (cover.partition, cover.range.end)).collect();
            let mut inside = self.inside.lock();
            if rows.iter().any(|row| inside.refused.contains(&row.value)) {
                let text = "a value is refused".to_owned();
                return Err(SinkError::Row { code: SCRIPTED, rows: None, text });
            }
            if self.guarantee == Guarantee::Positions {
                let mut reached = inside.positions.clone();
                for (_, _, ends) in &inside.accepted {
                    reached.extend(ends.iter().map(|(partition, end)| (*partition, *end)));
                }
                let has_all = !batch.covers.is_empty()
                    && batch
                        .covers
                        .iter()
                        .all(|cover| inside.positions.get(&cover.partition).is_some_and(|end| *end >= cover.range.end));
                if has_all {
                    return Ok(Written::AlreadyThere);
                }
                for cover in &batch.covers {
                    if reached.get(&cover.partition).is_some_and(|end| *end > cover.range.start) {
                        inside.covers_chain = false;
                    }
                }
            }
            if self.accepts.is_some() {
                inside.accepted.push((batch.id, rows, ends));
                return Ok(Written::Accepted);
            }
            inside.store(batch.id, rows, ends);
            if act == Act::LostAfter {
                return Err(Self::error(&Act::LostAfter));
            }
            Ok(Written::Durable)
        })
    }

    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>> {
        Box::pin(async {
            let act = self.inside.lock().barriers.pop_front().unwrap_or(Act::Store);
            match &act {
                Act::Hang => std::future::pending::<()>().await,
                Act::Panic => panic!("scripted: a barrier panics"),
                Act::Store => {}
                Act::Forget => self.inside.lock().accepted.clear(),
                Act::LoseAll => {
                    let gone = std::mem::take(&mut self.inside.lock().accepted);
                    let lost = gone.into_iter().map(|(id, _, _)| id).collect();
                    return Err(BarrierError { error: Self::error(&act), lost });
                }
                Act::Later | Act::Refuse => {
                    return Err(BarrierError { error: Self::error(&act), lost: Vec::new() });
                }
                act => {
                    self.inside.lock().accepted.clear();
                    return Err(BarrierError { error: Self::error(act), lost: Vec::new() });
                }
            }
            let mut inside = self.inside.lock();
            let mut settled = Settled { version: Some(1), ..Settled::default() };
            for (id, rows, ends) in std::mem::take(&mut inside.accepted) {
                settled.batches += 1;
                settled.rows += rows.len() as u64;
                inside.store(id, rows, ends);
            }
            settled.positions = inside.positions.clone();
            Ok(settled)
        })
    }

    fn was_committed<'a>(&'a self, id: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>> {
        Box::pin(async { Ok(Some(self.inside.lock().ids.contains(id))) })
    }

    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async { Ok(()) })
    }

    fn reset<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async { self.inside.lock().accepted.clear() })
    }
}

/// What makes a letter one: partition, place, stage, sink.
type LetterKey = (u32, u64, u64, Stage, Option<String>);

/// Dead letters in memory; a repeat of a letter is no second one.
#[derive(Clone, Default)]
pub struct MemoryLetters {
    letters: Arc<Mutex<BTreeMap<LetterKey, Letter>>>,
    failures: Arc<Mutex<u32>>,
}

impl MemoryLetters {
    /// An empty store.
    pub fn new() -> Self {
        MemoryLetters::default()
    }

    /// The next calls fail.
    pub fn fail(&self, times: u32) {
        *self.failures.lock() = times;
    }

    /// What is stored, by partition and offset.
    pub fn letters(&self) -> Vec<Letter> {
        self.letters.lock().values().cloned().collect()
    }

    /// The offsets of a partition that have a letter.
    pub fn offsets(&self, partition: PartitionId) -> Vec<u64> {
        self.letters.lock().keys().filter(|key| key.0 == partition.0).map(|key| key.1).collect()
    }
}

impl DeadLetter for MemoryLetters {
    fn store<'a>(&'a self, letters: &'a [Letter]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let mut failures = self.failures.lock();
            if *failures > 0 {
                *failures -= 1;
                let text = "the dead-letter channel is full".to_owned();
                return Err(SinkError::Later { code: SCRIPTED, after: None, text });
            }
            let mut stored = self.letters.lock();
            for letter in letters {
                let record = &letter.record;
                let key = (record.partition.0, record.offset.0, record.within, letter.stage, letter.sink.clone());
                stored.entry(key).or_insert_with(|| letter.clone());
            }
            Ok(())
        })
    }
}
