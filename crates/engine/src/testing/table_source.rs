//! A change source in memory: one lane over tables whose transactions are appended while they are read.
//!
//! It keeps what was appended for good, so a lane that is opened anew reads it again from the places it is given. Rows of
//! partitions that the lane cannot take are left where they are, and the lane goes on with the others.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{
    ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use landfall_types::{Code, Epoch, PartitionId, Place};
use parking_lot::Mutex;

use crate::contract::{
    BadRow, CopyMark, LaneId, LaneWaker, PlanError, PollLimit, Polled, Source, SourceCx, SourceError, SourceEvent,
    SourceLane, SourcePlan, SourceProfile, TableId, TableNote, TableRows, TableSpec, columns,
};
use crate::{FailCause, PollCx};

/// What one row is.
#[derive(Clone, Debug)]
enum Row {
    Good(Vec<i64>),
    Bad(String),
}

/// Rows that come as one batch.
#[derive(Clone, Debug)]
struct Batch {
    shape: u32,
    is_copy: bool,
    copy: CopyMark,
    range: Range<Place>,
    rows: Vec<(Place, Row)>,
}

#[derive(Debug, Default)]
struct Partition {
    table: u32,
    batches: Vec<Batch>,
}

impl Partition {
    fn end(&self) -> Place {
        self.batches.last().map_or(Place::START, |batch| batch.range.end)
    }
}

#[derive(Default)]
struct Inside {
    /// Per table its name, and the columns of each shape.
    tables: BTreeMap<u32, (String, BTreeMap<u32, Vec<String>>)>,
    partitions: BTreeMap<PartitionId, Partition>,
    committed: BTreeMap<PartitionId, Place>,
    joined: Vec<(PartitionId, Place)>,
    lanes: u32,
    events: Vec<SourceEvent>,
    wakers: Vec<LaneWaker>,
    refuses_joins_below: BTreeMap<PartitionId, Place>,
    refused: Vec<(u32, Option<String>)>,
}

/// See the module. Clones share everything.
#[derive(Clone, Default)]
pub struct TableSource {
    inside: Arc<Mutex<Inside>>,
}

/// The schema of a shape: bigint columns, nullable but for the first, then those of every change.
pub fn table_schema(names: &[String]) -> SchemaRef {
    let user = names.iter().enumerate().map(|(at, name)| Field::new(name, DataType::Int64, at > 0));
    let own = [
        Field::new(columns::OP, DataType::Utf8, false),
        Field::new(columns::COMMIT_LSN, DataType::UInt64, false),
        Field::new(columns::SEQ, DataType::UInt64, false),
        Field::new(columns::COMMIT_TS, DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false),
        Field::new(columns::XID, DataType::UInt32, true),
        Field::new(columns::PARTITION, DataType::UInt32, false),
        Field::new(columns::OFFSET, DataType::UInt64, false),
    ];
    Arc::new(Schema::new(user.chain(own).collect::<Vec<_>>()))
}

/// The key of a shape: its first column.
fn key_of(names: &[String]) -> Arc<[Arc<str>]> {
    names.first().map(|name| Arc::from(name.as_str())).into_iter().collect()
}

impl TableSource {
    /// A source without tables.
    pub fn new() -> Self {
        TableSource::default()
    }

    /// A table with one stream, partition `partition`, in shape 1.
    pub fn table(&self, id: u32, name: &str, partition: u32, names: &[&str]) {
        let mut inside = self.inside.lock();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        inside.tables.insert(id, (name.to_owned(), BTreeMap::from([(1, names)])));
        inside.partitions.insert(PartitionId(partition), Partition { table: id, batches: Vec::new() });
    }

    /// A table that comes while the lane is open.
    pub fn add_table(&self, id: u32, name: &str, partition: u32, names: &[&str]) {
        self.table(id, name, partition, names);
        let spec = self.spec(id);
        self.send(SourceEvent::Tables(vec![spec]));
        self.send(SourceEvent::Added(vec![PartitionId(partition)]));
    }

    /// Another shape of a table; rows that are appended from now on may have it. The engine is not told: its first batch
    /// does.
    pub fn shape(&self, id: u32, shape: u32, names: &[&str]) {
        let mut inside = self.inside.lock();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        inside.tables.entry(id).or_default().1.insert(shape, names);
    }

