//! What a stream starts with, by what was decided: a first start, a slot that is taken over, or the checkpoint (P52, P57).
//!
//! The record is changed in place, under its lock and from what was asked of the server before: an order that comes
//! meanwhile is never written over.

use std::collections::BTreeMap;
use std::sync::Arc;

use landfall_types::PartitionId;
use rand::RngExt;

use super::copies::{self, Copies};
use super::copy::{self, ToCopy};
use super::handover::Generation;
use super::moves::left_text;
use super::options::CaptureOptions;
use super::report::Stage;
use super::shared::Shared;
use super::table::{Captured, Parked};
use super::task::{Ended, Seen, tables};
use crate::catalog::{ServerFacts, TableFacts};
use crate::publication::{PublicationFacts, plan_publication};
use crate::record::{CopyRecord, ParkNote, SlotRecord, SourceRecord, TablePhase, TableRecord};
use crate::slot::ExportedSlot;
use crate::snapshot::CopiedRanges;
use crate::sql::SqlConnection;
use crate::transport::ReplicationConnection;
use crate::{Lsn, RelationId, TableName, code};

/// What is streamed, and over which connection.
pub(super) struct Starts {
    pub(super) connection: Option<ReplicationConnection>,
    pub(super) tables: Vec<Captured>,
    pub(super) from: Lsn,
}

pub(super) async fn first_start(
    shared: &Arc<Shared>,
    sql: &SqlConnection,
    seen: &Seen,
    publication: &crate::PublicationPlan,
    drops_orphan: bool,
    generation: Generation,
) -> Result<Starts, Ended> {
    let options = &shared.options;
    if seen.tables.tables.is_empty() {
        let patterns: Vec<String> = options.tables.iter().map(|choice| choice.pattern.to_string()).collect();
        let text = format!(
            "no table of the database matches `tables` ({}): correct the names, or create the tables (LF-PG0503)",
            patterns.join(", ")
        );
        return Err(Ended::Final { code: code::NO_TABLE, text });
    }
    let server = &seen.server;
    let mut record = intent(options, server);
    // Places of a slot that was here before may still be in a destination, under its partitions' numbers: they go on where
    // it is known where they were, and begin anywhere else.
    let before = shared.with_record(|record| record.map(|record| (record.epoch, record.next_partition)));
    record.epoch = before.map_or(1, |(epoch, _)| epoch);
    let known = before.map(|(_, next)| next).filter(|next| *next > 0);
    record.next_partition = known.unwrap_or_else(|| rand::rng().random_range(1..u32::MAX / 2));
    shared.stored(shared.put_record(record.clone())).await;
    shared.set_stage(Stage::CreatingSlot);
    let timeout = options.slot_timeout;
    let exported = ExportedSlot::first(&options.connect, sql, &options.slot, timeout, publication, drops_orphan).await;
    let exported = exported.map_err(|error| Ended::later(&error))?;
    let point = exported.consistent_point();
    let published = PublicationFacts::read(sql, server.major(), &options.publication).await;
    let published = published.map_err(|error| Ended::later(&error))?;
    let frozen = options.sql().await.map_err(|error| Ended::later(&error))?;
    frozen.enter_snapshot(&exported.snapshot().name).await.map_err(|error| Ended::later(&error))?;
    let matched = tables(&frozen, options, published.as_ref()).await?;
    let mut sightings = copies::sightings(&frozen, options, &matched.tables).await?;
    drop(frozen);
    let phase = if options.copies { TablePhase::Copying } else { TablePhase::Streaming };
    let (mut follows, mut copies) = (Vec::new(), Vec::new());
    let change = shared.change_record(|record| {
        record.made(exported.identity(server));
        for facts in matched.tables {
            let name = &facts.shape.name;
            let Some((stream, partition)) = record.take_partition().zip(record.take_partition()) else { continue };
            let copy = CopyRecord { partition, consistent_point: point, done: CopiedRanges::default() };
            let mut table = fresh(&facts, stream, phase, Some(copy));
            table.watched = sightings.remove(&table.relation);
            let made = match Captured::new(&table, &facts, options) {
                Ok(_) if publication.refused.contains(name) => Err(no_identity(name)),
                made => made,
            };
            match made {
                Ok(captured) => {
                    follows.push(captured.clone());
                    copies.push(ToCopy { facts, table: captured, partition: PartitionId(partition) });
                }
                Err(parked) => park(shared, &mut table, point, parked),
            }
            record.tables.push(table);
        }
        record.through = point;
    });
    shared.progress.lock().idle(point);
    shared.stored(change).await;
    announce(shared, generation, &follows, if options.copies { &copies } else { &[] });
    if options.copies {
        copy_all(shared, &exported, &seen.server, copies, generation).await?;
    }
    Ok(Starts { connection: Some(exported.into_connection()), tables: follows, from: point })
}

