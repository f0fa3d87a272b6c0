//! The builder of one table's batches.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray, TimestampMicrosecondArray, UInt32Array, UInt64Array};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer};
use arrow_schema::ArrowError;
use landfall_types::{Offset, PartitionId};

use super::error::CellFault;
use super::{ColumnCount, Op, Refused, RowError, RowPlan, Stamp};
use crate::copy::CopyLine;
use crate::decode::{Cell, OldTuple, Tuple};
use crate::values::{Column, Fault, Tally, taken};

/// Bytes per row of the columns behind the table's own.
const META_ROW_BYTES: usize = 1 + 4 + 8 + 8 + 8 + 4 + 4 + 8;

/// Rows of one table that will be one batch.
pub struct TableRows {
    plan: Arc<RowPlan>,
    columns: Vec<Column>,
    ops: Vec<u8>,
    commit_lsns: Vec<u64>,
    seqs: Vec<u64>,
    commit_times: Vec<i64>,
    xids: Vec<u32>,
    has_xid: NullBufferBuilder,
    tally: Tally,
}

impl std::fmt::Debug for TableRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableRows({}, {} rows, {} bytes)", self.plan.shape.name, self.rows(), self.bytes())
    }
}

/// A change's row, and where its values stand.
struct Row {
    op: Op,
    stamp: Stamp,
}

/// The column at which a row failed.
struct Failed {
    column: usize,
    fault: CellFault,
}

impl TableRows {
    /// An empty builder.
    pub fn new(plan: Arc<RowPlan>) -> Self {
        let columns = plan
            .shape
            .columns
            .iter()
            .zip(plan.schema.fields())
            .map(|(column, field)| {
                Column::new(&column.kind, field.data_type(), plan.options.policies_of(column), column.is_key)
            })
            .collect();
        TableRows {
            plan,
            columns,
            ops: Vec::new(),
            commit_lsns: Vec::new(),
            seqs: Vec::new(),
            commit_times: Vec::new(),
            xids: Vec::new(),
            has_xid: NullBufferBuilder::new(0),
            tally: Tally::default(),
        }
    }

    /// What its rows are made by.
    pub fn plan(&self) -> &Arc<RowPlan> {
        &self.plan
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.ops.len()
    }

