//! Copied rows on their way to the engine (P54–P56, P95).
//!
//! A copy's rows stand at (C − 1, n) with n in the order in which they are handed over, so a copy that was begun is never
//! taken up again under another snapshot: an interrupted one starts anew, as a partition of its own, and its first batch
//! says so (P98). The first batch of each table says that its copy begins, the last that it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_engine::FailCause;
use landfall_engine::contract::{BadRow, CopyMark, TableNote, TableRows as EngineRows};
use landfall_types::{Clock, Offset, PartitionId, Place, SystemClock};

use super::handover::{Generation, Ready};
use super::report::Stage;
use super::shared::Shared;
use super::table::Captured;
use super::task::Ended;
use crate::copy::CopyLines;
use crate::rows::{Refused, RowPlan, Stamp, TableRows};
use crate::snapshot::{CopiedRanges, CopyEvent, CopyOptions, CopySnapshot, CopyTable, start_copy};
use crate::{Lsn, RelationId, TableFacts};

const ROWS_MAX: usize = 8_192;
const BYTES_MAX: usize = 1 << 20;
const ROWS_PER_LOOK: usize = 64;
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// A table to copy: what to read, how to make rows of it, and the partition of this copy.
pub(super) struct ToCopy {
    pub(super) facts: TableFacts,
    pub(super) table: Captured,
    pub(super) partition: PartitionId,
}

/// One table's copy.
struct Open {
    partition: PartitionId,
    shape: u32,
    plan: Arc<RowPlan>,
    rows: TableRows,
    places: Vec<Place>,
    bad: Vec<BadRow>,
    /// Rows so far: the n of the next place is one more.
    count: u64,
    /// Good rows that were handed over.
    issued: u64,
    has_begun: bool,
    generation: Generation,
}

/// Copies tables under a snapshot, for an opening of the lane; ends when every row was handed over. `is_beside`: while the
/// stream goes on.
pub(super) async fn copy(
    shared: &Arc<Shared>,
    snapshot: CopySnapshot,
    options: CopyOptions,
    tables: Vec<ToCopy>,
    generation: Generation,
    is_beside: bool,
) -> Result<(), Ended> {
    let point = snapshot.consistent_point;
    let stamp = Stamp::snapshot(point, SystemClock.now());
    let mut open: HashMap<RelationId, Open> = HashMap::new();
    let mut wanted = Vec::with_capacity(tables.len());
    for ToCopy { facts, table, partition } in tables {
        let rows = TableRows::new(Arc::clone(&table.plan));
        let (places, bad) = (Vec::new(), Vec::new());
        let (shape, plan) = (table.shape, table.plan);
        let of_table =
            Open { partition, shape, plan, rows, places, bad, count: 0, issued: 0, has_begun: false, generation };
        open.insert(table.relation, of_table);
        wanted.push(CopyTable { facts, done: CopiedRanges::default() });
    }
    let line_bytes_max = options.row_bytes_max;
    let mut run = start_copy(options, shared.options.connect.clone(), snapshot, wanted);
    let mut reported = Instant::now();
    let mut rewritten = Vec::new();
    let show = |report| match is_beside {
        true => shared.sight.lock().copy = Some(report),
        false => shared.set_stage(Stage::Copying(report)),
    };
    show(run.report());
    while let Some(event) = run.next().await {
        match event.map_err(|error| Ended::later(&error))? {
            CopyEvent::Rows(chunk) => {
                // Of a table that was parked, removed or ordered anew meanwhile, nothing more is made.
                let table = open.get_mut(&chunk.range.table).filter(|table| shared.is_announced(table.partition));
                let Some(table) = table else { continue };
                let mut lines = CopyLines::new(line_bytes_max);
                lines.feed(chunk.bytes);
                while let Some(line) = lines.next_line().map_err(|error| Ended::later(&error))? {
                    table.add(stamp, &line)?;
                    if table.is_full() {
                        table.hand_over(shared, point, CopyMark::None, false).await;
                    }
                }
                lines.finish().map_err(|error| Ended::later(&error))?;
                if reported.elapsed() >= REPORT_EVERY {
                    reported = Instant::now();
                    show(run.report());
                }
            }
            CopyEvent::RangeDone { .. } => {}
            CopyEvent::Refused { table, code, text } => {
                open.remove(&table);
                // Wherever a cause is shown, its code stands before it.
                let text = text.strip_suffix(&format!(" ({code})")).unwrap_or(&text).to_owned();
                shared.set_unfit(table, FailCause::new(code, text));
                shared.park_unfit();
            }
            CopyEvent::Rewritten { table } => rewritten.extend(open.remove(&table)),
            CopyEvent::TableDone { table } => {
                let Some(mut done) = open.remove(&table) else { continue };
                if !shared.is_announced(done.partition) {
                    continue;
                }
                done.say_if_empty(stamp);
                if !done.has_begun || !done.places.is_empty() || !done.bad.is_empty() {
                    done.hand_over(shared, point, CopyMark::None, false).await;
                }
                done.hand_over(shared, point, CopyMark::Ends(place(point)), true).await;
                tracing::info!(pipeline = %shared.options.pipeline, table = %done.plan.shape().name, rows = done.count,
                    point = %point, "table copied");
                let mut sight = shared.sight.lock();
                *sight.rows.entry(table).or_default() += done.count;
            }
        }
    }
    if let Some(table) = rewritten.first() {
        let text = format!(
            "{} was rewritten, emptied or dropped between the snapshot and its copy (LF-PG0606): it is copied again from a fresh one",
            table.plan.shape().name
        );
        return Err(Ended::Later { code: crate::code::REWRITTEN, text });
    }
    match open.values().next() {
        None => Ok(()),
        Some(left) => Err(Ended::Later {
            code: crate::code::COPY_FAILED,
            text: format!("the copy of {} ended before its last row", left.plan.shape().name),
        }),
    }
}