/// What is stored before anything is made (P52).
fn intent(options: &CaptureOptions, server: &ServerFacts) -> SourceRecord {
    let slot = options.slot.clone();
    SourceRecord::intent(slot, server.system_identifier, server.database_oid, server.timeline, options.option_set())
}

fn no_identity(name: &crate::TableName) -> Parked {
    let table = crate::sql::relation(name);
    let reason = format!(
        "{name} has no key that changes could be told by: `ALTER TABLE {table} ADD PRIMARY KEY (…);` or `ALTER TABLE {table} REPLICA IDENTITY FULL;`, then resync it"
    );
    Parked { code: code::IDENTITY, reason }
}

fn park(shared: &Shared, table: &mut TableRecord, at: Lsn, Parked { code, reason }: Parked) {
    tracing::error!(pipeline = %shared.options.pipeline, table = %table.target, %code, "table parked, its neighbours go on: {reason}");
    table.phase = TablePhase::Parked;
    table.park = Some(ParkNote { at, passed: at, code: code.to_string(), reason });
}

/// From where another's slot stands, without a copy.
pub(super) async fn adopt(shared: &Arc<Shared>, seen: &Seen, at: Lsn, generation: Generation) -> Result<Starts, Ended> {
    let (options, server) = (&shared.options, &seen.server);
    let mut record = intent(options, server);
    record.made(crate::SlotIdentity {
        system_identifier: server.system_identifier,
        database_oid: server.database_oid,
        slot: options.slot.clone(),
        plugin: crate::PLUGIN.to_owned(),
        consistent_point: at,
    });
    record.next_partition = rand::rng().random_range(1..u32::MAX / 2);
    record.through = at;
    let mut follows = Vec::new();
    for facts in &seen.tables.tables {
        let Some((stream, partition)) = record.take_partition().zip(record.take_partition()) else { continue };
        let copy = CopyRecord { partition, consistent_point: at, done: CopiedRanges::default() };
        let mut table = fresh(facts, stream, TablePhase::Streaming, Some(copy));
        match Captured::new(&table, facts, options) {
            Ok(captured) => follows.push(captured),
            Err(parked) => park(shared, &mut table, at, parked),
        }
        record.tables.push(table);
    }
    shared.progress.lock().idle(at);
    shared.stored(shared.put_record(record)).await;
    announce(shared, generation, &follows, &[]);
    Ok(Starts { connection: None, tables: follows, from: at })
}

