//! What the controller's side and the tasks of a capture share: the record, the progress, events, and what the status
//! shows.
//!
//! The record is written by the tasks and by the controller's clock, and stored only in one transaction with the
//! watermarks (P99): a change of it has a number, and whoever needs it durable waits for that number. Locks guard memory
//! only (I5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use landfall_engine::FailCause;
use landfall_engine::contract::{LaneWaker, SourceError, SourceEvent, TableId, TableSpec};
use landfall_types::{PartitionId, Place};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::handover::{Generation, Handover};
use super::options::CaptureOptions;
use super::progress::Progress;
use super::report::{Sight, Stage};
use super::rounds::Issued;
use crate::feedback::DurableLsn;
use crate::record::{ParkNote, SlotRecord, SourceRecord, TablePhase, TableRecord};
use crate::{Lsn, RelationId, TableName};

/// The record, with how often it was changed and through which change it is stored.
#[derive(Default)]
struct RecordCell {
    record: Option<SourceRecord>,
    changes: u64,
    handed: u64,
}

/// A new table that could not be taken in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeftOut {
    pub(crate) name: TableName,
    pub(crate) cause: String,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) options: CaptureOptions,
    pub(crate) handover: Handover,
    pub(crate) progress: Mutex<Progress>,
    pub(crate) durable: Arc<DurableLsn>,
    record: Mutex<RecordCell>,
    stored: watch::Sender<u64>,
    events: Mutex<VecDeque<Result<SourceEvent, SourceError>>>,
    controller: Mutex<Option<LaneWaker>>,
    /// Partitions that the engine was told of.
    announced: Mutex<BTreeSet<PartitionId>>,
    specs: Mutex<BTreeMap<RelationId, TableSpec>>,
    /// Where what was handed over ends.
    ends: Mutex<BTreeMap<PartitionId, Place>>,
    refused: Mutex<BTreeMap<TableId, FailCause>>,
    /// Tables that cannot be carried, because a destination refuses their shape or they cannot be read: they are to be parked.
    pub(crate) unfit: watch::Sender<BTreeMap<RelationId, FailCause>>,
    pub(crate) issued: Issued,
    /// Copies whose rows are on their way or were all handed over, with the opening of the lane that has them: they need
    /// not be made again by what starts while this process lives.
    copying: Mutex<BTreeMap<PartitionId, Generation>>,
    /// Raised when the lane is opened anew: the stream starts again.
    pub(crate) reopened: watch::Sender<u64>,
    /// Raised when the record says more than is carried out: the stream starts again with it.
    pub(crate) ordered: watch::Sender<u64>,
    pub(crate) stop: watch::Sender<bool>,
    /// Whether it was said what of `tables` decides nothing.
    pub(crate) has_judged_choices: AtomicBool,
    pub(crate) sight: Mutex<Sight>,
    /// Tables that `tables` chooses and that the last look could not take in.
    pub(crate) left_out: Mutex<BTreeMap<RelationId, LeftOut>>,
}

impl Shared {
    pub(crate) fn new(options: CaptureOptions, record: Option<SourceRecord>, waker: LaneWaker) -> Arc<Self> {
        let through = record.as_ref().map_or(Lsn::ZERO, |record| record.through);
        Arc::new(Shared {
            handover: Handover::new(options.ready_bytes),
            options,
            progress: Mutex::new(Progress::new(through)),
            durable: DurableLsn::new(through),
            record: Mutex::new(RecordCell { record, ..RecordCell::default() }),
            stored: watch::Sender::new(0),
            events: Mutex::default(),
            controller: Mutex::new(Some(waker)),
            announced: Mutex::default(),
            specs: Mutex::default(),
            ends: Mutex::default(),
            refused: Mutex::default(),
            unfit: watch::Sender::new(BTreeMap::new()),
            issued: Issued::default(),
            copying: Mutex::default(),
            reopened: watch::Sender::new(0),
            ordered: watch::Sender::new(0),
            stop: watch::Sender::new(false),
            has_judged_choices: AtomicBool::new(false),
            sight: Mutex::default(),
            left_out: Mutex::default(),
        })
    }

    pub(crate) fn record(&self) -> Option<SourceRecord> {
        self.record.lock().record.clone()
    }

    /// Looks at the record.
    pub(crate) fn with_record<T>(&self, look: impl FnOnce(Option<&SourceRecord>) -> T) -> T {
        look(self.record.lock().record.as_ref())
    }

    /// Replaces the record; gives the number of the change. What the commit clock has settled of the same slot since the
    /// record was looked at stays: the server may have been told of it already (P44).
    pub(crate) fn put_record(&self, mut record: SourceRecord) -> u64 {
        let mut cell = self.record.lock();
        if let Some(before) = cell.record.as_ref().filter(|before| before.slot == record.slot) {
            record.through = record.through.max(before.through);
            record.last_commit = record.last_commit.max(before.last_commit);
        }
        cell.record = Some(record);
        cell.changes += 1;
        cell.changes
    }

