//! The task of a capture: from what the server shows to a stream, over every connection of one opening (P50, P52, P57).
//!
//! Each attempt decides anew by the facts; nothing is guessed and nothing is skipped. What is wrong for good ends the
//! opening with its cause, and the pipeline asks again by its own back-off, so what an operator mends is found; what
//! passes by itself is waited for here. Tables whose copy was not settled are copied anew under a fresh snapshot (P56).

use std::sync::Arc;
use std::time::Duration;

use landfall_engine::contract::{SourceError, TableSpec};
use landfall_types::{Code, Coded, PartitionId};
use rand::RngExt;
use tokio::sync::watch;

use super::copy::{self, ToCopy};
use super::decoder::Decoder;
use super::handover::Generation;
use super::options::CaptureOptions;
use super::shared::{Shared, Stage};
use super::table::{Captured, Parked};
use crate::catalog::{MatchedTables, ServerFacts, TableFacts, read_tables};
use crate::feedback::FeedbackRules;
use crate::meters::StreamMeters;
use crate::publication::{PublicationFacts, add_table_locked, plan_publication};
use crate::pump::{PumpEnd, PumpParts, pump};
use crate::queue::{QueueMeters, QueueParts, QueueingSink};
use crate::reconnect::Backoff;
use crate::record::{CopyRecord, ParkNote, SourceRecord, TablePhase, TableRecord};
use crate::slot::{ExportedSlot, SlotFacts};
use crate::snapshot::{CopiedRanges, CopyOptions};
use crate::sql::SqlConnection;
use crate::startup::{Decision, Facts, decide, switch_point};
use crate::transport::{ReplicationConnection, StreamOptions};
use crate::{Lsn, RelationId, code};

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The source was told to stop.
    Stopped,
    /// The lane was opened anew: at once again.
    Again,
    /// Passes by itself.
    Later { code: Code, text: String },
    /// Somebody has to do something.
    Final { code: Code, text: String },
}

impl Ended {
    pub(super) fn later<E: Coded + std::fmt::Display>(error: &E) -> Self {
        Ended::Later { code: error.code(), text: error.to_string() }
    }

    fn last<E: Coded + std::fmt::Display>(error: &E) -> Self {
        Ended::Final { code: error.code(), text: error.to_string() }
    }
}

/// How long the tail of a queue may take at the end of a connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// `snapshot.lock_timeout`.
const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// Runs until the source is stopped or cannot go on.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut backoff = Backoff::new();
    let mut stop = shared.stop.subscribe();
    loop {
        let ended = tokio::select! {
            ended = attempt(&shared, &mut backoff) => {
                let Err(ended) = ended;
                ended
            }
            // Only what is not streaming is cut off here; a stream ends in order by itself.
            () = stopped_before_streaming(&shared) => Ended::Stopped,
        };
        match ended {
            Ended::Stopped => break,
            Ended::Again => {}
            Ended::Later { code, text } => {
                let delay = backoff.next_delay(&mut rand::rng());
                tracing::warn!(pipeline = %shared.options.pipeline, %code, attempt = backoff.failures(),
                    delay_ms = delay.as_millis() as u64, "the source waits: {text}");
                shared.set_stage(Stage::Waiting { cause: text, code: code.to_string(), attempt: backoff.failures() });
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = told_to_stop(&mut stop) => break,
                }
            }
            Ended::Final { code, text } => {
                tracing::error!(pipeline = %shared.options.pipeline, %code, "the source cannot go on: {text}");
                shared.set_stage(Stage::Waiting { cause: text.clone(), code: code.to_string(), attempt: 0 });
                shared.fail(SourceError::Fatal { code, text });
                return;
            }
        }
    }
    shared.set_stage(Stage::Stopped);
    shared.handover.finish();
}

async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}

async fn stopped_before_streaming(shared: &Arc<Shared>) {
    told_to_stop(&mut shared.stop.subscribe()).await;
    if shared.sight.lock().stage == Stage::Streaming {
        std::future::pending::<()>().await;
    }
}

/// What the server shows.
struct Seen {
    server: ServerFacts,
    slot: Option<SlotFacts>,
    publication: Option<PublicationFacts>,
    tables: MatchedTables,
}

async fn see(sql: &SqlConnection, options: &CaptureOptions) -> Result<Seen, Ended> {
    let server = ServerFacts::read(sql).await.map_err(|error| Ended::later(&error))?;
    let slot = SlotFacts::read(sql, server.major(), &options.slot).await.map_err(|error| Ended::later(&error))?;
    let publication = PublicationFacts::read(sql, server.major(), &options.publication).await;
    let publication = publication.map_err(|error| Ended::later(&error))?;
    let tables = tables(sql, options, publication.as_ref()).await?;
    Ok(Seen { server, slot, publication, tables })
}