    /// Bytes that the rows hold. As builders grow, up to twice that is allocated.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum::<usize>() + self.rows() * META_ROW_BYTES
    }

    /// How often policies changed values of the rows since this was asked last.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Appends an inserted row.
    pub fn insert(&mut self, stamp: Stamp, new: Tuple<'_>) -> Result<(), Refused> {
        self.check_count(stamp, new.len())?;
        let before = self.mark();
        self.push(Row { op: Op::Insert, stamp }, new.cells())
            .map_err(|failed| self.refuse(before, Op::Insert, stamp, &failed, new.cells()))
    }

    /// Appends an updated row; where its key changed, the old key's delete and the new row's insert (P71). `stamp` is
    /// of the first of the update's two numbers.
    pub fn update(&mut self, stamp: Stamp, old: Option<OldTuple<'_>>, new: Tuple<'_>) -> Result<(), Refused> {
        self.check_count(stamp, new.len())?;
        let image = Stamp { seq: stamp.seq + 1, ..stamp };
        let before = self.mark();
        let Some(old) = old else {
            return self
                .push(Row { op: Op::Update, stamp: image }, new.cells())
                .map_err(|failed| self.refuse(before, Op::Update, image, &failed, new.cells()));
        };
        self.check_count(stamp, old.tuple().len())?;
        let plan = self.plan.clone();
        let filled = || Filled::new(&plan, old, new);
        let op = if filled().any(|filled| filled.is_key_change) { Op::Insert } else { Op::Update };
        let cells = || filled().map(|filled| filled.cell);
        if op == Op::Insert {
            self.push(Row { op: Op::Delete, stamp }, old.tuple().cells())
                .map_err(|failed| self.refuse(before, Op::Delete, stamp, &failed, cells()))?;
        }
        let between = self.mark();
        self.push(Row { op, stamp: image }, cells()).map_err(|failed| {
            // The old row is gone whether or not the new one can be carried; only a full batch takes neither.
            let keep = if failed.fault == CellFault::Value(Fault::Full) { before } else { between };
            self.refuse(keep, op, image, &failed, cells())
        })
    }

    /// Appends a deleted row: its key, and all of it where the server sends all.
    pub fn delete(&mut self, stamp: Stamp, old: OldTuple<'_>) -> Result<(), Refused> {
        let tuple = old.tuple();
        self.check_count(stamp, tuple.len())?;
        let before = self.mark();
        self.push(Row { op: Op::Delete, stamp }, tuple.cells()).map_err(|failed| {
            let plan = self.plan.clone();
            // What is outside a bare key was not received, though its place says NULL.
            let received = plan
                .shape
                .columns
                .iter()
                .zip(tuple.cells())
                .map(|(column, cell)| if old.is_whole() || column.is_key { cell } else { Cell::Unchanged });
            self.refuse(before, Op::Delete, stamp, &failed, received)
        })
    }

    /// Appends the row that says that the table was emptied, if the plan has such rows.
    pub fn truncate(&mut self, stamp: Stamp) {
        if self.plan.options.truncate_rows {
            self.columns.iter_mut().for_each(Column::push_null);
            self.push_meta(&Row { op: Op::Truncate, stamp });
        }
    }

    /// Appends a copied row.
    pub fn copied(&mut self, stamp: Stamp, line: &CopyLine<'_>) -> Result<(), Refused> {
        // The line of a table without columns is empty, as is that of a single empty text.
        let is_bare = self.columns.is_empty() && line.cells().eq([Cell::Text(b"")]);
        let len = if is_bare { 0 } else { line.len() };
        self.check_count(stamp, len)?;
        let before = self.mark();
        self.push(Row { op: Op::Snapshot, stamp }, line.cells().take(len))
            .map_err(|failed| self.refuse(before, Op::Snapshot, stamp, &failed, line.cells()))
    }

    /// Hands out the rows as one batch and starts anew. `__offset` counts from `first`.
    ///
    /// # Errors
    ///
    /// None that rows can cause: columns and schema come from one plan.
    pub fn finish(&mut self, partition: PartitionId, first: Offset) -> Result<RecordBatch, ArrowError> {
        let rows = self.rows();
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.plan.schema.fields().len());
        for column in &mut self.columns {
            arrays.push(column.finish()?);
        }
        let letters = taken(&mut self.ops);
        let ops = StringArray::try_new(
            OffsetBuffer::from_lengths(std::iter::repeat_n(1, rows)),
            Buffer::from_vec(letters),
            None,
        )?;
        arrays.push(Arc::new(ops));
        arrays.push(Arc::new(UInt64Array::new(taken(&mut self.commit_lsns).into(), None)));
        arrays.push(Arc::new(UInt64Array::new(taken(&mut self.seqs).into(), None)));
        let times = TimestampMicrosecondArray::new(taken(&mut self.commit_times).into(), None).with_timezone("UTC");
        arrays.push(Arc::new(times));
        arrays.push(Arc::new(UInt32Array::try_new(taken(&mut self.xids).into(), self.has_xid.finish())?));
        arrays.push(Arc::new(UInt32Array::from_value(partition.get(), rows)));
        let offsets = (0..rows as u64).map(|at| first.get().wrapping_add(at));
        arrays.push(Arc::new(UInt64Array::from_iter_values(offsets)));
        RecordBatch::try_new(self.plan.schema.clone(), arrays)
    }

    fn check_count(&self, stamp: Stamp, found: usize) -> Result<(), Refused> {
        if found == self.columns.len() {
            return Ok(());
        }
        Err(Refused::Table(ColumnCount {
            table: self.plan.shape.name.clone(),
            relation: self.plan.shape.relation,
            lsn: stamp.commit_lsn,
            found,
            expected: self.columns.len(),
        }))
    }

    fn mark(&self) -> (usize, Tally) {
        (self.rows(), self.tally)
    }

    /// Of a row that is gone the key says which; a value of the rest that cannot be carried is no value: a row that was
    /// refused when it came must still go.
    fn push<'c>(&mut self, row: Row, cells: impl Iterator<Item = Cell<'c>>) -> Result<(), Failed> {
        let columns = self.columns.iter_mut().zip(&self.plan.shape.columns);
        for (at, ((column, shape), cell)) in columns.zip(cells).enumerate() {
            let fault = match cell {
                Cell::Text(text) => match column.push_text(text, &mut self.tally) {
                    Ok(()) => continue,
                    Err(fault) if row.op == Op::Delete && !shape.is_key && fault != Fault::Full => {
                        column.cut(self.ops.len());
                        column.push_null();
                        self.tally.nulled += 1;
                        continue;
                    }
                    Err(fault) => CellFault::Value(fault),
                },
                Cell::Null if shape.is_key && shape.is_not_null => CellFault::NullInKey,
                Cell::Null => {
                    column.push_null();
                    continue;
                }
                Cell::Unchanged => CellFault::Unchanged,
            };
            return Err(Failed { column: at, fault });
        }
        self.push_meta(&row);
        Ok(())
    }

    fn push_meta(&mut self, row: &Row) {
        self.ops.push(row.op.byte());
        self.commit_lsns.push(row.stamp.commit_lsn.0);
        self.seqs.push(row.stamp.seq);
        self.commit_times.push(row.stamp.commit_time.0);
        self.xids.push(row.stamp.xid.map_or(0, |xid| xid.0));
        self.has_xid.append(row.stamp.xid.is_some());
    }

    /// Takes back what the change left, and says why it is not there.
    fn refuse<'c>(
        &mut self,
        (rows, tally): (usize, Tally),
        op: Op,
        stamp: Stamp,
        failed: &Failed,
        received: impl Iterator<Item = Cell<'c>>,
    ) -> Refused {
        self.columns.iter_mut().for_each(|column| column.cut(rows));
        self.ops.truncate(rows);
        self.commit_lsns.truncate(rows);
        self.seqs.truncate(rows);
        self.commit_times.truncate(rows);
        self.xids.truncate(rows);
        self.has_xid.truncate(rows);
        self.tally = tally;
        if failed.fault == CellFault::Value(Fault::Full) && rows > 0 {
            return Refused::Full;
        }
        let shape = &self.plan.shape;
        let Some(column) = shape.columns.get(failed.column) else { return Refused::Full };
        let received = received.collect();
        Refused::Row(Box::new(RowError::new(shape, column, op, stamp, failed.fault, received)))
    }
}

/// The new row's cells, with what it leaves out taken from the old row (P70).
struct Filled<'p, 'c> {
    columns: std::slice::Iter<'p, crate::ColumnShape>,
    old: crate::decode::Cells<'c>,
    new: crate::decode::Cells<'c>,
    old_is_whole: bool,
}

struct FilledCell<'c> {
    cell: Cell<'c>,
    is_key_change: bool,
}

impl<'p, 'c> Filled<'p, 'c> {
    fn new(plan: &'p RowPlan, old: OldTuple<'c>, new: Tuple<'c>) -> Self {
        Filled {
            columns: plan.shape.columns.iter(),
            old: old.tuple().cells(),
            new: new.cells(),
            old_is_whole: old.is_whole(),
        }
    }
}

impl<'c> Iterator for Filled<'_, 'c> {
    type Item = FilledCell<'c>;

    fn next(&mut self) -> Option<FilledCell<'c>> {
        let (column, old, new) = (self.columns.next()?, self.old.next()?, self.new.next()?);
        let old_is_known = self.old_is_whole || column.is_key;
        let cell = if new == Cell::Unchanged && old_is_known { old } else { new };
        Some(FilledCell { cell, is_key_change: column.is_key && old_is_known && cell != old })
    }
}