    /// Changes the record, if there is one; gives the number of the change.
    pub(crate) fn change_record(&self, change: impl FnOnce(&mut SourceRecord)) -> u64 {
        let mut cell = self.record.lock();
        if let Some(record) = &mut cell.record {
            change(record);
            cell.changes += 1;
        }
        cell.changes
    }

    /// Changes the record if the change goes well; gives its number with what it gave.
    pub(crate) fn try_change_record<T, E>(
        &self,
        change: impl FnOnce(Option<&mut SourceRecord>) -> Result<T, E>,
    ) -> Result<(u64, T), E> {
        let mut cell = self.record.lock();
        let changed = change(cell.record.as_mut())?;
        cell.changes += 1;
        Ok((cell.changes, changed))
    }

    /// The record says more than is carried out.
    pub(crate) fn carry_out(&self) {
        self.ordered.send_modify(|times| *times += 1);
    }

    /// Copies begin, for an opening of the lane.
    pub(crate) fn copies_begin(&self, partitions: &[PartitionId], generation: Generation) {
        self.copying.lock().extend(partitions.iter().map(|partition| (*partition, generation)));
    }

    /// A stream starts with this opening of the lane: copies that an earlier one had taken are not waited for any more, and
    /// nothing that settles late may call their tables copied, since nobody follows them.
    pub(crate) fn keep_copies_of(&self, generation: Generation) {
        self.copying.lock().retain(|_, of| *of == generation);
    }

    /// Copies that will not come to their end. A table that was parked meanwhile is not copied again by itself: what waits
    /// for its copy would wait for ever, and hold the slot.
    pub(crate) fn copies_fail(&self, partitions: &[PartitionId]) {
        {
            let mut copying = self.copying.lock();
            for partition in partitions {
                copying.remove(partition);
            }
        }
        let given_up = self.with_record(|record| {
            let tables = record.iter().flat_map(|record| &record.tables);
            let parked = tables.filter(|table| table.phase == TablePhase::Parked).filter_map(|table| {
                let copy = PartitionId(table.copy.as_ref()?.partition);
                partitions.contains(&copy).then_some([PartitionId(table.stream_partition), copy])
            });
            parked.flatten().collect()
        });
        self.retire(given_up);
    }

    /// Whether a table is still to be copied: its copy has not begun, or its rows were lost with what had taken them.
    pub(crate) fn wants_copy(&self, table: &TableRecord, generation: Generation) -> bool {
        match (table.phase, &table.copy) {
            (TablePhase::Waiting, _) | (TablePhase::Copying, None) => true,
            (TablePhase::Copying, Some(copy)) => {
                self.copying.lock().get(&PartitionId(copy.partition)) != Some(&generation)
            }
            _ => false,
        }
    }

    /// The tables that are still to be copied.
    pub(crate) fn wanting(&self, generation: Generation) -> BTreeSet<RelationId> {
        self.with_record(|record| {
            let tables = record.iter().flat_map(|record| &record.tables);
            tables.filter(|table| self.wants_copy(table, generation)).map(|table| table.relation).collect()
        })
    }

    /// Asks for a commit now: the record is stored with it, and shown.
    pub(crate) fn want_stored(&self) {
        self.send(SourceEvent::CommitWanted(Vec::new()));
    }

    /// Asks for a commit now, and waits until this change of the record is stored.
    pub(crate) async fn stored(&self, change: u64) {
        self.want_stored();
        let mut stored = self.stored.subscribe();
        // The sender lives as long as this.
        let _ = stored.wait_for(|stored| *stored >= change).await;
    }

    /// For the transaction with these watermarks: the record, where it is another than the stored one.
    pub(crate) fn record_for(&self, below: &BTreeMap<PartitionId, Place>) -> Option<Bytes> {
        let through = {
            let mut progress = self.progress.lock();
            progress.settled(below);
            progress.through()
        };
        let last_commit = self.sight.lock().last_commit.map(|(lsn, _)| lsn);
        let stored = *self.stored.borrow();
        let mut cell = self.record.lock();
        let record = cell.record.as_mut()?;
        let mut is_changed = false;
        // A record that begins anew has no place of the slot before.
        if through > record.through && matches!(record.slot, SlotRecord::Made(_)) {
            record.through = through;
            record.last_commit = last_commit.unwrap_or_default().max(record.last_commit).min(through);
            is_changed = true;
        }
        for table in &mut record.tables {
            let Some(copy) = &table.copy else { continue };
            let end = Place { at: copy.consistent_point.0, within: 0 };
            let is_done = below.get(&PartitionId(copy.partition)).is_some_and(|place| *place >= end);
            let is_under_way = || self.copying.lock().contains_key(&PartitionId(copy.partition));
            if table.phase == TablePhase::Copying && is_done && is_under_way() {
                table.phase = TablePhase::Streaming;
                is_changed = true;
            }
        }
        if is_changed {
            cell.changes += 1;
        }
        if cell.changes <= stored {
            return None;
        }
        cell.handed = cell.changes;
        cell.record.as_ref().map(SourceRecord::encode)
    }

