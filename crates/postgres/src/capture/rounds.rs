//! Rows of one round, per table, and how a round is cut (P97–P101).
//!
//! Synchronous. Transactions are delivered in commit order and never interleaved: rows go to one builder per table, and
//! all builders are cut together. Inside a transaction a round is cut by size only, so memory does not depend on the
//! transaction; ends of ranges then lie inside it, and only the last round's end is a commit's (P98).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_engine::contract as engine;
use landfall_types::{Code, Offset, PartitionId, Place};
use parking_lot::Mutex;

use super::handover::Ready;
use crate::decode::{OldTuple, Tuple};
use crate::rows::{ColumnCount, Refused, RowPlan, Stamp, TableRows};
use crate::{Lsn, RelationId};

/// A builder's rows at which a round is cut: the engine's poll.
const ROWS_MAX: usize = 8_192;
const TABLE_BYTES_MAX: usize = 1 << 20;
/// Bytes of all builders at which a round is cut.
const ROUND_BYTES_MAX: usize = 16 << 20;
/// How often a builder's size is asked for.
const ROWS_PER_LOOK: usize = 64;

/// What a change is.
#[derive(Clone, Copy)]
pub(crate) enum Change<'a> {
    Insert(Tuple<'a>),
    Update(Option<OldTuple<'a>>, Tuple<'a>),
    Delete(OldTuple<'a>),
    Truncate,
    Lost(LostRow<'a>),
}

/// A change that was too large to be read whole.
#[derive(Clone, Copy)]
pub(crate) struct LostRow<'a> {
    pub(crate) is_update: bool,
    pub(crate) code: Code,
    pub(crate) text: &'a str,
    /// What was read of it.
    pub(crate) head: &'a [u8],
}

/// A table's part of the round.
struct OpenRows {
    partition: PartitionId,
    shape: u32,
    rows: TableRows,
    places: Vec<Place>,
    bad: Vec<engine::BadRow>,
    /// Where the rows end; after a commit its end.
    end: Place,
    /// Whether the open transaction has rows here.
    is_touched: bool,
    bytes: usize,
}

/// What a cut gave.
pub(crate) struct Cut {
    /// In no order: tables do not wait for each other.
    pub(crate) batches: Vec<(PartitionId, Ready)>,
    /// The end of the last whole transaction; `None` inside the first.
    pub(crate) end: Option<Lsn>,
}

/// Rows of each partition that were handed over: `__offset` counts them, over all connections (P91).
pub(crate) type Issued = Arc<Mutex<BTreeMap<PartitionId, u64>>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Rounds {
    open: BTreeMap<RelationId, OpenRows>,
    issued: Issued,
    end: Option<Lsn>,
    is_inside: bool,
    since: Option<Instant>,
    is_full: bool,
}

impl Rounds {
    pub(crate) fn new(issued: Issued) -> Self {
        Rounds { issued, ..Rounds::default() }
    }

    /// A transaction begins.
    pub(crate) fn begin(&mut self) {
        self.is_inside = true;
    }

    /// It is whole: its rows end at its end.
    pub(crate) fn commit(&mut self, end: Lsn) {
        self.is_inside = false;
        self.end = Some(end);
        for open in self.open.values_mut() {
            if std::mem::take(&mut open.is_touched) {
                open.end = Place { at: end.0, within: 0 };
            }
        }
    }

    /// Appends a change. `Err`: a row that does not have the table's columns; nothing was appended.
    pub(crate) fn push(
        &mut self,
        relation: RelationId,
        partition: PartitionId,
        (shape, plan): (u32, &Arc<RowPlan>),
        stamp: Stamp,
        change: Change<'_>,
        now: Instant,
    ) -> Result<(), ColumnCount> {
        let open = self.open.entry(relation).or_insert_with(|| OpenRows {
            partition,
            shape,
            rows: TableRows::new(plan.clone()),
            places: Vec::new(),
            bad: Vec::new(),
            end: Place::START,
            is_touched: false,
            bytes: 0,
        });
        self.since.get_or_insert(now);
        let before = open.rows.rows();
        let result = match change {
            Change::Insert(new) => open.rows.insert(stamp, new),
            Change::Update(old, new) => open.rows.update(stamp, old, new),
            Change::Delete(old) => open.rows.delete(stamp, old),
            Change::Truncate => {
                open.rows.truncate(stamp);
                Ok(())
            }
            Change::Lost(_) => Ok(()),
        };
        let last = match change {
            Change::Update(..) | Change::Lost(LostRow { is_update: true, .. }) => stamp.seq + 1,
            _ => stamp.seq,
        };
        if let Change::Lost(LostRow { code, text, head, .. }) = change {
            let place = Place { at: stamp.commit_lsn.0, within: last };
            open.bytes += head.len();
            open.bad.push(engine::BadRow { place, code, text: text.to_owned(), bytes: Bytes::copy_from_slice(head) });
        }
        let at = stamp.commit_lsn.0;
        let rows = (open.rows.rows() - before) as u64;
        match &result {
            // A key change is two rows, at both numbers of its update; any other change is one, at its last.
            Ok(()) => open.places.extend((0..rows).map(|row| Place { at, within: last + 1 + row - rows })),
            // Of a key change the old row's end is here, and the new row is refused.
            Err(_) => open.places.extend((0..rows).map(|row| Place { at, within: stamp.seq + row })),
        }
        match result {
            Ok(()) => {}
            Err(Refused::Row(error)) => {
                let place = Place { at: stamp.commit_lsn.0, within: error.stamp.seq };
                open.bytes += error.received.len();
                let (code, text, bytes) = (error.code, error.text, Bytes::from(error.received));
                open.bad.push(engine::BadRow { place, code, text, bytes });
            }
            Err(Refused::Table(count)) => return Err(count),
            // Not more than one value of 2 GiB short of what a builder holds: the round is cut long before.
            Err(Refused::Full) => {
                let place = Place { at: stamp.commit_lsn.0, within: last };
                let text = format!("a row of {} does not fit into a batch of its own", plan.shape().name);
                open.bad.push(engine::BadRow {
                    place,
                    code: crate::row_codes::OUT_OF_RANGE,
                    text,
                    bytes: Bytes::new(),
                });
            }
        }
        open.end = Place { at: stamp.commit_lsn.0, within: last + 1 };
        open.is_touched = true;
        let count = open.rows.rows() + open.bad.len();
        self.is_full |= count >= ROWS_MAX;
        if count.is_multiple_of(ROWS_PER_LOOK) || self.is_full {
            open.bytes = open.rows.bytes() + open.bad.iter().map(|bad| bad.bytes.len() + bad.text.len()).sum::<usize>();
            self.is_full |= open.bytes >= TABLE_BYTES_MAX;
            self.is_full |= self.open.values().map(|open| open.bytes).sum::<usize>() >= ROUND_BYTES_MAX;
        }
        Ok(())
    }

    /// Whether the round is due: by size at once, by time only between transactions.
    pub(crate) fn is_due(&self, now: Instant, linger: Duration) -> bool {
        let has_waited = self.since.is_some_and(|since| now.saturating_duration_since(since) >= linger);
        let is_empty_run = self.open.is_empty() && self.end.is_some();
        self.is_full || (!self.is_inside && (has_waited || is_empty_run))
    }

    /// Whether anything is in no batch yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.end.is_none()
    }

    /// Whether a transaction has begun that is not whole.
    pub(crate) fn is_inside(&self) -> bool {
        self.is_inside
    }

    /// Rows of one table go now: its shape changes, or it is parked. They stay part of the round.
    pub(crate) fn cut_table(&mut self, relation: RelationId) -> Option<(PartitionId, Ready)> {
        let open = self.open.remove(&relation)?;
        Some(self.ready(open))
    }

    /// Cuts all builders together.
    pub(crate) fn cut(&mut self) -> Cut {
        let open = std::mem::take(&mut self.open);
        let batches = open.into_values().map(|open| self.ready(open)).collect();
        (self.since, self.is_full) = (None, false);
        Cut { batches, end: self.end.take() }
    }

    fn ready(&mut self, mut open: OpenRows) -> (PartitionId, Ready) {
        let count = open.rows.rows() as u64;
        let first = {
            let mut issued = self.issued.lock();
            let next = issued.entry(open.partition).or_default();
            let first = *next;
            *next += count;
            first
        };
        let bytes = open.rows.bytes() + open.bad.iter().map(|bad| bad.bytes.len()).sum::<usize>();
        let note = engine::TableNote { shape: open.shape, copy: engine::CopyMark::None };
        let (schema, key) = (open.rows.plan().schema().clone(), Arc::clone(open.rows.plan().key()));
        // Columns and schema come from one plan, so the batch can always be made.
        let rows = open.rows.finish(open.partition, Offset(first));
        let rows = rows.unwrap_or_else(|_| arrow_array::RecordBatch::new_empty(schema));
        let rows = engine::TableRows { rows, places: open.places.into(), bad: open.bad, note, key };
        (open.partition, Ready { rows, end: open.end, bytes })
    }
}