    /// A partition of a table: a copy that begins.
    pub fn add_partition(&self, partition: u32, table: u32) {
        self.inside.lock().partitions.insert(PartitionId(partition), Partition { table, batches: Vec::new() });
        self.send(SourceEvent::Added(vec![PartitionId(partition)]));
    }

    /// A copy is over.
    pub fn retire(&self, partition: u32) {
        self.send(SourceEvent::Retired(vec![PartitionId(partition)]));
    }

    /// A transaction that commits at `at` and ends at `end`, cut into batches of so many rows.
    pub fn transaction(&self, partition: u32, shape: u32, at: u64, end: u64, rows: &[Vec<i64>], per_batch: usize) {
        let rows: Vec<(Place, Row)> =
            rows.iter().zip(1u64..).map(|(values, within)| (Place { at, within }, Row::Good(values.clone()))).collect();
        self.batches(partition, shape, rows, Place { at: end, within: 0 }, per_batch, |_, _| CopyMark::None);
    }

    /// More rows of a transaction of shape 1 that commits at `at`; the first of them is its row number `first`, from 1. Its
    /// end comes later.
    pub fn part_of_transaction(&self, partition: u32, at: u64, first: u64, rows: &[Vec<i64>], per_batch: usize) {
        let end = Place { at, within: first + rows.len() as u64 };
        let rows: Vec<(Place, Row)> = rows
            .iter()
            .zip(first..)
            .map(|(values, within)| (Place { at, within }, Row::Good(values.clone())))
            .collect();
        self.batches(partition, 1, rows, end, per_batch, |_, _| CopyMark::None);
    }

    /// One row that could not be made, as a transaction of its own.
    pub fn bad_row(&self, partition: u32, at: u64, end: u64, text: &str) {
        let rows = vec![(Place { at, within: 1 }, Row::Bad(text.to_owned()))];
        self.batches(partition, 1, rows, Place { at: end, within: 0 }, 1, |_, _| CopyMark::None);
    }

    /// A whole copy at `at`.
    pub fn copy(&self, partition: u32, at: u64, rows: &[Vec<i64>], per_batch: usize) {
        let rows: Vec<(Place, Row)> = rows
            .iter()
            .zip(1u64..)
            .map(|(values, within)| (Place { at: at - 1, within }, Row::Good(values.clone())))
            .collect();
        let place = Place { at, within: 0 };
        self.batches(partition, 1, rows, place, per_batch, |number, count| match number {
            0 => CopyMark::Begins(place),
            last if last + 1 == count => CopyMark::Ends(place),
            _ => CopyMark::None,
        });
    }

    fn batches(
        &self,
        partition: u32,
        shape: u32,
        rows: Vec<(Place, Row)>,
        end: Place,
        per_batch: usize,
        mark: impl Fn(usize, usize) -> CopyMark,
    ) {
        let wakers = {
            let mut inside = self.inside.lock();
            let known = inside.partitions.entry(PartitionId(partition)).or_default();
            let count = rows.len().div_ceil(per_batch);
            for (number, part) in rows.chunks(per_batch).enumerate() {
                let last = part.last().map_or(end, |(place, _)| *place);
                let stop = if number + 1 == count { end } else { Place { at: last.at, within: last.within + 1 } };
                let range = known.end()..stop;
                let (copy, is_copy) = (mark(number, count), mark(0, count) != CopyMark::None);
                known.batches.push(Batch { shape, is_copy, copy, range, rows: part.to_vec() });
            }
            inside.wakers.clone()
        };
        wakers.iter().for_each(LaneWaker::wake);
    }

    /// The lane cannot serve this partition below the place any more, unless it is opened anew.
    pub fn forget_below(&self, partition: u32, place: Place) {
        self.inside.lock().refuses_joins_below.insert(PartitionId(partition), place);
    }

    /// An event for the controller.
    pub fn send(&self, event: SourceEvent) {
        let wakers = {
            let mut inside = self.inside.lock();
            inside.events.push(event);
            inside.wakers.clone()
        };
        wakers.iter().for_each(LaneWaker::wake);
    }

    /// The ends of all partitions.
    pub fn ends(&self) -> BTreeMap<PartitionId, Place> {
        self.inside.lock().partitions.iter().map(|(partition, known)| (*partition, known.end())).collect()
    }