    /// What was handed over last is stored: it may be told to the server, and copies that are done are over.
    pub(crate) fn is_stored(&self, below: &BTreeMap<PartitionId, Place>) {
        let (handed, through, done) = {
            let cell = self.record.lock();
            let record = cell.record.as_ref();
            let copies =
                record.iter().flat_map(|record| &record.tables).filter(|table| table.phase != TablePhase::Copying);
            let announced = self.announced.lock();
            let done: Vec<PartitionId> = copies
                .filter_map(|table| table.copy.as_ref())
                .filter(|copy| {
                    let end = Place { at: copy.consistent_point.0, within: 0 };
                    below.get(&PartitionId(copy.partition)).is_some_and(|place| *place >= end)
                })
                .map(|copy| PartitionId(copy.partition))
                .filter(|partition| announced.contains(partition))
                .collect();
            (cell.handed, record.map(|record| record.through), done)
        };
        self.stored.send_if_modified(|stored| {
            let is_later = handed > *stored;
            *stored = handed.max(*stored);
            is_later
        });
        // A change made since is not stored, but `through` is only ever changed by the one who hands it over.
        if let Some(through) = through {
            self.durable.advance(through);
        }
        if !done.is_empty() {
            self.retire(done);
        }
    }

    pub(crate) fn send(&self, event: SourceEvent) {
        self.events.lock().push_back(Ok(event));
        self.wake_controller();
    }

    /// The source cannot go on as it is: the pipeline restarts by its back-off, with this as its cause.
    pub(crate) fn fail(&self, error: SourceError) {
        self.events.lock().push_back(Err(error));
        self.wake_controller();
    }