/// From the checkpoint. Tables that are to be copied are followed once a snapshot is ready for them, from its point on.
pub(super) async fn resume(
    shared: &Arc<Shared>,
    sql: &SqlConnection,
    seen: &Seen,
    raises_epoch: bool,
    copies: &mut Copies,
    generation: Generation,
) -> Result<Starts, Ended> {
    let options = &shared.options;
    let published = PublicationFacts::read(sql, seen.server.major(), &options.publication).await;
    // Dropped since this was decided: not what became of each table, and the decision says what to do.
    let Some(published) = published.map_err(|error| Ended::later(&error))? else { return Err(Ended::Again) };
    let now = tables(sql, options, Some(&published)).await?.tables;
    // Of these, rows may be in no stream: they are taken in once they are published.
    let lacking = plan_publication(&options.publication, Some(&published), &now).missing_tables;
    let is_lacking = |relation: RelationId| lacking.iter().any(|(lacks, _)| *lacks == relation);
    let prepared = copies.take_ready(shared, generation);
    let frozen = |relation: RelationId| {
        let tables = prepared.iter().flat_map(|prepared| &prepared.tables);
        tables.into_iter().find(|facts| facts.shape.relation == relation)
    };
    let (mut follows, mut to_copy, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
    let resumed = shared.try_change_record(|record| {
        // Ordered to begin anew since this was decided.
        let record = record.filter(|record| matches!(record.slot, SlotRecord::Made(_))).ok_or(Ended::Again)?;
        record.timeline = seen.server.timeline;
        if raises_epoch {
            let Some(epoch) = record.epoch.checked_add(1) else {
                let text = "the epoch of versions is used up (65535)".to_owned();
                return Err(Ended::Final { code: code::RECORD, text });
            };
            (record.epoch, record.options) = (epoch, options.option_set());
        }
        for facts in &now {
            let relation = facts.shape.relation;
            if record.table(relation).is_some() {
                continue;
            }
            if is_lacking(relation) {
                tracing::warn!(pipeline = %options.pipeline, table = %facts.shape.name,
                    "a new table is not carried: it is not in publication `{}`", options.publication);
                continue;
            }
            let Some(stream) = record.take_partition() else { continue };
            record.tables.push(fresh(facts, stream, TablePhase::Waiting, None));
        }
        let through = record.through;
        let mut next = record.next_partition;
        let here = |relation: RelationId| now.iter().find(|facts| facts.shape.relation == relation);
        for table in &mut record.tables {
            match here(table.relation) {
                Some(facts) => table.name = facts.shape.name.clone(),
                None if table.phase != TablePhase::Removed => {
                    tracing::warn!(pipeline = %options.pipeline, table = %table.target, "the table is not there any more, or not chosen: it is removed, its rows stay");
                    table.phase = TablePhase::Removed;
                }
                None => {}
            }
        }
        for table in record.tables.iter_mut().filter(|table| is_lacking(table.relation) && was_followed(table)) {
            let reason = left_text(&table.name, &options.publication, options.creates_publication);
            given_up.push(table.stream_partition);
            given_up.extend(table.copy.as_ref().map(|copy| copy.partition));
            park(shared, table, through, Parked { code: code::PUBLICATION, reason: format!("needs re-sync: {reason}") });
        }
        let places = places(&record.tables);
        for table in &mut record.tables {
            let Some(facts) = here(table.relation) else {
                given_up.push(table.stream_partition);
                continue;
            };
            if let Some((_, owner)) = places.get(&table.target).filter(|(owner, _)| *owner != table.relation)
                && !matches!(table.phase, TablePhase::Parked | TablePhase::Removed)
            {
                park(shared, table, through, place_taken(&table.target.clone(), owner));
            }
            let wants_copy = shared.wants_copy(table, generation);
            let snapshot = frozen(table.relation).filter(|_| wants_copy);
            let facts = match (table.phase, snapshot) {
                (TablePhase::Removed, _) => {
                    given_up.push(table.stream_partition);
                    continue;
                }
                // Its rows pass by, and pass by without a shape.
                (TablePhase::Parked, _) => {
                    follows.extend(Captured::new(table, facts, options));
                    continue;
                }
                (_, Some(facts)) => facts,
                // It is not followed before its copy is.
                (_, None) if wants_copy && options.copies => continue,
                (_, None) => facts,
            };
            if wants_copy {
                // Rows of a copy that was not settled are void, and so are the places of its stream.
                given_up.push(table.stream_partition);
                given_up.extend(table.copy.as_ref().map(|copy| copy.partition));
                let exported = prepared.as_ref().map(|prepared| &prepared.exported);
                let point = exported.map_or(through, ExportedSlot::consistent_point);
                table.stream_partition = next;
                table.copy =
                    Some(CopyRecord { partition: next + 1, consistent_point: point, done: CopiedRanges::default() });
                table.phase = if options.copies { TablePhase::Copying } else { TablePhase::Streaming };
                table.watched = prepared.as_ref().and_then(|prepared| prepared.sightings.get(&table.relation).cloned());
                next += 2;
            }
            match Captured::new(table, facts, options) {
                Ok(mut captured) => {
                    if shared.is_other_shape(&captured.spec()) {
                        table.shape = table.shape.saturating_add(1);
                        captured.shape = table.shape;
                    }
                    if let Some(copy) = table.copy.as_ref().filter(|_| wants_copy && options.copies) {
                        let partition = PartitionId(copy.partition);
                        to_copy.push(ToCopy { facts: facts.clone(), table: captured.clone(), partition });
                    }
                    follows.push(captured);
                }
                Err(parked) => park(shared, table, through, parked),
            }
        }
        record.next_partition = next;
        Ok(through)
    });
    let (change, through) = resumed?;
    {
        let mut progress = shared.progress.lock();
        progress.go_back(through);
        if prepared.is_some() {
            progress.release();
        }
    }
    shared.stored(change).await;
    shared.retire(given_up.into_iter().map(PartitionId).collect());
    announce(shared, generation, &follows, &to_copy);
    if let Some(prepared) = prepared {
        copies.start(shared, *prepared, generation, to_copy);
    }
    Ok(Starts { connection: None, tables: follows, from: through })
}

/// Whether its rows came by the stream, or were about to.
fn was_followed(table: &TableRecord) -> bool {
    match table.phase {
        TablePhase::Parked | TablePhase::Removed => false,
        TablePhase::Waiting => table.copy.is_some(),
        TablePhase::Copying | TablePhase::CatchingUp | TablePhase::Streaming => true,
    }
}

/// Whose place in the destinations is which: a table keeps the one that it had first, whatever it is called now.
fn places(tables: &[TableRecord]) -> BTreeMap<String, (RelationId, TableName)> {
    let mut places = BTreeMap::new();
    for table in tables.iter().filter(|table| table.phase != TablePhase::Removed) {
        places.entry(table.target.clone()).or_insert_with(|| (table.relation, table.name.clone()));
    }
    places
}

fn place_taken(place: &str, owner: &TableName) -> Parked {
    let reason = format!(
        "its place `{place}` is that of table {owner}, which had this name when it was first captured: nothing is mixed in; give one of them a pipeline of its own, or leave {owner} out of `tables`"
    );
    Parked { code: code::PLACE_TAKEN, reason }
}

fn announce(shared: &Shared, generation: Generation, follows: &[Captured], copies: &[ToCopy]) {
    if !shared.options.abilities.orders_by_position {
        copies.iter().for_each(|copy| shared.handover.hold(generation, copy.table.stream, copy.partition));
    }
    let active = || follows.iter().filter(|table| !table.is_parked);
    let partitions = active().map(|table| table.stream).chain(copies.iter().map(|copy| copy.partition)).collect();
    shared.announce(active().map(Captured::spec).collect(), partitions);
}

pub(super) fn fresh(facts: &TableFacts, stream: u32, phase: TablePhase, copy: Option<CopyRecord>) -> TableRecord {
    TableRecord {
        relation: facts.shape.relation,
        name: facts.shape.name.clone(),
        target: facts.shape.name.to_string(),
        stream_partition: stream,
        phase,
        shape: 1,
        copy,
        park: None,
        watched: None,
        notes: Vec::new(),
    }
}

/// The copy of a first start, which nothing else goes on beside.
async fn copy_all(
    shared: &Arc<Shared>,
    exported: &ExportedSlot,
    server: &ServerFacts,
    copies: Vec<ToCopy>,
    generation: Generation,
) -> Result<(), Ended> {
    let mut reopened = shared.reopened.subscribe();
    reopened.mark_unchanged();
    let options = copies::options(shared, server);
    let partitions: Vec<PartitionId> = copies.iter().map(|copy| copy.partition).collect();
    shared.copies_begin(&partitions, generation);
    let copied = tokio::select! {
        copied = copy::copy(shared, exported.snapshot(), options, copies, generation, false) => copied,
        // What the lane had taken of the copy is lost with it.
        _ = reopened.changed() => Err(Ended::Again),
    };
    if copied.is_err() {
        shared.copies_fail(&partitions);
    }
    // Notes of tables that were parked meanwhile are stored before their rows pass by (P87).
    if shared.with_record(|record| record.is_some_and(|record| record.tables.iter().any(|table| table.park.is_some())))
    {
        shared.stored(shared.change_record(|_| {})).await;
    }
    copied
}