    /// What it was told to commit.
    pub fn committed(&self, partition: u32) -> Option<Place> {
        self.inside.lock().committed.get(&PartitionId(partition)).copied()
    }

    /// Every partition that a lane was opened with or that joined one, in order, with its place.
    pub fn joined(&self) -> Vec<(PartitionId, Place)> {
        self.inside.lock().joined.clone()
    }

    /// What it was told of tables that are refused, and of those that are so no more, in order.
    pub fn refused(&self) -> Vec<(u32, Option<String>)> {
        self.inside.lock().refused.clone()
    }

    /// How many lanes were opened.
    pub fn lanes(&self) -> u32 {
        self.inside.lock().lanes
    }

    fn spec(&self, id: u32) -> TableSpec {
        let inside = self.inside.lock();
        let (name, shapes) = &inside.tables[&id];
        TableSpec {
            id: TableId(id),
            name: Arc::from(name.as_str()),
            schema: table_schema(&shapes[&1]),
            shape: 1,
            key: key_of(&shapes[&1]),
        }
    }

    fn specs(&self) -> Vec<TableSpec> {
        let ids: Vec<u32> = self.inside.lock().tables.keys().copied().collect();
        ids.into_iter().map(|id| self.spec(id)).collect()
    }
}

impl Source for TableSource {
    type Lane = TableLane;

    fn profile(&self) -> SourceProfile {
        SourceProfile { kind: "tables", identity: "tables-1".to_owned(), bounded: false }
    }

    fn plan(&self) -> Result<SourcePlan, PlanError> {
        let partitions = self.inside.lock().partitions.keys().copied().collect();
        Ok(SourcePlan { partitions, tables: self.specs(), notes: Vec::new() })
    }

    fn table_of(&self, partition: PartitionId) -> Option<TableId> {
        self.inside.lock().partitions.get(&partition).map(|known| TableId(known.table))
    }

    fn table_refused(&mut self, table: TableId, cause: Option<&FailCause>) {
        self.inside.lock().refused.push((table.0, cause.map(|cause| cause.text.to_string())));
    }

    fn open(&mut self, cx: SourceCx) -> Result<(), SourceError> {
        let specs = self.specs();
        let mut inside = self.inside.lock();
        inside.wakers = vec![cx.waker];
        let partitions = inside.partitions.keys().copied().collect();
        inside.events = vec![SourceEvent::Tables(specs), SourceEvent::Added(partitions)];
        Ok(())
    }

    fn poll_event(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        let mut inside = self.inside.lock();
        Ok((!inside.events.is_empty()).then(|| inside.events.remove(0)))
    }

    fn start_of(&mut self, _partition: PartitionId) -> Result<Place, SourceError> {
        Ok(Place::START)
    }

    fn open_lane(&mut self, id: LaneId, at: &[(PartitionId, Place, Epoch)]) -> Result<TableLane, SourceError> {
        let mut inside = self.inside.lock();
        inside.lanes += 1;
        inside.refuses_joins_below.clear();
        inside.joined.extend(at.iter().map(|(partition, place, _)| (*partition, *place)));
        Ok(TableLane {
            id,
            inside: self.inside.clone(),
            partitions: at.iter().map(|(partition, ..)| *partition).collect(),
            next: at.iter().map(|(partition, place, _)| (*partition, *place)).collect(),
            issued: BTreeMap::new(),
            turn: 0,
            has_waker: false,
        })
    }

    fn record(&mut self, _below: &[(PartitionId, Place)]) -> Option<Bytes> {
        None
    }

    fn commit(&mut self, below: &[(PartitionId, Place)]) {
        self.inside.lock().committed.extend(below.iter().copied());
    }

    fn flush_commits(&mut self, _deadline: Instant) -> Result<(), SourceError> {
        Ok(())
    }

    fn stop_reading(&mut self) {}

    fn tails(&self) -> Vec<(PartitionId, Place)> {
        self.ends().into_iter().collect()
    }
}

/// The one lane of a [`TableSource`].
pub struct TableLane {
    id: LaneId,
    inside: Arc<Mutex<Inside>>,
    partitions: Vec<PartitionId>,
    next: BTreeMap<PartitionId, Place>,
    issued: BTreeMap<PartitionId, u64>,
    turn: usize,
    has_waker: bool,
}