async fn tables(
    sql: &SqlConnection,
    options: &CaptureOptions,
    publication: Option<&PublicationFacts>,
) -> Result<MatchedTables, Ended> {
    let published = publication.map(|facts| facts.tables.as_slice()).unwrap_or_default();
    read_tables(sql, &options.patterns(), published).await.map_err(|error| Ended::later(&error))
}

/// The tables as they are now, for a plan, and a note of each that would be parked. No side effect.
pub(super) async fn look(options: &CaptureOptions) -> Result<(Vec<TableSpec>, Vec<String>), Ended> {
    let sql = SqlConnection::open(&options.connect).await.map_err(|error| Ended::later(&error))?;
    let seen = see(&sql, options).await?;
    let plan = plan_publication(&options.publication, seen.publication.as_ref(), &seen.tables.tables);
    let (mut specs, mut notes) = (Vec::new(), Vec::new());
    for facts in seen.tables.tables.iter().filter(|facts| !plan.refused.contains(&facts.shape.name)) {
        let record = fresh(facts, 0, TablePhase::Waiting, None);
        match Captured::new(&record, facts, options) {
            Ok(table) => specs.push(table.spec()),
            Err(Parked { code, reason }) => {
                notes.push(format!("{} would be parked, its neighbours go on: {reason} ({code})", facts.shape.name));
            }
        }
    }
    Ok((specs, notes))
}

fn fresh(facts: &TableFacts, stream: u32, phase: TablePhase, copy: Option<CopyRecord>) -> TableRecord {
    TableRecord {
        relation: facts.shape.relation,
        name: facts.shape.name.clone(),
        target: facts.shape.name.to_string(),
        stream_partition: stream,
        phase,
        shape: 1,
        copy,
        park: None,
    }
}

/// One connection, from the decision to the stream's end.
async fn attempt(shared: &Arc<Shared>, backoff: &mut Backoff) -> Result<std::convert::Infallible, Ended> {
    let mut reopened = shared.reopened.subscribe();
    reopened.mark_unchanged();
    // Each attempt asks the destinations anew: who has mended one has the table copied again.
    shared.unfit.send_modify(std::collections::BTreeMap::clear);
    shared.set_stage(Stage::Starting);
    let generation = shared.handover.generation();
    shared.progress.lock().restart();
    let options = &shared.options;
    let sql = SqlConnection::open(&options.connect).await.map_err(|error| Ended::later(&error))?;
    let seen = see(&sql, options).await?;
    let publication = plan_publication(&options.publication, seen.publication.as_ref(), &seen.tables.tables);
    let record = shared.record();
    let switch = match &record {
        Some(record) if record.timeline != seen.server.timeline => {
            history(options, seen.server.timeline, record.timeline).await?
        }
        _ => None,
    };
    let facts =
        Facts { server: &seen.server, slot: seen.slot.as_ref(), publication: &publication, switch_point: switch };
    let decision = decide(&options.startup(), &facts, record.as_ref());
    tracing::debug!(pipeline = %options.pipeline, ?decision, "start of the source");
    let starts = match decision {
        Decision::Refuse(problem) => return Err(Ended::last(&problem)),
        Decision::Wait(problem) => return Err(Ended::later(&problem)),
        Decision::FirstStart { drops_orphan } => {
            first_start(shared, generation, &sql, &seen, &publication, drops_orphan).await?
        }
        Decision::Adopt { at } => adopt(shared, generation, &seen, at).await?,
        Decision::Resume { raises_epoch, adds, .. } => {
            for table in &adds {
                add_table_locked(&sql, &options.publication, table, LOCK_WITHIN)
                    .await
                    .map_err(|error| Ended::Later { code: code::LOCK_TIMEOUT, text: error.to_string() })?;
                tracing::info!(pipeline = %options.pipeline, %table, "table added to the publication");
            }
            resume(shared, generation, &sql, &seen, raises_epoch).await?
        }
    };
    drop(sql);
    stream(shared, generation, starts, &mut reopened, backoff).await
}

/// Where the server left the record's timeline.
async fn history(options: &CaptureOptions, now: u32, stored: u32) -> Result<Option<Lsn>, Ended> {
    let mut connection =
        ReplicationConnection::connect(&options.connect).await.map_err(|error| Ended::later(&error))?;
    let switches = connection.timeline_history(now).await.map_err(|error| Ended::later(&error))?;
    Ok(switch_point(switches.into_iter().map(|switch| (switch.timeline, switch.at)), stored))
}

