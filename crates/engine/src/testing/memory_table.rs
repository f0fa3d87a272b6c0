//! A table in memory as a change source's destination: takes every shape it is told of, commits rows with positions at a
//! barrier, and does what it is told to when it is opened, reshaped or written to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use futures::future::BoxFuture;
use landfall_types::{Code, PartitionId, Place};
use parking_lot::Mutex;

use crate::contract::{
    BarrierError, CommitId, Guarantee, PlanCx, PlanError, Positions, SealedBatch, Settled, ShardId, ShardWriter, Sink,
    SinkError, SinkIdentity, SinkPlan, TableNote, TableSpec, Written, columns,
};

const SCRIPTED: Code = Code::new("DT", 1);

/// A row that landed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LandedRow {
    /// Its partition.
    pub partition: u32,
    /// Its place.
    pub place: (u64, u64),
    /// The table's own columns, by name; NULL where it has none.
    pub values: BTreeMap<String, Option<i64>>,
}

/// A batch, as it was handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenBatch {
    /// Its note.
    pub note: Option<TableNote>,
    /// Its columns.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: usize,
    /// Whether the shape was told of before.
    pub was_told: bool,
}

#[derive(Default)]
struct Inside {
    rows: Vec<LandedRow>,
    seen: Vec<SeenBatch>,
    positions: Positions,
    accepted: Vec<(Vec<LandedRow>, Positions)>,
    shapes: BTreeMap<u32, SchemaRef>,
    keys: BTreeMap<u32, Vec<String>>,
    first: Option<SchemaRef>,
    is_missing: bool,
    refuses_shapes: bool,
    refuses_writes: bool,
    loses_groups: u32,
    doubles: usize,
}

/// See the module. Clones are the same table.
#[derive(Clone)]
pub struct MemoryTable {
    inside: Arc<Mutex<Inside>>,
    commit_every: Duration,
}

impl MemoryTable {
    /// A table that commits this often.
    pub fn new(commit_every: Duration) -> Self {
        MemoryTable { inside: Arc::new(Mutex::new(Inside::default())), commit_every }
    }

    /// Whether opening it is refused.
    pub fn missing(&self, is_missing: bool) {
        self.inside.lock().is_missing = is_missing;
    }

    /// Whether a further shape is refused.
    pub fn refuse_shapes(&self, refuses: bool) {
        self.inside.lock().refuses_shapes = refuses;
    }

    /// Whether every write is refused as the destination's fault.
    pub fn refuse_writes(&self, refuses: bool) {
        self.inside.lock().refuses_writes = refuses;
    }

    /// So many groups are lost before they are committed.
    pub fn lose_groups(&self, groups: u32) {
        self.inside.lock().loses_groups = groups;
    }

    /// Rows that are visible, in the order they came.
    pub fn rows(&self) -> Vec<LandedRow> {
        self.inside.lock().rows.clone()
    }

    /// One column of all visible rows, rising.
    pub fn values(&self, column: &str) -> Vec<i64> {
        let inside = self.inside.lock();
        let of = |row: &LandedRow| row.values.get(column).copied().flatten();
        let mut values: Vec<i64> = inside.rows.iter().filter_map(of).collect();
        values.sort_unstable();
        values
    }

    /// Batches in the order they came, those that were tried again too.
    pub fn seen(&self) -> Vec<SeenBatch> {
        self.inside.lock().seen.clone()
    }

    /// The key of a further shape, if it was planned.
    pub fn key_of(&self, shape: u32) -> Option<Vec<String>> {
        self.inside.lock().keys.get(&shape).cloned()
    }

    /// The positions that it holds.
    pub fn positions(&self) -> Positions {
        self.inside.lock().positions.clone()
    }

    /// Rows that landed although their place was held already.
    pub fn doubles(&self) -> usize {
        self.inside.lock().doubles
    }

    fn landed(part: &RecordBatch) -> Vec<LandedRow> {
        let number = |name: &str| part.column_by_name(name).expect("every shape has it").as_primitive::<UInt64Type>();
        let partitions =
            part.column_by_name(columns::PARTITION).expect("every shape has it").as_primitive::<UInt32Type>();
        let (lsn, seq) = (number(columns::COMMIT_LSN), number(columns::SEQ));
        let own: Vec<_> = part
            .schema_ref()
            .fields()
            .iter()
            .zip(part.columns())
            .filter(|(field, _)| field.data_type() == &DataType::Int64)
            .map(|(field, column)| (field.name().clone(), column.as_primitive::<Int64Type>().clone()))
            .collect();
        (0..part.num_rows())
            .map(|row| LandedRow {
                partition: partitions.value(row),
                place: (lsn.value(row), seq.value(row)),
                values: own
                    .iter()
                    .map(|(name, values)| (name.clone(), values.is_valid(row).then(|| values.value(row))))
                    .collect(),
            })
            .collect()
    }