    fn wake_controller(&self) {
        let waker = self.controller.lock().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn next_event(&self) -> Option<Result<SourceEvent, SourceError>> {
        self.events.lock().pop_front()
    }

    /// Tells the engine of tables and of partitions that it does not know yet.
    pub(crate) fn announce(&self, specs: Vec<TableSpec>, partitions: Vec<PartitionId>) {
        let new_specs: Vec<TableSpec> = {
            let mut known = self.specs.lock();
            let is_new = |spec: &TableSpec| known.get(&RelationId(spec.id.0)) != Some(spec);
            let new_specs: Vec<TableSpec> = specs.into_iter().filter(is_new).collect();
            known.extend(new_specs.iter().map(|spec| (RelationId(spec.id.0), spec.clone())));
            new_specs
        };
        if !new_specs.is_empty() {
            self.send(SourceEvent::Tables(new_specs));
        }
        let new: Vec<PartitionId> = {
            let mut announced = self.announced.lock();
            partitions.into_iter().filter(|partition| announced.insert(*partition)).collect()
        };
        if !new.is_empty() {
            self.send(SourceEvent::Added(new));
        }
    }

    /// A round is on its way. Of a partition that is retired meanwhile nothing is waited for: whoever retires it takes it off the
    /// list first and forgets it then, so it is either not on the list here or forgotten after this.
    pub(crate) fn issued(&self, mut parts: Vec<(PartitionId, Place)>, end: Option<Lsn>) {
        let mut progress = self.progress.lock();
        {
            let announced = self.announced.lock();
            parts.retain(|(partition, _)| announced.contains(partition));
        }
        progress.issued(parts, end);
    }

    /// Partitions that are read to their end, or given up.
    pub(crate) fn retire(&self, partitions: Vec<PartitionId>) {
        // In this order: see `issued`.
        let gone: Vec<PartitionId> = {
            let mut announced = self.announced.lock();
            partitions.into_iter().filter(|partition| announced.remove(partition)).collect()
        };
        let mut is_read_again = false;
        for partition in &gone {
            is_read_again |= self.handover.forget(*partition);
            self.progress.lock().forget(*partition);
            self.ends.lock().remove(partition);
            self.copying.lock().remove(partition);
        }
        if !gone.is_empty() {
            self.send(SourceEvent::Retired(gone));
        }
        if is_read_again {
            self.carry_out();
        }
    }

    /// The engine learns of a shape by its first batch.
    pub(crate) fn has_shape(&self, spec: TableSpec) {
        self.specs.lock().insert(RelationId(spec.id.0), spec);
    }

    /// Whether the engine knows a table under this number with other columns, or another key.
    pub(crate) fn is_other_shape(&self, spec: &TableSpec) -> bool {
        let known = self.specs.lock();
        known
            .get(&RelationId(spec.id.0))
            .is_some_and(|known| known.shape == spec.shape && (known.schema != spec.schema || known.key != spec.key))
    }

    /// Whether the engine was told of a partition and not of its end.
    pub(crate) fn is_announced(&self, partition: PartitionId) -> bool {
        self.announced.lock().contains(&partition)
    }

    /// The number of the shape that a table was last known in, and a later one.
    pub(crate) fn next_shape(&self, relation: RelationId) -> u32 {
        let mut shape = 1;
        self.change_record(|record| {
            if let Some(table) = record.table_mut(relation) {
                table.shape = table.shape.saturating_add(1);
                shape = table.shape;
            }
        });
        shape
    }

    pub(crate) fn handed_over(&self, partition: PartitionId, end: Place) {
        // Of one that was given up, nothing is ahead.
        if self.is_announced(partition) {
            self.ends.lock().insert(partition, end);
        }
    }

    pub(crate) fn ends(&self) -> Vec<(PartitionId, Place)> {
        self.ends.lock().iter().map(|(partition, end)| (*partition, *end)).collect()
    }

    pub(crate) fn set_refused(&self, table: TableId, cause: Option<FailCause>) {
        if let Some(cause) = cause.as_ref().filter(|cause| self.options.shape_refusals.contains(&cause.code)) {
            let text = format!("its destination cannot hold it as it is: {}", cause.text);
            self.set_unfit(RelationId(table.0), FailCause::new(cause.code, text));
        }
        let mut refused = self.refused.lock();
        match cause {
            Some(cause) => refused.insert(table, cause),
            None => refused.remove(&table),
        };
    }

    /// A table cannot be carried: it is parked by whoever reads now.
    pub(crate) fn set_unfit(&self, relation: RelationId, cause: FailCause) {
        self.unfit.send_modify(|unfit| {
            unfit.insert(relation, cause);
        });
        self.handover.nudge();
    }

    /// Whether a table's rows pass by.
    pub(crate) fn is_parked(&self, relation: RelationId) -> bool {
        self.with_record(|record| {
            let table = record.and_then(|record| record.table(relation));
            table.is_some_and(|table| table.phase == TablePhase::Parked)
        })
    }

    /// Parks the tables that cannot be carried and are being copied: what came of them is dropped. The note is in the record
    /// before their partitions are given up, so it is stored with whatever passes them (P87).
    pub(crate) fn park_unfit(&self) {
        let unfit = self.unfit.borrow().clone();
        if unfit.is_empty() {
            return;
        }
        let (mut parked, mut given_up) = (Vec::new(), Vec::new());
        self.change_record(|record| {
            for table in &mut record.tables {
                let is_done = matches!(table.phase, TablePhase::Parked | TablePhase::Removed);
                let Some(cause) = unfit.get(&table.relation).filter(|_| !is_done) else { continue };
                let at = table.copy.as_ref().map_or(record.through, |copy| copy.consistent_point);
                table.phase = TablePhase::Parked;
                let (code, reason) = (cause.code.to_string(), cause.text.to_string());
                table.park = Some(ParkNote { at, passed: at, code, reason });
                given_up.push(PartitionId(table.stream_partition));
                given_up.extend(table.copy.as_ref().map(|copy| PartitionId(copy.partition)));
                parked.push((table.target.clone(), cause.clone()));
            }
        });
        for (table, cause) in &parked {
            tracing::error!(pipeline = %self.options.pipeline, %table, code = %cause.code,
                "table parked, its neighbours go on: {}; `landfall tables CONFIG {} resync {table}` copies it anew",
                cause.text, self.options.pipeline);
        }
        self.retire(given_up);
    }

    /// The stream says that a table was emptied, which the catalog shows as well.
    pub(crate) fn truncate_told(&self, relation: RelationId, commit: Lsn) {
        self.change_record(|record| {
            if let Some(watched) = record.table_mut(relation).and_then(|table| table.watched.as_mut()) {
                watched.truncated = watched.truncated.max(commit);
            }
        });
    }

    /// The columns of a table's key, as the engine was told of them.
    pub(crate) fn key_of(&self, relation: RelationId) -> Vec<Arc<str>> {
        self.specs.lock().get(&relation).map(|spec| spec.key.to_vec()).unwrap_or_default()
    }

    /// Why a table's rows are not taken, if they are not.
    pub(crate) fn refused(&self, table: TableId) -> Option<FailCause> {
        self.refused.lock().get(&table).cloned()
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.sight.lock().stage = stage;
    }
}

#[cfg(test)]
mod tests;
