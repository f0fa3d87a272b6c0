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
    /// Changes taken in.
    changes: u64,
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
    /// Tables in which the open transaction has rows: a commit costs as much as it has tables.
    touched: Vec<RelationId>,
    /// Changes of what was cut, until they are asked for.
    changes: BTreeMap<RelationId, u64>,
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
        for relation in self.touched.drain(..) {
            // What was cut inside the transaction is not open any more, or open anew.
            if let Some(open) = self.open.get_mut(&relation).filter(|open| open.is_touched) {
                open.is_touched = false;
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
            changes: 0,
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
        open.changes += 1;
        if !std::mem::replace(&mut open.is_touched, true) {
            self.touched.push(relation);
        }
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
        Some(self.ready(relation, open))
    }

    /// Cuts all builders together.
    pub(crate) fn cut(&mut self) -> Cut {
        let open = std::mem::take(&mut self.open);
        let batches = open.into_iter().map(|(relation, open)| self.ready(relation, open)).collect();
        (self.since, self.is_full) = (None, false);
        Cut { batches, end: self.end.take() }
    }

    /// How many changes of each table were cut since this was asked last.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<RelationId, u64> {
        std::mem::take(&mut self.changes)
    }

    fn ready(&mut self, relation: RelationId, mut open: OpenRows) -> (PartitionId, Ready) {
        *self.changes.entry(relation).or_default() += open.changes;
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

#[cfg(test)]
mod tests {
    use landfall_types::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::Xid;
    use crate::fixtures::table;
    use crate::rows::RowOptions;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Row(u32),
        Commit,
        Cut,
        CutTable(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1u32..4).prop_map(Step::Row),
            3 => Just(Step::Commit),
            1 => Just(Step::Cut),
            1 => (1u32..4).prop_map(Step::CutTable),
        ]
    }

    /// A table's open rows as a plain list of what each was part of.
    #[derive(Clone, Copy, Debug)]
    struct Open {
        rows: u64,
        transaction: u64,
        last: u64,
        is_committed: bool,
    }

    impl Open {
        fn end(self) -> Place {
            let at = self.transaction;
            if self.is_committed { Place { at: at + 5, within: 0 } } else { Place { at, within: self.last + 1 } }
        }
    }

    proptest! {
        /// Catches rows whose range ends inside a transaction that is whole, or at the end of one that is not, wherever
        /// rounds and single tables are cut (P98), and changes that are counted twice or not at all.
        #[test]
        fn a_range_ends_with_the_transaction_of_its_last_row(steps in prop::collection::vec(step(), 1..80)) {
            let plan = |oid| RowPlan::new(Arc::new(table(oid, "t").shape), RowOptions::default()).map(Arc::new);
            let plans: Vec<_> = (0..4).map(plan).collect::<Result<_, _>>().unwrap();
            let mut rounds = Rounds::default();
            let (mut model, mut pushed) = (BTreeMap::<u32, Open>::new(), BTreeMap::<u32, u64>::new());
            let (mut transaction, mut seq) = (10, 0);
            rounds.begin();
            for step in steps {
                match step {
                    Step::Row(id) => {
                        seq += 1;
                        let stamp = Stamp {
                            commit_lsn: Lsn(transaction),
                            seq,
                            commit_time: Timestamp(0),
                            xid: Some(Xid(1)),
                        };
                        let code = crate::row_codes::OUT_OF_RANGE;
                        let lost = Change::Lost(LostRow { is_update: false, code, text: "", head: b"" });
                        let made = (1, &plans[id as usize]);
                        rounds.push(RelationId(id), PartitionId(id), made, stamp, lost, Instant::now()).unwrap();
                        let rows = model.get(&id).map_or(0, |open| open.rows) + 1;
                        model.insert(id, Open { rows, transaction, last: seq, is_committed: false });
                        *pushed.entry(id).or_default() += 1;
                    }
                    Step::Commit => {
                        rounds.commit(Lsn(transaction + 5));
                        for open in model.values_mut().filter(|open| open.transaction == transaction) {
                            open.is_committed = true;
                        }
                        (transaction, seq) = (transaction + 10, 0);
                        rounds.begin();
                    }
                    Step::Cut => {
                        let cut = rounds.cut();
                        let ends: BTreeMap<u32, (Place, u64)> = cut
                            .batches
                            .iter()
                            .map(|(partition, ready)| (partition.0, (ready.end, ready.rows.bad.len() as u64)))
                            .collect();
                        let expected: BTreeMap<u32, (Place, u64)> =
                            std::mem::take(&mut model).into_iter().map(|(id, open)| (id, (open.end(), open.rows))).collect();
                        prop_assert_eq!(ends, expected);
                    }
                    Step::CutTable(id) => {
                        let cut = rounds.cut_table(RelationId(id)).map(|(_, ready)| ready.end);
                        prop_assert_eq!(cut, model.remove(&id).map(Open::end));
                    }
                }
            }
            rounds.cut();
            let counted: BTreeMap<u32, u64> = rounds.take_changes().into_iter().map(|(id, count)| (id.0, count)).collect();
            prop_assert_eq!(counted, pushed);
        }
    }
}