fn place(point: Lsn) -> Place {
    Place { at: point.0, within: 0 }
}

impl Open {
    fn add(&mut self, stamp: Stamp, line: &crate::CopyLine<'_>) -> Result<(), Ended> {
        let at = stamp.commit_lsn.0.saturating_sub(1);
        let place = Place { at, within: self.count + 1 };
        match self.rows.copied(stamp, line) {
            Ok(()) => self.places.push(place),
            Err(Refused::Row(error)) => {
                let (code, text, bytes) = (error.code, error.text, Bytes::from(error.received));
                self.bad.push(BadRow { place, code, text, bytes });
            }
            // The shape was read under the same snapshot.
            Err(Refused::Table(count)) => return Err(Ended::later(&count)),
            Err(Refused::Full) => {
                let text = format!("a row of {} does not fit into a batch", self.plan.shape().name);
                self.bad.push(BadRow { place, code: crate::row_codes::OUT_OF_RANGE, text, bytes: Bytes::new() });
            }
        }
        self.count += 1;
        Ok(())
    }

    /// Waits for room. False: the table was parked meanwhile, and its rows are void.
    async fn has_room(&self, shared: &Shared) -> bool {
        let mut unfit = shared.unfit.subscribe();
        loop {
            // Also of another table, whose rows may be what fills the room.
            shared.park_unfit();
            if shared.is_parked(self.plan.shape().relation) {
                return false;
            }
            tokio::select! {
                () = shared.handover.room_for_copy(self.partition) => return true,
                _ = unfit.changed() => {}
            }
        }
    }

    /// A copy replaces everything before it, and its rows say so. One without a row says it by a row like that of a
    /// TRUNCATE, at the copy's point and before every change of the stream (P73, P95).
    fn say_if_empty(&mut self, stamp: Stamp) {
        if self.issued > 0 || self.rows.rows() > 0 {
            return;
        }
        self.rows.truncate(stamp);
        if self.rows.rows() > 0 {
            self.count += 1;
            self.places.push(Place { at: stamp.commit_lsn.0.saturating_sub(1), within: self.count });
        }
    }

    fn is_full(&self) -> bool {
        let count = self.places.len() + self.bad.len();
        count >= ROWS_MAX || (count.is_multiple_of(ROWS_PER_LOOK) && self.rows.bytes() >= BYTES_MAX)
    }

    async fn hand_over(&mut self, shared: &Arc<Shared>, point: Lsn, mark: CopyMark, is_last: bool) {
        if !self.has_room(shared).await {
            self.places.clear();
            self.bad.clear();
            self.rows = TableRows::new(Arc::clone(&self.plan));
            return;
        }
        let copy = if std::mem::replace(&mut self.has_begun, true) { mark } else { CopyMark::Begins(place(point)) };
        let bytes = self.rows.bytes() + self.bad.iter().map(|bad| bad.bytes.len()).sum::<usize>();
        let count = self.rows.rows() as u64;
        let schema = self.plan.schema().clone();
        // Columns and schema come from one plan, so the batch can always be made.
        let rows = self.rows.finish(self.partition, Offset(self.issued));
        let rows = rows.unwrap_or_else(|_| arrow_array::RecordBatch::new_empty(schema));
        self.issued += count;
        let end = match is_last {
            true => place(point),
            false => Place { at: point.0.saturating_sub(1), within: self.count + 1 },
        };
        let note = TableNote { shape: self.shape, copy };
        let places = std::mem::take(&mut self.places).into();
        let key = Arc::clone(self.plan.key());
        let rows = EngineRows { rows, places, bad: std::mem::take(&mut self.bad), note, key };
        shared.handed_over(self.partition, end);
        shared.handover.push(self.generation, self.partition, Ready { rows, end, bytes });
    }
}