    fn position_of(row: &LandedRow) -> (PartitionId, Place) {
        (PartitionId(row.partition), Place { at: row.place.0, within: row.place.1 })
    }
}

impl Sink for MemoryTable {
    fn plan<'a>(&'a self, rows: &'a SchemaRef, _: &'a PlanCx) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        Box::pin(async { Ok(SinkPlan { schema: rows.clone(), notes: Vec::new(), detail: Box::new(()) }) })
    }

    fn plan_shape<'a>(
        &'a self,
        spec: &'a TableSpec,
        rows: &'a SchemaRef,
        cx: &'a PlanCx,
    ) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        let key = spec.key.iter().map(|name| String::from(&**name)).collect();
        self.inside.lock().keys.insert(spec.shape, key);
        self.plan(rows, cx)
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Positions
    }

    fn open<'a>(&'a self, plan: &'a SinkPlan, _: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async {
            let mut inside = self.inside.lock();
            if inside.is_missing {
                let text = "the table does not exist".to_owned();
                return Err(SinkError::Destination { code: SCRIPTED, text });
            }
            inside.first = Some(plan.schema.clone());
            Ok(SinkIdentity("memory table".to_owned()))
        })
    }

    fn reshape<'a>(&'a self, shape: u32, plan: &'a SinkPlan, _: &'a PlanCx) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let mut inside = self.inside.lock();
            if inside.refuses_shapes {
                let text = format!("shape {shape} does not fit: the table needs a re-sync");
                return Err(SinkError::Destination { code: SCRIPTED, text });
            }
            inside.shapes.insert(shape, plan.schema.clone());
            Ok(())
        })
    }

    fn committed_positions<'a>(&'a self, _: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>> {
        Box::pin(async { Ok(self.positions()) })
    }

    fn writer(&self, _: ShardId) -> Arc<dyn ShardWriter> {
        Arc::new(self.clone())
    }

    fn barrier_every(&self) -> Option<Duration> {
        Some(self.commit_every)
    }

    fn refuses_rows(&self) -> bool {
        false
    }
}

impl ShardWriter for MemoryTable {
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>> {
        Box::pin(async {
            let mut inside = self.inside.lock();
            if inside.refuses_writes {
                let text = "the table is closed to writers".to_owned();
                return Err(SinkError::Destination { code: SCRIPTED, text });
            }
            let schemas: Vec<SchemaRef> = batch.parts.iter().map(RecordBatch::schema).collect();
            let shape = batch.note.map_or(0, |note| note.shape);
            let planned = inside.shapes.get(&shape).or(inside.first.as_ref()).cloned();
            let was_told = schemas.iter().all(|schema| planned.as_ref() == Some(schema));
            let names = schemas.first().map(|schema| schema.fields().iter().map(|f| f.name().clone()).collect());
            inside.seen.push(SeenBatch {
                note: batch.note,
                columns: names.unwrap_or_default(),
                rows: batch.rows(),
                was_told,
            });
            let rows: Vec<LandedRow> = batch.parts.iter().flat_map(Self::landed).collect();
            let ends = batch.covers.iter().map(|cover| (cover.partition, cover.range.end)).collect();
            inside.accepted.push((rows, ends));
            Ok(Written::Accepted)
        })
    }

    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>> {
        Box::pin(async {
            let mut inside = self.inside.lock();
            if inside.loses_groups > 0 {
                inside.loses_groups -= 1;
                inside.accepted.clear();
                let error = SinkError::Unknown { code: SCRIPTED, text: "the group is lost".to_owned() };
                return Err(BarrierError { error, lost: Vec::new() });
            }
            let mut settled = Settled { version: Some(1), ..Settled::default() };
            for (rows, ends) in std::mem::take(&mut inside.accepted) {
                settled.batches += 1;
                settled.rows += rows.len() as u64;
                for row in &rows {
                    let (partition, place) = Self::position_of(row);
                    if inside.positions.get(&partition).is_some_and(|held| *held > place) {
                        inside.doubles += 1;
                    }
                }
                inside.rows.extend(rows);
                inside.positions.extend(ends);
            }
            settled.positions = inside.positions.clone();
            Ok(settled)
        })
    }

    fn was_committed<'a>(&'a self, _: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>> {
        Box::pin(async { Ok(None) })
    }

    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async { Ok(()) })
    }

    fn is_inside_transaction(&self) -> bool {
        let inside = self.inside.lock();
        inside.accepted.last().is_some_and(|(_, ends)| ends.values().any(|end| end.within > 0))
    }

    fn reset<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async { self.inside.lock().accepted.clear() })
    }
}