/// What is streamed, and over which connection.
struct Starts {
    connection: Option<ReplicationConnection>,
    tables: Vec<Captured>,
    from: Lsn,
}

async fn first_start(
    shared: &Arc<Shared>,
    generation: Generation,
    sql: &SqlConnection,
    seen: &Seen,
    publication: &crate::PublicationPlan,
    drops_orphan: bool,
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
    let mut record = SourceRecord::intent(
        options.slot.clone(),
        server.system_identifier,
        server.database_oid,
        server.timeline,
        options.option_set(),
    );
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
    record.made(exported.identity(server));
    let published = PublicationFacts::read(sql, server.major(), &options.publication).await;
    let published = published.map_err(|error| Ended::later(&error))?;
    let frozen = SqlConnection::open(&options.connect).await.map_err(|error| Ended::later(&error))?;
    frozen.enter_snapshot(&exported.snapshot().name).await.map_err(|error| Ended::later(&error))?;
    let matched = tables(&frozen, options, published.as_ref()).await?;
    drop(frozen);
    let phase = if options.copies { TablePhase::Copying } else { TablePhase::Streaming };
    let (mut follows, mut copies) = (Vec::new(), Vec::new());
    for facts in matched.tables {
        let name = &facts.shape.name;
        let Some((stream, partition)) = record.take_partition().zip(record.take_partition()) else { continue };
        let copy = CopyRecord { partition, consistent_point: point, done: CopiedRanges::default() };
        let mut table = fresh(&facts, stream, phase, Some(copy));
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
    shared.progress.lock().idle(point);
    shared.stored(shared.put_record(record)).await;
    announce(shared, generation, &follows, if options.copies { &copies } else { &[] });
    if options.copies {
        copy_all(shared, &exported, &seen.server, copies).await?;
    }
    Ok(Starts { connection: Some(exported.into_connection()), tables: follows, from: point })
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
async fn adopt(shared: &Arc<Shared>, generation: Generation, seen: &Seen, at: Lsn) -> Result<Starts, Ended> {
    let (options, server) = (&shared.options, &seen.server);
    let mut record = SourceRecord::intent(
        options.slot.clone(),
        server.system_identifier,
        server.database_oid,
        server.timeline,
        options.option_set(),
    );
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

/// From the checkpoint; tables that are not copied to their end are copied anew first.
async fn resume(
    shared: &Arc<Shared>,
    generation: Generation,
    sql: &SqlConnection,
    seen: &Seen,
    raises_epoch: bool,
) -> Result<Starts, Ended> {
    let options = &shared.options;
    let Some(mut record) = shared.record() else { return Err(Ended::Again) };
    let through = record.through;
    record.timeline = seen.server.timeline;
    if raises_epoch {
        let Some(epoch) = record.epoch.checked_add(1) else {
            let text = "the epoch of versions is used up (65535)".to_owned();
            return Err(Ended::Final { code: code::RECORD, text });
        };
        (record.epoch, record.options) = (epoch, options.option_set());
    }
    let published = PublicationFacts::read(sql, seen.server.major(), &options.publication).await;
    let published = published.map_err(|error| Ended::later(&error))?;
    let now = tables(sql, options, published.as_ref()).await?;
    for facts in &now.tables {
        if record.table(facts.shape.relation).is_none() {
            let Some(stream) = record.take_partition() else { continue };
            record.tables.push(fresh(facts, stream, TablePhase::Waiting, None));
        }
    }
    let is_here = |relation: RelationId| now.tables.iter().any(|facts| facts.shape.relation == relation);
    for table in record.tables.iter_mut().filter(|table| !is_here(table.relation)) {
        if table.phase != TablePhase::Removed {
            tracing::warn!(pipeline = %options.pipeline, table = %table.target, "the table is not there any more, or not chosen: it is removed, its rows stay");
            table.phase = TablePhase::Removed;
        }
    }
    let is_unfinished = |table: &TableRecord| matches!(table.phase, TablePhase::Waiting | TablePhase::Copying);
    let exported = match options.copies && record.tables.iter().any(is_unfinished) {
        false => None,
        true => {
            shared.set_stage(Stage::CreatingSlot);
            let name = format!("landfall_copy_{:08x}", rand::rng().random::<u32>());
            let exported = ExportedSlot::temporary(&options.connect, sql, &name, options.slot_timeout).await;
            Some(exported.map_err(|error| Ended::later(&error))?)
        }
    };
    let frozen = match &exported {
        None => now.tables.clone(),
        Some(exported) => {
            let frozen = SqlConnection::open(&options.connect).await.map_err(|error| Ended::later(&error))?;
            frozen.enter_snapshot(&exported.snapshot().name).await.map_err(|error| Ended::later(&error))?;
            tables(&frozen, options, published.as_ref()).await?.tables
        }
    };
    let (mut follows, mut copies, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = record.next_partition;
    let places = places(&record.tables);
    for table in &mut record.tables {
        if matches!(table.phase, TablePhase::Removed) {
            given_up.push(table.stream_partition);
            continue;
        }
        let unfinished = is_unfinished(table);
        let facts = match unfinished {
            true => frozen.iter().find(|facts| facts.shape.relation == table.relation),
            false => now.tables.iter().find(|facts| facts.shape.relation == table.relation),
        };
        let Some(facts) = facts else { continue };
        table.name = facts.shape.name.clone();
        if unfinished {
            // Rows of a copy that was not settled are void, and so are the places of its stream.
            given_up.push(table.stream_partition);
            given_up.extend(table.copy.as_ref().map(|copy| copy.partition));
            let point = exported.as_ref().map_or(through, ExportedSlot::consistent_point);
            table.stream_partition = next;
            table.copy =
                Some(CopyRecord { partition: next + 1, consistent_point: point, done: CopiedRanges::default() });
            table.phase = if exported.is_some() { TablePhase::Copying } else { TablePhase::Streaming };
            next += 2;
        }
        if let Some(owner) = places.get(&table.target).filter(|owner| owner.relation != table.relation)
            && table.phase != TablePhase::Parked
        {
            park(shared, table, through, place_taken(owner));
        }
        if table.phase == TablePhase::Parked {
            // Its rows pass by, and pass by without a shape.
            if let Ok(captured) = Captured::new(table, facts, options) {
                follows.push(captured);
            }
            continue;
        }
        let mut captured = Captured::new(table, facts, options);
        if captured.as_ref().is_ok_and(|captured| shared.is_outdated(&captured.spec())) {
            table.shape = table.shape.saturating_add(1);
            captured = Captured::new(table, facts, options);
        }
        match captured {
            Ok(captured) => {
                if let Some(copy) = table.copy.as_ref().filter(|_| unfinished && exported.is_some()) {
                    let partition = PartitionId(copy.partition);
                    copies.push(ToCopy { facts: facts.clone(), table: captured.clone(), partition });
                }
                follows.push(captured);
            }
            Err(parked) => park(shared, table, through, parked),
        }
    }
    record.next_partition = next;
    shared.stored(shared.put_record(record)).await;
    shared.retire(given_up.into_iter().map(PartitionId).collect());
    announce(shared, generation, &follows, &copies);
    if let Some(exported) = exported {
        copy_all(shared, &exported, &seen.server, copies).await?;
    }
    Ok(Starts { connection: None, tables: follows, from: through })
}

/// Whose place in the destinations is which: a table keeps the one that it had first, whatever it is called now.
fn places(tables: &[TableRecord]) -> std::collections::BTreeMap<String, TableRecord> {
    let mut places = std::collections::BTreeMap::new();
    for table in tables.iter().filter(|table| table.phase != TablePhase::Removed) {
        places.entry(table.target.clone()).or_insert_with(|| table.clone());
    }
    places
}

fn place_taken(owner: &TableRecord) -> Parked {
    let reason = format!(
        "its place `{}` is that of table {}, which had this name when it was first captured: nothing is mixed in; give one of them a pipeline of its own, or leave {} out of `tables`",
        owner.target, owner.name, owner.name
    );
    Parked { code: code::PLACE_TAKEN, reason }
}

fn announce(shared: &Shared, generation: Generation, follows: &[Captured], copies: &[ToCopy]) {
    if shared.options.copy_first {
        copies.iter().for_each(|copy| shared.handover.hold(generation, copy.table.stream, copy.partition));
    }
    let active = || follows.iter().filter(|table| !table.is_parked);
    let partitions = active().map(|table| table.stream).chain(copies.iter().map(|copy| copy.partition)).collect();
    shared.announce(active().map(Captured::spec).collect(), partitions);
}

async fn copy_all(
    shared: &Arc<Shared>,
    exported: &ExportedSlot,
    server: &ServerFacts,
    copies: Vec<ToCopy>,
) -> Result<(), Ended> {
    let mut reopened = shared.reopened.subscribe();
    reopened.mark_unchanged();
    let options = CopyOptions {
        row_bytes_max: shared.options.max_message,
        block_bytes: server.number("block_size").and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(8_192),
        ..shared.options.copy.clone()
    };
    tokio::select! {
        copied = copy::copy(shared, exported.snapshot(), options, copies) => copied?,
        // What the lane had taken of the copy is lost with it.
        _ = reopened.changed() => return Err(Ended::Again),
    }
    // Notes of tables that were parked meanwhile are stored before their rows pass by.
    if shared.with_record(|record| record.is_some_and(|record| record.tables.iter().any(|table| table.park.is_some())))
    {
        shared.stored(shared.change_record(|_| {})).await;
    }
    Ok(())
}

async fn stream(
    shared: &Arc<Shared>,
    generation: Generation,
    starts: Starts,
    reopened: &mut watch::Receiver<u64>,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, Ended> {
    let Starts { connection, mut tables, from } = starts;
    let options = &shared.options;
    for table in &mut tables {
        table.is_parked |= shared.is_parked(table.relation);
    }
    let mut connection = match connection {
        Some(connection) => connection,
        None => ReplicationConnection::connect(&options.connect).await.map_err(|error| Ended::later(&error))?,
    };
    let timeout = connection.show("wal_sender_timeout").await.map_err(|error| Ended::later(&error))?;
    let rules = FeedbackRules::new(options.feedback_interval, options.liveness_timeout, parse_duration(&timeout));
    let stream = StreamOptions {
        slot: options.slot.clone(),
        from,
        publications: vec![options.publication.clone()],
        protocol: 1,
        is_streaming: false,
        with_messages: false,
        origin: options.origin.clone(),
        max_message: options.max_message,
    };
    let transport = connection.start(&stream).await.map_err(|error| Ended::later(&error))?;
    let idle_interval = options.queue.idle_interval.min((options.linger / 2).max(Duration::from_millis(1)));
    let settings = crate::QueueSettings { idle_interval, ..options.queue };
    let parts = QueueParts { meters: QueueMeters::new(&options.pipeline), ..QueueParts::new(settings) };
    let decoder = Decoder::new(Arc::clone(shared), generation, tables, from);
    let mut queue = QueueingSink::start(Box::new(decoder), parts);
    let (end_stream, ended) = watch::channel(false);
    let meters = StreamMeters::new(&options.pipeline);
    let parts = PumpParts { from, durable: Arc::clone(&shared.durable), rules, meters: meters.clone(), stop: ended };
    shared.set_stage(Stage::Streaming);
    tracing::info!(pipeline = %options.pipeline, slot = %options.slot, %from, "streaming");
    let received_before = shared.sight.lock().server_end;
    let mut stop = shared.stop.subscribe();
    let (end, why) = {
        let mut pumping = std::pin::pin!(pump(transport, &mut queue, parts));
        tokio::select! {
            end = &mut pumping => (end, None),
            () = told_to_stop(&mut stop) => {
                end_stream.send_replace(true);
                (pumping.await, Some(Ended::Stopped))
            }
            _ = reopened.changed() => {
                end_stream.send_replace(true);
                (pumping.await, Some(Ended::Again))
            }
        }
    };
    if shared.sight.lock().server_end > received_before {
        backoff.reset();
    }
    if matches!(why, Some(Ended::Again)) {
        // Rows behind the checkpoint come again: what the queue still holds is void.
        drop(queue);
        return Err(Ended::Again);
    }
    let closed = queue.close(CLOSE_WITHIN).await;
    if let Some(why) = why {
        if let Err(error) = closed {
            tracing::warn!(pipeline = %options.pipeline, "the end of the stream: {error}");
        }
        return Err(why);
    }
    meters.reconnected(end.code());
    Err(match &end {
        PumpEnd::Queue(error) => Ended::Later { code: end.code(), text: source_text(error) },
        _ => Ended::later(&end),
    })
}

/// A failure of the decoder with what caused it.
fn source_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

/// `1min`, `60s`, `500ms`, `0`: as SHOW gives it.
fn parse_duration(text: &str) -> Duration {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let number: u64 = digits.trim().parse().unwrap_or_default();
    match text.get(digits.len()..).unwrap_or_default() {
        "ms" | "" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "min" => Duration::from_secs(number.saturating_mul(60)),
        "h" => Duration::from_secs(number.saturating_mul(3_600)),
        _ => Duration::from_secs(number.saturating_mul(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches feedback by the default rhythm although the server's patience is shorter.
    #[test]
    fn a_setting_is_read_with_its_unit() {
        let read = |text| parse_duration(text).as_millis();
        assert_eq!(
            (read("1min"), read("30s"), read("500ms"), read("0"), read("1d")),
            (60_000, 30_000, 500, 0, 86_400_000)
        );
    }
}