impl std::fmt::Debug for TableLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableLane").field("id", &self.id).field("next", &self.next).finish_non_exhaustive()
    }
}

impl SourceLane for TableLane {
    fn id(&self) -> LaneId {
        self.id
    }

    fn partitions(&self) -> &[PartitionId] {
        &self.partitions
    }

    fn poll(&mut self, cx: &mut PollCx<'_>, _limit: PollLimit) -> Result<Polled, SourceError> {
        let mut inside = self.inside.lock();
        if !std::mem::replace(&mut self.has_waker, true) {
            inside.wakers.push(cx.waker());
        }
        for step in 0..self.partitions.len() {
            let partition = self.partitions[(self.turn + step) % self.partitions.len()];
            if !cx.takes(partition) {
                continue;
            }
            let next = self.next.get(&partition).copied().unwrap_or(Place::START);
            let known = &inside.partitions[&partition];
            let Some(batch) = known.batches.iter().find(|batch| batch.range.end > next) else { continue };
            let names = &inside.tables[&known.table].1[&batch.shape];
            let start = batch.range.start.max(next);
            let (mut good, mut bad) = (Vec::new(), Vec::new());
            for (place, row) in batch.rows.iter().filter(|(place, _)| *place >= next) {
                match row {
                    Row::Good(values) => good.push((*place, values.clone())),
                    Row::Bad(text) => bad.push(BadRow {
                        place: *place,
                        code: Code::new("PG", 401),
                        text: format!("column `n` is no number: {text}"),
                        bytes: Bytes::from(format!("{{\"n\":\"{text}\"}}")),
                    }),
                }
            }
            let issued = self.issued.entry(partition).or_insert(0);
            let rows = rows_of(names, partition, *issued, &good, batch.is_copy);
            *issued += good.len() as u64;
            let places: Vec<Place> = good.iter().map(|(place, _)| *place).collect();
            let bytes = rows.get_array_memory_size();
            let table_rows = TableRows {
                rows,
                places: places.into(),
                bad,
                note: TableNote { shape: batch.shape, copy: batch.copy },
                key: key_of(names),
            };
            let range = start..batch.range.end;
            self.next.insert(partition, batch.range.end);
            self.turn = (self.turn + step + 1) % self.partitions.len();
            return Ok(Polled::Batch(cx.table_batch(partition, table_rows, range, bytes)));
        }
        Ok(Polled::Empty)
    }

    fn join(&mut self, partition: PartitionId, at: Place, _epoch: Epoch) -> Result<(), SourceError> {
        let mut inside = self.inside.lock();
        if inside.refuses_joins_below.get(&partition).is_some_and(|least| at < *least) {
            let text = format!("the rows of partition {partition} from {at} on have passed by");
            return Err(SourceError::Lane { code: Code::new("PG", 1), text });
        }
        inside.joined.push((partition, at));
        if !self.partitions.contains(&partition) {
            self.partitions.push(partition);
        }
        self.next.insert(partition, at);
        Ok(())
    }

    fn leave(&mut self, partition: PartitionId) {
        self.partitions.retain(|known| *known != partition);
        self.next.remove(&partition);
        self.turn = 0;
    }
}

fn rows_of(
    names: &[String],
    partition: PartitionId,
    issued: u64,
    rows: &[(Place, Vec<i64>)],
    is_copy: bool,
) -> RecordBatch {
    let count = rows.len();
    let op = if is_copy { "s" } else { "i" };
    let mut arrays: Vec<ArrayRef> = (0..names.len())
        .map(|at| Arc::new(rows.iter().map(|(_, values)| values.get(at).copied()).collect::<Int64Array>()) as ArrayRef)
        .collect();
    arrays.push(Arc::new(StringArray::from(vec![op; count])));
    arrays.push(Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(place, _)| place.at))));
    arrays.push(Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(place, _)| place.within))));
    arrays.push(Arc::new(TimestampMicrosecondArray::from(vec![0; count]).with_timezone("UTC")));
    arrays.push(Arc::new(UInt32Array::from(vec![7; count])));
    arrays.push(Arc::new(UInt32Array::from(vec![partition.0; count])));
    arrays.push(Arc::new(UInt64Array::from_iter_values(issued..issued + count as u64)));
    RecordBatch::try_new(table_schema(names), arrays).expect("columns have the shape's types")
}
